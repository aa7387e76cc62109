"""Encodings: a frame's columns as a matrix whose entries lie in [−1, 1].

A numeric column with range [low, high] becomes clip((x − middle)/half, −1, 1), and, if missing numbers are marked, an indicator
of its own, beside which the number is 0. A categorical one becomes one indicator per listed value, and a date becomes its parts.
Ranges and values are public, or were estimated privately: an encoding reveals nothing else about any row. Encoded rows are on a
common scale already, so training scales them no further.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privopt.datasets.schema import (
    INDICATOR,
    Categorical,
    Date,
    Kind,
    Numeric,
    Schema,
    UnknownCategorical,
    UnknownNumeric,
    is_unknown,
    shortened,
)
from privopt.datasets.table import MISSING, Columns, NotFinite, as_written, codes, dates, numbers
from privopt.errors import InputError, PrivoptWarning
from privopt.limits import MOST_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp

    from privopt.perexample.columns import Basis

Known = Numeric | Categorical | Date
EPOCH = 2000.0  # ranges are found by powers of two from 0, which tell years apart near a public year only
WIDE = 50  # with more features than this, indicators are stored sparsely


@dataclass(frozen=True)
class Encoding:
    """How each column is encoded, in order; other columns are not read.

    **Guarantee** Any row of any frame has l2 norm at most `row_bound`: a public bound, without looking at the data.

    >>> encoding = Encoding((("age", Numeric(0, 100)), ("region", Categorical(("north", "south")))))
    >>> encoding.names
    ('age', 'region=north', 'region=south')
    >>> import pandas as pd
    >>> encoding.matrix(pd.DataFrame({"region": ["south"], "age": [75]})).tolist()
    [[0.5, 0.0, 1.0]]
    """

    columns: tuple[tuple[str, Known], ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise InputError("no column is left to encode. Ignore fewer.")
        names = [name for name, _ in self.columns]
        if len(set(names)) < len(names):
            raise InputError(f"an encoding names column {Counter(names).most_common(1)[0][0]!r} more than once.")
        if (width := sum(len(block) for _, block in self._blocks)) > MOST_COLUMNS:
            raise InputError(f"the columns have {width} values in all; a model has at most {MOST_COLUMNS} features. List fewer.")

    @classmethod
    def of(cls, kinds: Mapping[str, Kind]) -> "Encoding":
        """Make the encoding of columns whose ranges and values are all known."""
        if unknown := [name for name, kind in kinds.items() if is_unknown(kind)]:
            raise InputError(f"nothing is known yet about {', '.join(map(repr, unknown))}. Declare or estimate them first.")
        return cls(tuple((name, kind) for name, kind in kinds.items() if isinstance(kind, Known)))

    @property
    def _blocks(self) -> list[tuple[bool, tuple[str, ...]]]:
        """Features that one value of a row fills, in order: one number, or indicators of which one is 1 at most."""
        return [block for name, kind in self.columns for block in _blocks(name, kind)]

    @property
    def names(self) -> tuple[str, ...]:
        """The features: a numeric column's name, column=value, or column.part of a date."""
        return tuple(feature for _, features in self._blocks for feature in features)

    @property
    def text(self) -> list[str]:
        """The columns that have to be read as text."""
        listed = {name: kind.values for name, kind in self.columns if isinstance(kind, Categorical)}
        return as_written(listed) + [name for name, kind in self.columns if isinstance(kind, Date)]

    @property
    def numeric(self) -> tuple[int, ...]:
        """The places of the features that are numbers and may bend: those of a column that was not seen stay lines."""
        starts = accumulate((len(features) for _, features in self._blocks), initial=0)
        blocks = ((numeric, kind) for name, kind in self.columns for numeric, _ in _blocks(name, kind))
        placed = zip(starts, blocks, strict=False)
        return tuple(start for start, (numeric, kind) in placed if numeric and (not isinstance(kind, Numeric) or kind.seen))

    def features(self, basis: "Basis | None") -> tuple[str, ...]:
        """The names of what a linear model makes of the features; knots of hats are named in the columns' own units."""
        from privopt.perexample.columns import Hats

        if not isinstance(basis, Hats):
            return self.names
        ranges = {name: (float(kind.low), float(kind.high)) for name, kind in self.columns if isinstance(kind, Numeric)}
        dates = ((name, kind.years) for name, kind in self.columns if isinstance(kind, Date))
        ranges |= {f"{name}.year": (float(years.low), float(years.high)) for name, years in dates if years is not None}
        return tuple(basis.names(self.names, ranges))

    @property
    def row_bound(self) -> float:
        """√columns, where each part of a date counts as one: each contributes one entry of at most 1 to a row.

        A number and the indicator that it is missing are never both other than 0.
        """
        return math.sqrt(sum(len(kind.parts) if isinstance(kind, Date) else 1 for _, kind in self.columns))

    @property
    def sparse(self) -> bool:
        """Whether matrices are CSR: there are many features, and most are indicators."""
        width = len(self.names)
        return width > WIDE and 2 * sum(len(features) for numeric, features in self._blocks if not numeric) > width

    def matrix(self, frame: Any) -> "NDArray[np.float64] | sp.csr_matrix":
        """Encode the rows of a frame (pandas, polars, pyarrow).

        A category that is not listed becomes zeros; a warning counts them by column.
        """
        columns = Columns.of(frame)
        if missing := [name for name, _ in self.columns if name not in columns]:
            raise InputError(f"the data lack columns that the model was trained on: {', '.join(map(repr, missing))}.")
        blocks, unlisted = self._blocks, dict[str, int]()
        rows = (_Csr if self.sparse else _Dense)(len(columns), [len(features) for _, features in blocks])
        for name, kind in self.columns:
            for numeric, values in _fill(columns[name], kind):
                (rows.put_numbers if numeric else rows.put_indicators)(values)
                if isinstance(kind, Categorical) and (count := int((values < 0).sum())):
                    unlisted[name] = count
        if unlisted:
            counts = ", ".join(f"{name!r} ({count} of {len(columns)} rows)" for name, count in unlisted.items())
            warnings.warn(f"values that the encoding does not list count as none: {counts}.", PrivoptWarning, stacklevel=2)
        return rows.build()

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `from_json` reads back."""
        return {"columns": [{"name": name, **kind.to_json()} for name, kind in self.columns]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Encoding":
        """Read what `to_json` wrote."""
        entries = value.get("columns")
        if not isinstance(entries, list):
            raise InputError("an encoding is an object with a list 'columns'.")
        return cls(tuple(_parse_entry(entry) for entry in entries))


def encode_quietly(encoding: Encoding, frame: Any) -> Any:
    """Encode the rows of a frame, without a word about values that are not listed: how many there are is private."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)
        return encoding.matrix(frame)


def _parse_entry(entry: object) -> tuple[str, Known]:
    match entry:
        case {"name": str(name), "type": "date", **said}:
            kind = Schema.from_json({"columns": {name: {"type": "date", **said}}}).columns[name]
            if isinstance(kind, Date) and kind.known:
                return name, kind
        case {"name": str(name), "low": low, "high": high, **said} if set(said) <= {"missing"}:
            return name, UnknownNumeric(said.get("missing")).between(low, high)  # type: ignore[arg-type]  # which checks it
        case {"name": str(name), "values": [*values]}:
            return name, Categorical(tuple(map(str, values)))
    raise InputError(f"{shortened(entry)} is not a column of an encoding; one has a name, and low and high or values.")


# ---------------------------------------------------------------- what a column becomes


MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _blocks(name: str, kind: Known) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """The features of a column: whether they are one number, and their names."""
    match kind:
        case Numeric():
            yield True, (name,)
        case Categorical(values=values):
            yield False, tuple(f"{name}={value}" for value in values)
        case Date(parts=parts):
            for part in parts:
                named = {"month": MONTHS, "weekday": WEEKDAYS}.get(part)
                yield named is None, (f"{name}.{part}",) if named is None else tuple(f"{name}.{part}={value}" for value in named)
    if not isinstance(kind, Categorical) and kind.missing == INDICATOR:
        yield False, (f"{name}={MISSING}",)


def _fill(column: "pd.Series[Any]", kind: Known) -> Iterator[tuple[bool, NDArray[Any]]]:
    """The values of these features: scaled numbers, or positions of the indicator that is 1 (−1: none is)."""
    match kind:
        case Numeric(missing=missing):
            values = numbers(column, missing=missing, trained=True)
            absent = np.isnan(values)
            yield True, np.where(absent, 0.0, _scale(values, kind))
        case Categorical(values=listed):
            yield False, codes(column, listed)
            return
        case Date(missing=missing, years=years):
            found = dates(column, missing=missing, form=kind.format, trained=True)
            absent = found.isna().to_numpy()
            for part in kind.parts:
                part_values = getattr(found.dt, "day_of_week" if part == "weekday" else part).to_numpy(
                    dtype=np.float64, na_value=np.nan
                )
                if part == "year" and years is not None:
                    yield True, np.where(absent, 0.0, _scale(part_values, years))
                else:
                    yield False, np.where(absent, -1, np.nan_to_num(part_values) - (part == "month")).astype(np.int64)
    if kind.missing == INDICATOR:
        yield False, absent.astype(np.int64) - 1


def check_columns(table: "pd.DataFrame | Columns", kinds: Mapping[str, Kind]) -> None:
    """Refuse columns that are not of their kinds; all columns with missing numbers that nothing is said about at once."""
    found: list[NotFinite] = []
    for name, kind in kinds.items():
        try:
            _check_column(table[name], kind)
        except NotFinite as error:
            found.append(error)
    if found:
        first = found[0]
        names = [name for error in found for name in error.names if error.what == first.what]
        raise NotFinite(first.what, first.remedy, names)


def _check_column(column: "pd.Series[Any]", kind: Kind) -> None:
    """Refuse a column that is not of this kind: text among numbers, or a missing number that nothing is said about."""
    match kind:
        case Numeric(missing=missing) | UnknownNumeric(missing=missing):
            numbers(column, missing=missing)
        case Date():
            dates(column, missing=kind.missing, form=kind.format)
        case Categorical() | UnknownCategorical():
            codes(column, ())


def years(column: "pd.Series[Any]", kind: Date) -> NDArray[np.float64]:
    """The years of a column of dates, counted from `EPOCH`, to estimate their range; a missing one counts as `EPOCH`."""
    found = dates(column, missing=kind.missing, form=kind.format)
    return found.dt.year.to_numpy(dtype=np.float64, na_value=EPOCH) - EPOCH


def _scale(values: NDArray[np.float64], kind: Numeric) -> NDArray[np.float64]:
    """Scale values to [−1, 1]; a range of width 0 keeps the column's unit."""
    from privopt.perexample.design import centre_and_scale

    centre, scale = centre_and_scale(np.asarray(kind.low, dtype=float), np.asarray(kind.high, dtype=float), centred=True)
    with np.errstate(over="ignore"):
        return np.clip((values - centre) / (scale or 1.0), -1.0, 1.0)


# ---------------------------------------------------------------- how rows are stored


class _Dense:
    def __init__(self, size: int, widths: Sequence[int]) -> None:
        self._rows, self._starts = np.zeros((size, sum(widths))), accumulate(widths, initial=0)

    def put_numbers(self, values: NDArray[Any]) -> None:
        self._rows[:, next(self._starts)] = values

    def put_indicators(self, positions: NDArray[Any]) -> None:
        listed = np.flatnonzero(positions >= 0)
        self._rows[listed, next(self._starts) + positions[listed]] = 1.0

    def build(self) -> NDArray[np.float64]:
        return self._rows


class _Csr:
    """Each row has one entry per block of features, so the arrays of a CSR matrix can be filled in place."""

    def __init__(self, size: int, widths: Sequence[int]) -> None:
        self._shape, self._starts = (size, sum(widths)), enumerate(accumulate(widths, initial=0))
        entries = size * len(widths)
        self._values = np.zeros((size, len(widths)))
        self._features = np.zeros((size, len(widths)), dtype=np.int32 if entries < 2**31 else np.int64)

    def put_numbers(self, values: NDArray[Any]) -> None:
        place, start = next(self._starts)
        self._values[:, place], self._features[:, place] = values, start

    def put_indicators(self, positions: NDArray[Any]) -> None:
        place, start = next(self._starts)
        self._values[:, place], self._features[:, place] = positions >= 0, start + np.maximum(positions, 0)

    def build(self) -> "sp.csr_matrix":
        import scipy.sparse as sp

        size, columns = self._values.shape
        starts = np.arange(size + 1, dtype=self._features.dtype) * columns
        matrix = sp.csr_matrix((self._values.ravel(), self._features.ravel(), starts), shape=self._shape)
        matrix.eliminate_zeros()  # an unlisted value was stored as 0
        return matrix
