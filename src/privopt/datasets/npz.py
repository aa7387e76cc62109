"""npz: arrays `X` and `y`, or a CSR matrix as scipy saves it (data, indices, indptr, shape) with `y`. Never a pickle."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from privopt.datasets.table import Table, numeric
from privopt.errors import InputError

_CSR = ("data", "indices", "indptr", "shape")


def read_npz(path: Path, name: str, names: Sequence[str] | None) -> Table:
    """The arrays as a table; its features are x0, x1, …"""
    with path.open("rb") as file:  # numpy leaves a file open that it cannot read
        archive = _archive(path, file)
        if "X" in archive:
            matrix = _array(path, archive, "X")
            if matrix.ndim != 2:
                raise InputError(f"X in {path} has shape {matrix.shape}; rows × features are needed.")
        elif all(key in archive for key in _CSR):
            matrix = _csr(path, archive)
        else:
            raise InputError(
                f"{path} holds {', '.join(archive.files) or 'nothing'}, but neither X nor the CSR arrays {', '.join(_CSR)}. "
                "numpy.savez(path, X=..., y=...) writes the first."
            )
        target = _array(path, archive, "y", numbers=False) if "y" in archive else None
    if names is not None and len(names) != matrix.shape[1]:
        raise InputError(f"{path} has {matrix.shape[1]} features, but the model knows {len(names)}.")
    return numeric(name, matrix, tuple(names or (f"x{index}" for index in range(matrix.shape[1]))), target)


def _archive(path: Path, file: BinaryIO) -> Any:
    try:
        archive = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"{path} is not an npz file, or is damaged. numpy.savez(path, X=..., y=...) writes one.")
    return archive


def _csr(path: Path, archive: Any) -> Any:
    import scipy.sparse as sp

    if "format" in archive and _array(path, archive, "format", numbers=False).item() not in (b"csr", "csr"):
        raise InputError(f"{path} holds a sparse matrix that is not CSR. Save matrix.tocsr().")
    data, indices, indptr, shape = (_array(path, archive, key) for key in _CSR)
    try:
        matrix = sp.csr_matrix((data, indices.astype(np.int64), indptr.astype(np.int64)), shape=tuple(map(int, shape)))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError):
        raise InputError(f"the CSR arrays in {path} do not fit together. scipy.sparse.save_npz writes ones that do.") from None
    matrix.sum_duplicates()  # a column twice in a row would make its norm look shorter than it is
    return matrix


def _array(path: Path, archive: Any, key: str, *, numbers: bool = True) -> NDArray[Any]:
    try:
        array: NDArray[Any] = archive[key]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if "Object arrays" in str(error):
            raise InputError(f"{key} in {path} holds Python objects, which only a pickle could. Save plain arrays.") from None
        raise InputError(f"{key} in {path} is damaged. Save the file anew.") from None
    if not numbers or key in ("indices", "indptr", "shape"):
        return array
    if array.dtype.kind not in "buif":
        raise InputError(f"{key} in {path} is {array.dtype}, but numbers are needed. Encode text before saving.")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
