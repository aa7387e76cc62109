"""LIBSVM (svmlight): a line per row, `label index:value index:value …`, its indices rising."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from privopt.datasets.files import opened
from privopt.datasets.table import Numbered, Table, check_width, numeric
from privopt.errors import InputError

_ROW = re.compile(rb"\s*[-+]?[\d.]+(e[-+]?\d+)?(\s+\d+:\S+)+\s*(#.*)?", re.IGNORECASE)


def read_libsvm(path: Path, name: str, names: Sequence[str] | None) -> Table:
    """The rows as a CSR matrix. Features are named by their index in the file, which counts from 1 unless a 0 occurs.

    A file leaves out what is zero, so the last features, or the first, may not show: `names`, those of the rows that a model
    was trained on, says which there are.
    """
    import scipy.sparse as sp
    from sklearn.datasets import load_svmlight_file

    try:
        with opened(path) as file:
            rows, labels = load_svmlight_file(file, zero_based=True)
    except (ValueError, OverflowError):  # their messages quote the file
        raise InputError(
            f"{path} is not a LIBSVM file, or is damaged: each line is `label index:value index:value …` with one label and "
            "rising indices."
        ) from None
    check_width(path, rows.shape[1])
    lowest, highest = int(rows.indices.min(initial=1)), int(rows.indices.max(initial=0))
    if names is None:
        names = Numbered("", min(lowest, 1), max(highest + 1 - min(lowest, 1), 0))
    first = 0 if names and names[0] == "0" else 1
    if lowest < first or highest >= first + len(names):
        raise InputError(f"{path} has features that the model does not know: it knows {names[0]} … {names[-1]}.")
    matrix = sp.csr_matrix((rows.data, rows.indices - first, rows.indptr), shape=(rows.shape[0], len(names)))
    return numeric(name, matrix, names, np.asarray(labels))


def looks_like_libsvm(path: Path) -> bool:
    """Whether one of the first lines reads `label index:value …`: such files come with any name."""
    with opened(path) as file:
        return any(_ROW.fullmatch(line.strip()) for line in islice(file, 100))
