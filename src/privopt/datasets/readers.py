"""Readers: one function for every supported file.

The values of a frame's columns are validated where they are used (`columns.numbers`), so an unused column may hold anything.
Plain matrices and targets are validated here.
"""

import zlib
from collections.abc import Collection, Sequence
from lzma import LZMAError
from os import PathLike
from pathlib import Path

from privopt.datasets.delimited import read_delimited
from privopt.datasets.files import OPENERS, check_unpacked_size
from privopt.datasets.libsvm import looks_like_libsvm, read_libsvm
from privopt.datasets.npz import read_npz
from privopt.datasets.parquet import read_parquet
from privopt.datasets.table import Table, table_of_frame
from privopt.errors import InputError, PrivoptError

FORMATS = "CSV (.csv, .tsv), Parquet (.parquet), LIBSVM (.svm, .libsvm, .svmlight, or any other name) and NumPy (.npz)"
_LIBSVM = (".svm", ".libsvm", ".svmlight")


def read(
    path: str | PathLike[str], target: str | None = None, *, names: Sequence[str] | None = None, text: Collection[str] = ()
) -> Table:
    """Read the table in a file, whose format follows from its name or, for other names, from its first lines.

    `target` names a column of CSV and Parquet files. LIBSVM files begin each line with it, npz files call it y. `names` are the
    features that a trained model knows: LIBSVM files do not show those that are 0 in all their rows. Columns of a CSV file
    that are listed in `text` are read as they are written.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a directory; a file is needed.")
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty.")
        check_unpacked_size(path)
        return _read(path, target, names, text)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except (EOFError, zlib.error, LZMAError):
        raise InputError(f"{path} is damaged: it cannot be decompressed to its end.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or type(error).__name__}.") from None
    except (PrivoptError, MemoryError):
        raise
    except Exception as error:  # unexpected, from a library; its message may quote a value
        raise InputError(f"{path} cannot be read, and is perhaps damaged ({type(error).__name__}). Write it anew.") from None


def _read(path: Path, target: str | None, names: Sequence[str] | None, text: Collection[str]) -> Table:
    plain = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    name, kind = path.name.split(".")[0] or path.name, plain.suffix.lower()
    if kind in (".csv", ".tsv"):
        return table_of_frame(name, read_delimited(path, text), target)
    if kind == ".parquet" and plain is path:
        return table_of_frame(name, read_parquet(path), target)
    if kind == ".npz" and plain is path:
        _refuse_other_target(path, target, "y", "the array y is the target")
        return read_npz(path, name, names)
    if kind in _LIBSVM or looks_like_libsvm(path):
        _refuse_other_target(path, target, None, "each line begins with the target, which has no name")
        return read_libsvm(path, name, names)
    raise InputError(f"{path} is in none of the formats that privopt reads: {FORMATS}; text also compressed as .gz, .bz2, .xz.")


def _refuse_other_target(path: Path, target: str | None, allowed: str | None, fact: str) -> None:
    if target not in (None, allowed):
        raise InputError(f"target is {target!r}, but {path} names no columns: {fact}. Leave the target out.")
