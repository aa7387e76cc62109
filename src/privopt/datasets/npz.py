"""npz: arrays `X` and `y`, or a CSR matrix as scipy saves it (data, indices, indptr, shape) with `y`. Never a pickle."""

import math
import zipfile
import zlib
from collections.abc import Sequence
from lzma import LZMAError
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from privopt.datasets.columns import list_names
from privopt.datasets.table import Numbered, Table, check_width, table_of_matrix
from privopt.errors import InputError
from privopt.limits import unpacked_limit

_CSR = ("data", "indices", "indptr", "shape")


def read_npz(path: Path, name: str, names: Sequence[str] | None) -> Table:
    """Read the arrays as a table with the features x0, x1, …"""
    with path.open("rb") as file:  # numpy leaves a file open that it cannot read
        archive = _archive(path, file)
        _check_size(path, archive)
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


def _check_size(path: Path, archive: Any) -> None:
    unpacked, most = sum(info.file_size for info in archive.zip.infolist()), unpacked_limit(path.stat().st_size)
    if unpacked > most:
        raise InputError(f"{path} unpacks to {unpacked} bytes; {most} are allowed. Save it with numpy.savez, or as a CSR matrix.")
