"""Encodings: a frame's columns as a matrix whose entries lie in [−1, 1].

A numeric column with range [low, high] becomes clip((x − middle)/half, −1, 1); a categorical one becomes one indicator per
listed value. Ranges and values are public, or were estimated privately: an encoding reveals nothing else about any row. Encoded
rows are on a common scale already, so training scales them no further.
"""

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privopt.datasets.schema import Categorical, Ignored, Kind, Numeric, shortened
from privopt.datasets.table import codes, numbers
from privopt.errors import InputError, PrivoptWarning
from privopt.limits import MOST_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp

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

    columns: tuple[tuple[str, Numeric | Categorical], ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise InputError("no column is left to encode. Ignore fewer.")
        names = [name for name, _ in self.columns]
        if len(set(names)) < len(names):
            raise InputError(f"an encoding names column {Counter(names).most_common(1)[0][0]!r} more than once.")
        if (width := sum(_width(kind) for _, kind in self.columns)) > MOST_COLUMNS:
            raise InputError(f"the columns have {width} values in all; a model has at most {MOST_COLUMNS} features. List fewer.")

    @classmethod
    def of(cls, kinds: Mapping[str, Kind]) -> "Encoding":
        """Make the encoding of columns whose ranges and values are all known."""
        unknown = [name for name, kind in kinds.items() if not isinstance(kind, Numeric | Categorical | Ignored)]
        if unknown:
            raise InputError(f"nothing is known yet about {', '.join(map(repr, unknown))}. Declare or estimate them first.")
        return cls(tuple((name, kind) for name, kind in kinds.items() if isinstance(kind, Numeric | Categorical)))

    @property
    def names(self) -> tuple[str, ...]:
        """The features: a numeric column's name, or column=value."""
        return tuple(
            feature
            for name, kind in self.columns
            for feature in ([name] if isinstance(kind, Numeric) else [f"{name}={value}" for value in kind.values])
        )

    @property
    def listed(self) -> dict[str, tuple[str, ...]]:
        """The values of categorical columns."""
        return {name: kind.values for name, kind in self.columns if isinstance(kind, Categorical)}

    @property
    def numeric(self) -> tuple[int, ...]:
        """The places of the features that are numbers."""
        starts = [0, *accumulate(_width(kind) for _, kind in self.columns)]
        return tuple(start for start, (_, kind) in zip(starts, self.columns, strict=False) if isinstance(kind, Numeric))

    @property
    def row_bound(self) -> float:
        """√columns: each column contributes one entry of at most 1 to a row."""
        return math.sqrt(len(self.columns))

    @property
    def sparse(self) -> bool:
        """Whether matrices are CSR: there are many features, and most are indicators."""
        widths = [_width(kind) for _, kind in self.columns]
        indicators = sum(_width(kind) for _, kind in self.columns if isinstance(kind, Categorical))
        return sum(widths) > WIDE and 2 * indicators > sum(widths)

    def matrix(self, frame: "pd.DataFrame") -> "NDArray[np.float64] | sp.csr_matrix":
        """Encode the rows. A category that is not listed becomes zeros; a warning counts them by column."""
        missing = [name for name, _ in self.columns if name not in frame.columns]
        if missing:
            raise InputError(f"the data lack columns that the model was trained on: {', '.join(map(repr, missing))}.")
        rows = _Csr(len(frame), self.columns) if self.sparse else _Dense(len(frame), self.columns)
        unlisted: dict[str, int] = {}
        start = 0
        for place, (name, kind) in enumerate(self.columns):
            if isinstance(kind, Numeric):
                rows.put_numbers(place, start, _scale(numbers(frame[name], trained=True), kind))
            else:
                positions = codes(frame[name], kind.values)
                rows.put_indicators(place, start, positions)
                if count := int((positions < 0).sum()):
                    unlisted[name] = count
            start += _width(kind)
        if unlisted:
            counts = ", ".join(f"{name!r} ({count} of {len(frame)} rows)" for name, count in unlisted.items())
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


def _parse_entry(entry: object) -> tuple[str, Numeric | Categorical]:
    match entry:
        case {"name": str(name), "low": low, "high": high}:
            return name, Numeric(low, high)
        case {"name": str(name), "values": [*values]}:
            return name, Categorical(tuple(map(str, values)))
    raise InputError(f"{shortened(entry)} is not a column of an encoding; one has a name, and low and high or values.")


def _width(kind: Numeric | Categorical) -> int:
    return 1 if isinstance(kind, Numeric) else len(kind.values)


def _scale(values: NDArray[np.float64], kind: Numeric) -> NDArray[np.float64]:
    """Scale values to [−1, 1]; a range of width 0 keeps the column's unit."""
    from privopt.perexample.design import centre_and_scale

    centre, scale = centre_and_scale(np.asarray(kind.low, dtype=float), np.asarray(kind.high, dtype=float), centred=True)
    with np.errstate(over="ignore"):
        return np.clip((values - centre) / (scale or 1.0), -1.0, 1.0)


# ---------------------------------------------------------------- how rows are stored


class _Dense:
    def __init__(self, size: int, columns: tuple[tuple[str, Numeric | Categorical], ...]) -> None:
        self._rows = np.zeros((size, sum(_width(kind) for _, kind in columns)))

    def put_numbers(self, place: int, start: int, values: NDArray[np.float64]) -> None:
        self._rows[:, start] = values

    def put_indicators(self, place: int, start: int, positions: NDArray[np.int64]) -> None:
        listed = np.flatnonzero(positions >= 0)
        self._rows[listed, start + positions[listed]] = 1.0

    def build(self) -> NDArray[np.float64]:
        return self._rows


class _Csr:
    """Each row has one entry per column of the frame, so the arrays of a CSR matrix can be filled in place."""

    def __init__(self, size: int, columns: tuple[tuple[str, Numeric | Categorical], ...]) -> None:
        self._shape = (size, sum(_width(kind) for _, kind in columns))
        entries = size * len(columns)
        self._values = np.zeros((size, len(columns)))
        self._features = np.zeros((size, len(columns)), dtype=np.int32 if entries < 2**31 else np.int64)

    def put_numbers(self, place: int, start: int, values: NDArray[np.float64]) -> None:
        self._values[:, place], self._features[:, place] = values, start

    def put_indicators(self, place: int, start: int, positions: NDArray[np.int64]) -> None:
        self._values[:, place], self._features[:, place] = positions >= 0, start + np.maximum(positions, 0)

    def build(self) -> "sp.csr_matrix":
        import scipy.sparse as sp

        size, columns = self._values.shape
        starts = np.arange(size + 1, dtype=self._features.dtype) * columns
        matrix = sp.csr_matrix((self._values.ravel(), self._features.ravel(), starts), shape=self._shape)
        matrix.eliminate_zeros()  # an unlisted value was stored as 0
        return matrix
