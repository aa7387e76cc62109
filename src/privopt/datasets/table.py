"""Tables: the content of a data file, before it is encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from privopt.datasets.columns import suggest_names
from privopt.errors import InputError
from privopt.limits import MOST_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp

BLOCK = 1 << 18  # entries to check at a time, without a copy of the matrix


@dataclass(frozen=True)
class Numbered(Sequence[str]):
    """The names x0, x1, …, made on demand: a sparse file of one line may have millions of features.

    >>> list(Numbered("x", 0, 3))
    ['x0', 'x1', 'x2']
    """

    prefix: str
    first: int
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        found = range(self.first, self.first + self.size)[place]
        return f"{self.prefix}{found}" if isinstance(found, int) else [f"{self.prefix}{number}" for number in found]


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a file: named columns in `frame` (CSV, Parquet), or plain numbers in `matrix` (LIBSVM, npz).

    `names` are the features in order; `target` is `None` when there is none, as for rows to predict.
    """

    name: str
    frame: "pd.DataFrame | None" = None
    matrix: "NDArray[Any] | sp.csr_matrix | None" = None
    names: Sequence[str] = ()
    target: NDArray[Any] | None = None

    def __len__(self) -> int:
        rows = self.frame if self.frame is not None else self.matrix
        return 0 if rows is None else int(rows.shape[0])


def table_of_frame(name: str, frame: "pd.DataFrame", target: str | None) -> Table:
    """Make a table of named columns, with the target taken out of the frame."""
    names = [str(column) for column in frame.columns]
    frame.columns = names
    if target is not None and target not in names:
        raise InputError(f"{name} has no column {target!r} to be the target. {suggest_names(target, names)}")
    if not len(frame):
        raise InputError(f"{name} has columns but no rows.")
    values = None if target is None else _target(frame.pop(target))
    if not len(frame.columns):
        raise InputError(f"{name} has no column but the target {target!r}: there is nothing to learn from.")
    return Table(name, frame=frame, names=tuple(frame.columns), target=values)


def check_width(path: Path, columns: int) -> None:
    """Refuse a matrix with more columns than a model can have."""
    if columns > MOST_COLUMNS:
        raise InputError(f"{path} has {columns} columns; privopt reads {MOST_COLUMNS}. Hash its features into fewer.")


def table_of_matrix(
    name: str, matrix: "NDArray[Any] | sp.csr_matrix", names: Sequence[str], target: NDArray[Any] | None
) -> Table:
    """Make a table of plain numbers, all of them finite."""
    rows, columns = matrix.shape
    if not rows or not columns:
        raise InputError(f"{name} has {rows} rows and {columns} features; there is nothing to learn from.")
    if target is not None:
        if target.shape != (rows,):
            raise InputError(f"{name} has {rows} rows, but its target y has shape {target.shape}. One value per row is needed.")
        if target.dtype.kind == "f" and not np.isfinite(target).all():
            raise InputError(f"the target of {name} holds missing or infinite numbers. Leave such rows out.")
    if (wrong := _first_not_finite(matrix)) is not None:
        raise InputError(f"feature {names[wrong]} of {name} holds missing or infinite numbers. Fill them in.")
    return Table(name, matrix=matrix, names=names, target=target)


def _target(column: "pd.Series[Any]") -> NDArray[Any]:
    import pandas as pd

    if column.isna().any():
        raise InputError(
            f"the target {column.name!r} has missing values: empty fields, or NA, None, null and the like. Leave such rows out; "
            "if that is a class, list the classes in a --schema."
        )
    plain = isinstance(column.dtype, np.dtype) or not pd.api.types.is_numeric_dtype(column)
    values = column.to_numpy() if plain else column.to_numpy(dtype=np.float64)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"the target {column.name!r} holds infinite numbers. Leave such rows out.")
    return values


def _first_not_finite(matrix: "NDArray[Any] | sp.csr_matrix") -> int | None:
    """The first column with a number that is not finite."""
    if not isinstance(matrix, np.ndarray):
        wrong = matrix.indices[~np.isfinite(matrix.data)]
        return int(wrong.min()) if len(wrong) else None
    step = max(1, BLOCK // matrix.shape[1])
    for start in range(0, len(matrix), step):
        finite = np.isfinite(matrix[start : start + step]).all(axis=0)
        if not finite.all():
            return int(np.argmin(finite))
    return None
