"""Readers: one function for every supported file, and one section for each format.

CSV has a header and rows, separated by commas, semicolons or tabs. Parquet has typed columns, read by pyarrow. LIBSVM (svmlight)
has one row per line, `label index:value index:value …`, with increasing indices. npz has arrays `X` and `y`, or a CSR matrix as
scipy saves it (data, indices, indptr, shape) with `y`; never a pickle.

The values of a frame's columns are validated where they are used (`table.numbers`), so an unused column may hold anything.
Plain matrices and targets are validated here.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from lzma import LZMAError
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from privopt.datasets.table import Numbered, Table, check_names, check_width, list_names, table_of_frame, table_of_matrix
from privopt.errors import InputError, PrivoptError, PrivoptWarning
from privopt.limits import MOST_JSON_BYTES, unpacked_limit

if TYPE_CHECKING:
    import pandas as pd


# ---------------------------------------------------------------- compressed files and JSON


OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
UNPACKED_BLOCK = 2**20  # bytes to unpack at a time


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file for reading bytes; .gz, .bz2 and .xz are decompressed."""
    file: BinaryIO = OPENERS.get(path.suffix.lower(), open)(path, "rb")
    return file


def check_unpacked_size(path: Path) -> None:
    """Refuse a compressed file that unpacks to more than the limit, before a parser needs even more memory for it."""
    if path.suffix.lower() not in OPENERS:
        return
    left = most = unpacked_limit(path.stat().st_size)
    with open_decompressed(path) as file:
        while left >= 0 and (block := file.read(UNPACKED_BLOCK)):
            left -= len(block)
    if left < 0:
        raise InputError(f"{path} unpacks to more than {most} bytes. If it really is so large, unpack it first.")


def read_json(path: Path, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Read a JSON file. An `InputError` says what is wrong with it, but not which file it is."""
    with path.open("rb") as file:
        content = file.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise InputError(f"it is larger than {MOST_JSON_BYTES} bytes.")
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=pairs_hook, parse_int=_parse_int)
        json.dumps(value, ensure_ascii=False).encode()
    except InputError:
        raise
    except RecursionError:
        raise InputError("it is nested too deeply.") from None
    except UnicodeEncodeError:
        raise InputError("it holds half of a surrogate pair, which is no character.") from None
    except UnicodeDecodeError:
        raise InputError("it is not JSON: it is not UTF-8 text.") from None
    except ValueError as error:  # JSON files are public, so their errors may be quoted
        raise InputError(f"it is not JSON: {error}.") from None
    return value


def _parse_int(digits: str) -> int:
    """Parse an integer that fits into a float, so that it is safe to compute with."""
    if len(digits) > sys.float_info.max_10_exp:
        raise InputError(f"it holds a number of {len(digits)} digits, which is too large to compute with.")
    return int(digits)


# ---------------------------------------------------------------- CSV


SEPARATORS = ",;\t"
LONGEST_HEADER = 2**26  # characters: names of 256 characters for as many columns as there may be
_ENCODING = "utf-8-sig"  # with or without a byte-order mark


def read_delimited(path: Path, text: Collection[str] = ()) -> "pd.DataFrame":
    """Read the columns with the types that pandas infers, but those in `text` as strings: 01 is not 1."""
    import pandas as pd

    try:
        separator, header = _header(path)
        check_names(path, filter(None, header))
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # "leads to a loss of data"
            form: dict[str, Any] = {"sep": separator, "encoding": _ENCODING, "index_col": False, "skipinitialspace": True}
            with open_decompressed(path) as file:
                frame = pd.read_csv(file, low_memory=False, **form)
            if named := [name for name in frame.columns if name in text]:
                with open_decompressed(path) as file:
                    written = pd.read_csv(file, usecols=named, dtype=str, keep_default_na=False, na_values=[""], **form)
                frame[named] = written[named]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except pd.errors.ParserWarning:
        raise InputError(f"{path} is ragged: its rows have more fields than the header's {len(header)}.") from None
    except pd.errors.ParserError as error:
        reason = str(error).partition("C error: ")[2].strip() or "its rows cannot be parsed"
        if "out of memory" in reason:
            raise MemoryError from None
        raise InputError(f"{path} is ragged: {reason}. Every row needs the header's {len(header)} fields.") from None
    if frame.iloc[:, -1].hasnans:  # what pandas makes of a row that is too short
        _refuse_short_rows(path, separator, len(header))
    return frame


def _header(path: Path) -> tuple[str, list[str]]:
    """The separator that splits the first line into most fields, and these fields."""
    with io.TextIOWrapper(open_decompressed(path), encoding=_ENCODING) as file:
        line = next((line for line in iter(lambda: file.readline(LONGEST_HEADER + 1), "") if line.strip()), None)
    if line is None:
        raise InputError(f"{path} is empty. A CSV file starts with a line of column names.")
    if len(line) > LONGEST_HEADER:
        raise InputError(f"{path} begins with a line of more than {LONGEST_HEADER} characters, which cannot be column names.")
    found = [(separator, _fields(line, separator)) for separator in SEPARATORS]
    return max(found, key=lambda pair: len(pair[1]))


def _fields(line: str, separator: str) -> list[str]:
    with _fields_of_any_length():
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True))


def _refuse_short_rows(path: Path, separator: str, width: int) -> None:
    with io.TextIOWrapper(open_decompressed(path), encoding=_ENCODING, newline="") as file, _fields_of_any_length():
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        for row in rows:
            if 0 < len(row) < width:
                raise InputError(
                    f"{path} is ragged: line {rows.line_num} has {len(row)} fields, but the header has {width}. "
                    "An empty field is a field; write the separators."
                )


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lift the csv module's limit of 128 KiB for a field."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


# ---------------------------------------------------------------- Parquet


CELL = 8  # least number of bytes of a cell in memory


def read_parquet(path: Path) -> "pd.DataFrame":
    """Read the columns. A pandas index is one of them if it has a name, and is left out otherwise."""
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path} is a Parquet file, which needs pyarrow: pip install 'privopt[parquet]'.") from None
    import pandas as pd

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            check_names(path, names)
            _check_parquet_size(path, file)
            labels = _row_labels(file.schema_arrow.metadata or {}, names)
            table = file.read(columns=[name for name in names if name not in labels] if labels else None)
    except (pyarrow.lib.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        raise InputError(f"{path} is not a Parquet file, or is damaged. Write it anew.") from None
    if labels:
        message = f"the index of the frame in {path} has no name and is left out. Name it, if it is to be a column."
        warnings.warn(message, PrivoptWarning, stacklevel=2)
    return pd.DataFrame(
        {name: _values(path, name, column) for name, column in zip(table.column_names, table.columns, strict=True)}
    )


def _values(path: Path, name: str, column: Any) -> "pd.Series[Any]":
    try:
        column.validate(full=True)  # pandas would keep text as it is, and fail where it is used
        return column.to_pandas()
    except (ValueError, OverflowError, TypeError, NotImplementedError):  # their messages quote a value
        raise InputError(
            f"column {name!r} of {path} holds {column.type} values that Python cannot: text that is not UTF-8, for example, or "
            "dates of another age. Leave it out of the file, or convert it."
        ) from None


def _check_parquet_size(path: Path, file: Any) -> None:
    """Refuse a table that is too large in memory: repeated values take almost no space in a file."""
    meta, most = file.metadata, unpacked_limit(path.stat().st_size)
    stored = sum(meta.row_group(place).total_byte_size for place in range(meta.num_row_groups))
    if max(stored, CELL * meta.num_rows * meta.num_columns) > most:
        raise InputError(
            f"{path} has {meta.num_rows} rows of {meta.num_columns} columns, which unpack to more than {most} bytes."
        )


def _row_labels(metadata: dict[bytes, bytes], names: list[str]) -> list[str]:
    """The columns in which pandas stores an index without a name."""
    try:
        index = json.loads(metadata.get(b"pandas", b"{}"))["index_columns"]
        return [name for name in names if name in index and name.startswith("__index_level_")]
    except (ValueError, KeyError, TypeError, RecursionError):  # not a pandas frame, or its metadata are damaged: all are columns
        return []


# ---------------------------------------------------------------- LIBSVM


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


# ---------------------------------------------------------------- npz


_CSR = ("data", "indices", "indptr", "shape")


def read_npz(path: Path, name: str, names: Sequence[str] | None) -> Table:
    """Read the arrays as a table with the features x0, x1, …"""
    with path.open("rb") as file:  # numpy leaves a file open that it cannot read
        archive = _archive(path, file)
        _check_npz_size(path, archive)
        if "X" in archive:
            matrix = _array(path, archive, "X")
            if matrix.ndim != 2:
                raise InputError(f"X in {path} has shape {matrix.shape}; rows × features are needed.")
        elif all(key in archive for key in _CSR):
            matrix = _csr(path, archive)
        else:
            raise InputError(
                f"{path} holds {list_names(archive.files) or 'nothing'}, but neither X nor the CSR arrays {', '.join(_CSR)}. "
                "numpy.savez(path, X=..., y=...) writes the first."
            )
        target = _array(path, archive, "y", numbers=False) if "y" in archive else None
    if names is not None and len(names) != matrix.shape[1]:
        raise InputError(f"{path} has {matrix.shape[1]} features, but the model knows {len(names)}.")
    return table_of_matrix(name, matrix, names or Numbered("x", 0, matrix.shape[1]), target)


def _archive(path: Path, file: BinaryIO) -> Any:
    try:
        archive = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError):
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"{path} is not an npz file, or is damaged. numpy.savez(path, X=..., y=...) writes one.")
    return archive


def _csr(path: Path, archive: Any) -> Any:
    import scipy.sparse as sp

    if "format" in archive and _array(path, archive, "format", numbers=False).tolist() not in (b"csr", "csr"):
        raise InputError(f"{path} holds a sparse matrix that is not CSR. Save matrix.tocsr().")
    data, indices, indptr, shape = (_array(path, archive, key) for key in _CSR)
    try:
        rows, columns = map(int, shape)
        check_width(path, columns)
        matrix = sp.csr_matrix((data, indices.astype(np.int64), indptr.astype(np.int64)), shape=(rows, columns))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the CSR arrays in {path} do not fit together. scipy.sparse.save_npz writes ones that do.") from None
    matrix.sum_duplicates()  # a column twice in a row would make its norm look shorter than it is
    return matrix


def _array(path: Path, archive: Any, key: str, *, numbers: bool = True) -> NDArray[Any]:
    try:
        _check_header(path, archive, key)
        array: NDArray[Any] = archive[key]
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    except InputError:
        raise
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error, LZMAError, RuntimeError):
        # a RuntimeError is an encrypted member, or one that is compressed in a way that Python does not know
        raise InputError(f"{key} in {path} is damaged or encrypted. Save the file anew.") from None
    if key in ("indices", "indptr", "shape"):
        if array.dtype.kind not in "iu":
            raise InputError(f"{key} in {path} is {array.dtype}, but whole numbers are needed. Save a CSR matrix.")
        return array
    if array.dtype.kind not in ("buif" if numbers else "buifUS"):
        raise InputError(f"{key} in {path} is {array.dtype}, but numbers are needed. Encode text before saving.")
    return array if not numbers or array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _check_header(path: Path, archive: Any, key: str) -> None:
    """Refuse an array whose size does not match its header, before numpy allocates memory for it."""
    info = archive.zip.getinfo(f"{key}.npy" if f"{key}.npy" in archive.zip.namelist() else key)
    with archive.zip.open(info) as member:
        version = np.lib.format.read_magic(member)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(member)
        left = info.file_size - member.tell()
    if dtype.hasobject:
        raise InputError(f"{key} in {path} holds Python objects, which only pickle can store. Save plain arrays.")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left:
        raise InputError(f"{key} in {path} is damaged: its size does not match its header. Save the file anew.")


def _check_npz_size(path: Path, archive: Any) -> None:
    unpacked, most = sum(info.file_size for info in archive.zip.infolist()), unpacked_limit(path.stat().st_size)
    if unpacked > most:
        raise InputError(f"{path} unpacks to {unpacked} bytes; {most} are allowed. Save it with numpy.savez, or as a CSR matrix.")


# ---------------------------------------------------------------- every file


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
