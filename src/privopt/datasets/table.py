"""Tables: the content of a data file before it is encoded, and the values and names of its columns.

Values are validated here, where they become numbers, dates or categories. No error quotes one. Frames may be those of pandas,
polars, pyarrow and whatever else narwhals knows; they are read one column at a time, as they are.
"""

import csv
import difflib
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from privopt.errors import InputError
from privopt.limits import MOST_COLUMNS, MOST_NAME_CHARACTERS, MOST_NAMED_COLUMNS

if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd
    import scipy.sparse as sp


# ---------------------------------------------------------------- columns


IGNORE = 'or mark the column {"ignore": true} in the schema.'
SAME_NAMES = "the frame has several columns of the same name. Give each its own."
MISSING = "(missing)"  # the category of a missing value
MOST_COMPARED = 1000  # how many names, and characters of each, are searched for one that was perhaps meant

TypeName = Literal["numbers", "whole numbers", "truth values", "dates", "text", "something else"]


@dataclass(frozen=True, eq=False)
class Columns:
    """The named columns of a frame of any library that narwhals knows."""

    frame: "nw.DataFrame[Any]"

    @classmethod
    def of(cls, frame: Any) -> "Columns":
        """The columns of a frame; anything else is refused.

        >>> import polars as pl
        >>> Columns.of(pl.DataFrame({"age": [41]}))["age"].tolist()
        [41]
        """
        if isinstance(frame, Columns):
            return frame
        import narwhals as nw

        try:
            eager = nw.from_native(frame, eager_only=True)
        except TypeError:
            raise InputError(
                f"a frame with named columns is needed (pandas, polars or pyarrow), but this is {type(frame).__name__}."
                + (" Collect it first." if hasattr(frame, "collect") else "")
            ) from None
        except nw.exceptions.DuplicateError:
            raise InputError(SAME_NAMES) from None
        names = list(eager.columns)
        if unnamed := sum(not isinstance(name, str) for name in names):
            raise InputError(f"{unnamed} columns of the frame have names that are no text. Name them: frame.columns = [...].")
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise InputError(f"the frame names these columns more than once: {list_names(repeated)}. Give each its own name.")
        return cls(eager)

    @property
    def names(self) -> list[str]:
        """Their names in order."""
        return self.frame.columns

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> "pd.Series[Any]":
        """A column as a series of pandas; numbers are not copied."""
        import narwhals as nw
        import pandas as pd

        column = self.frame[name]
        native = column.to_native()
        if isinstance(native, pd.Series):
            return native
        if column.dtype in (nw.Categorical, nw.Enum):
            column = column.cast(nw.String)
        elif column.dtype.is_decimal():
            column = column.cast(nw.Float64)
        elif isinstance(column.dtype, nw.Datetime) and column.dtype.time_zone is not None:
            column = column.dt.replace_time_zone(None)  # the local time
        return pd.Series(column.to_numpy(), name=name, copy=False)

    def take(self, rows: Any) -> "Columns":
        """Some of the rows."""
        return Columns(self.frame[rows])

    def without(self, names: Iterable[str]) -> "Columns":
        """All but these columns."""
        return Columns(self.frame.drop(list(names)))


def type_of(column: "pd.Series[Any]") -> TypeName:
    """What a column holds, by its type alone."""
    import pandas as pd

    kind = pd.api.types
    if kind.is_bool_dtype(column):
        return "truth values"
    if kind.is_integer_dtype(column):
        return "whole numbers"
    if kind.is_numeric_dtype(column) and not kind.is_complex_dtype(column):
        return "numbers"
    if kind.is_datetime64_any_dtype(column):
        return "dates"
    if kind.is_object_dtype(column) or kind.is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return "text"
    return "something else"


def numbers(
    column: "pd.Series[Any]", *, missing: float | Literal["indicator"] | None = None, trained: bool = False
) -> NDArray[np.float64]:
    """Convert the column to floats. Missing ones count as `missing`, or stay NaN if it is "indicator".

    Errors suggest a schema, unless a model was `trained` already.
    """
    import pandas as pd

    kind = pd.api.types
    if kind.is_datetime64_any_dtype(column) or kind.is_timedelta64_dtype(column) or kind.is_complex_dtype(column):
        raise InputError(
            f"column {column.name!r} is {column.dtype}, but a number is needed. Convert it "
            + ("as for training." if trained else f"(for example to days since a public date), {IGNORE}")
        )
    try:
        values = pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError, OverflowError):  # its message quotes a value
        raise InputError(
            f"column {column.name!r} is to be numeric, but holds text. Clean it"
            + ("." if trained else ', list its categories as {"values": [...]} in the schema, or mark it {"ignore": true}.')
        ) from None
    if missing is not None:
        if isinstance(missing, int | float) and np.isnan(values).any():
            values = np.where(np.isnan(values), float(missing), values)
        wrong, what = np.isinf(values).any(), "infinite numbers"
    else:
        wrong, what = not np.isfinite(values).all(), "missing or infinite numbers"
    if wrong:
        remedy = "Fill them in as for training, or leave these rows out." if trained else f"Fill them in, {IGNORE}"
        if not trained and missing is None:
            remedy = (
                'Say in the schema what a missing one counts as, {"missing": 0} or another public number, or mark them with '
                f'{{"missing": "indicator"}}; fill in infinite ones, {IGNORE}'
            )
        raise NotFinite(what, remedy, [str(column.name)])
    return values


class NotFinite(InputError):
    """Columns with missing or infinite numbers."""

    def __init__(self, what: str, remedy: str, names: Sequence[str]) -> None:
        self.what, self.remedy, self.names = what, remedy, names
        several = "columns {} hold" if len(names) > 1 else "column {} holds"
        super().__init__(f"{several.format(', '.join(map(repr, names)))} {what}. {remedy}")


def dates(
    column: "pd.Series[Any]", *, missing: str | None = None, form: str | None = None, trained: bool = False
) -> "pd.Series[Any]":
    """Parse the column as dates. Missing ones count as `missing`, an ISO date, or stay missing if it is "indicator"."""
    import pandas as pd

    found, parsed = column, True
    if type_of(column) == "text":
        try:
            found = pd.to_datetime(column.astype(object), format=form or "ISO8601", errors="coerce")
            parsed = not (found.isna() & column.notna()).any()
        except (ValueError, TypeError, OverflowError):  # offsets of several time zones, for example
            parsed = False
    if type_of(found) != "dates" or not parsed:
        raise InputError(
            f"column {column.name!r} is to hold dates, but not all of it is written {form or 'like 2024-01-31'}. Clean it"
            + ("." if trained else ', say how dates are written as {"format": "%d.%m.%Y"} in the schema, or ignore it.')
        )
    if missing is None and found.isna().any():
        raise InputError(
            f"column {column.name!r} holds missing dates. "
            + ("Fill them in as for training." if trained else 'Say {"missing": "indicator"}, or a public date, in the schema.')
        )
    if missing is not None and missing != "indicator":
        found = found.fillna(pd.Timestamp(missing, tz=found.dt.tz))
    return found


def texts(values: "pd.Series[Any] | NDArray[Any]") -> NDArray[np.object_]:
    """Convert values to text: integers without a fraction, so that 1 and 1.0 are one category; a missing value is `MISSING`.

    >>> texts(np.array([1.0, 2.5, np.nan])).tolist()
    ['1', '2.5', '(missing)']
    """
    places, distinct = _distinct(values)
    return np.array([*distinct, MISSING], dtype=object)[places]  # place −1, a missing value, is the last


def codes(values: "pd.Series[Any] | NDArray[Any]", known: Sequence[str]) -> NDArray[np.int64]:
    """The position of each value in `known`, or −1. Booleans match in upper and lower case: True is "true".

    >>> codes(np.array(["yes", "no", "perhaps"]), ["no", "yes"]).tolist()
    [1, 0, -1]
    """
    places, distinct = _distinct(values)
    if str(values.dtype) in ("bool", "boolean"):
        distinct, known = [value.casefold() for value in distinct], [value.casefold() for value in known]
    position = {value: place for place, value in enumerate(known)}
    lookup = np.array([position.get(value, -1) for value in [*distinct, MISSING]], dtype=np.int64)
    return lookup[places]


def category_text(value: object) -> str:
    """Write a category as text."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_written(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns that have to be read as text: some known value would be parsed as another, or as missing.

    >>> as_written({"zip": ["01067", "80331"], "size": ["S", "M"], "stage": ["1", "2"], "pain": ["None", "Some"]})
    ['zip', 'pain']
    """
    return [name for name, values in columns.items() if _numbers_change(values) or _some_are_missing(values)]


def _numbers_change(values: Iterable[str]) -> bool:
    for value in values:
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isnan(number) or category_text(number) != value:
            return True
    return False


def _some_are_missing(values: Sequence[str]) -> bool:
    import pandas as pd

    file: Any = io.StringIO()
    csv.writer(file).writerows([("value",), *((value,) for value in values)])
    file.seek(0)
    return bool(pd.read_csv(file, skip_blank_lines=False).isna().to_numpy().any())


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Suggest the names that were perhaps meant, for the end of an error message."""
    known = list(known)
    compared = [other for other in known[:MOST_COMPARED] if max(len(name), len(other)) < MOST_COMPARED]
    near = difflib.get_close_matches(name, compared, n=3, cutoff=0.5)
    if near and not any(map(_is_number, known)):
        return f"Closest: {', '.join(near)}."
    return f"There are: {list_names(known)}."


def list_names(names: Sequence[str]) -> str:
    """List the first twenty names, for an error message."""
    if any(map(_is_number, names)):
        return "(not shown: some are numbers, as if the first row of data stood in the place of the names)"
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def check_names(path: Path, names: Iterable[str]) -> None:
    """Validate column names: not too many, not too long, no duplicates."""
    counts = Counter(names)
    if counts.total() > MOST_NAMED_COLUMNS:
        raise InputError(
            f"{path} has {counts.total()} columns, but at most {MOST_NAMED_COLUMNS} can have names. Use an npz or LIBSVM file."
        )
    if any(len(name) > MOST_NAME_CHARACTERS for name in counts):
        raise InputError(
            f"{path} has a column whose name is longer than {MOST_NAME_CHARACTERS} characters. Give it a shorter one."
        )
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"{path} names these columns more than once: {list_names(repeated)}. Give each its own name.")


def _distinct(values: "pd.Series[Any] | NDArray[Any]") -> tuple[NDArray[np.intp], list[str]]:
    """The distinct values as text, and each value's place among them: millions of rows have few categories."""
    import pandas as pd

    try:
        places, distinct = pd.factorize(values)
    except TypeError:
        name = getattr(values, "name", "the target")
        raise InputError(f"column {name!r} holds lists or other objects, which are no categories. Ignore it.") from None
    return places, [category_text(value) for value in distinct.tolist()]


# ---------------------------------------------------------------- tables


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


def target_numbers(target: NDArray[Any]) -> NDArray[np.float64]:
    """The target as numbers."""
    try:
        return np.asarray(target, dtype=float)
    except ValueError:
        raise InputError("the target holds text, so it cannot be regressed. Use --task classify.") from None
