"""LIBSVM (svmlight): one row per line, `label index:value index:value …`, with increasing indices."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from privopt.datasets.files import open_decompressed
from privopt.datasets.table import Numbered, Table, check_width, table_of_matrix
from privopt.errors import InputError

_ROW = re.compile(rb"\s*[-+]?[\d.]+(e[-+]?\d+)?(\s+\d+:\S+)+\s*(#.*)?", re.IGNORECASE)


def read_libsvm(path: Path, name: str, names: Sequence[str] | None) -> Table:
    """Read the rows into a CSR matrix. Features are named by their index in the file, which counts from 1 unless a 0 occurs.

    Zeros are left out of a file, so its first or last features may not occur: `names` are the features that a model was trained
    on.
    """
    import scipy.sparse as sp
    from sklearn.datasets import load_svmlight_file

    try:
        with open_decompressed(path) as file:
            rows, labels = load_svmlight_file(file, zero_based=True)
    except (ValueError, OverflowError):  # their messages quote the file
        raise InputError(
            f"{path} is not a LIBSVM file, or is damaged: each line is `label index:value index:value …` with one label and "
            "increasing indices."
        ) from None
    check_width(path, rows.shape[1])
    lowest, highest = int(rows.indices.min(initial=1)), int(rows.indices.max(initial=0))
    if names is None:
        names = Numbered("", min(lowest, 1), max(highest + 1 - min(lowest, 1), 0))
    first = 0 if names and names[0] == "0" else 1
    if lowest < first or highest >= first + len(names):
        raise InputError(f"{path} has features that the model does not know: it knows {names[0]} … {names[-1]}.")
    matrix = sp.csr_matrix((rows.data, rows.indices - first, rows.indptr), shape=(rows.shape[0], len(names)))
    return table_of_matrix(name, matrix, names, np.asarray(labels))


def looks_like_libsvm(path: Path) -> bool:
    """Whether one of the first lines reads `label index:value …`: such files may have any name."""
    with open_decompressed(path) as file:
        return any(_ROW.fullmatch(line.strip()) for line in islice(file, 100))
