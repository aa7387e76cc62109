"""Columns: what a linear model makes of numeric columns, by public numbers, before they are framed.

`Clipped` columns stay one feature each, clipped to a range. `UnitRows` are divided by their length. `Hats` are a
piecewise-linear basis: a column with knots
k₁ < … < kₘ becomes m features, of which the j-th is 1 at kⱼ, 0 at every other knot and linear between them. A linear model of
hats is a piecewise-linear function of the column, constant beyond its outer knots. A row has at most two hats of a column that
are not 0; they are at most 1 in sum, so the row's part of a column has l2 length at most 1 whatever the number of knots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.perexample.grads import Vector

CHUNK = 1 << 18  # entries of a part that is worked on at a time


@dataclass(frozen=True, eq=False)
class Clipped:
    """Each column clipped to its range.

    >>> Clipped(np.array([0.0, -1.0]), np.array([1.0, 1.0])).transform(np.array([[2.0, -3.0], [0.5, 0.0]])).tolist()
    [[1.0, -1.0], [0.5, 0.0]]
    """

    low: Vector
    high: Vector

    @property
    def inputs(self) -> int:
        """The number of columns."""
        return len(self.low)

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.low)

    def transform(self, matrix: Vector | sp.csr_matrix) -> Vector:
        """The clipped columns, dense."""
        return np.clip(matrix if isinstance(matrix, np.ndarray) else matrix.toarray(), self.low, self.high)

    def names(self, names: Sequence[str]) -> Sequence[str]:
        """The features' names: those of the columns."""
        return names

    def to_json(self) -> dict[str, Any]:
        """What `basis_from_json` reads back."""
        return {"low": self.low.tolist(), "high": self.high.tolist()}


@dataclass(frozen=True)
class UnitRows:
    """Each row divided by its length, whatever its columns hold: a public bound that needs no survey. Rows of 0 stay.

    >>> UnitRows(2).transform(sp.csr_matrix([[3.0, 4.0], [0.0, 0.0]])).toarray().tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """

    inputs: int

    @property
    def width(self) -> int:
        """The number of features."""
        return self.inputs

    def transform(self, matrix: Vector | sp.csr_matrix) -> Vector | sp.csr_matrix:
        """The rows of length 1."""
        if isinstance(matrix, np.ndarray):
            matrix = sp.csr_matrix(matrix)
        if not matrix.has_canonical_format:  # entries of one column have to be added before lengths are taken
            matrix = matrix.copy()
            matrix.sum_duplicates()
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        with np.errstate(all="ignore"):  # a warning would tell something about the data
            largest = np.zeros(matrix.shape[0])
            np.maximum.at(largest, rows, np.abs(matrix.data))
            shares = matrix.data / largest[rows]  # whose squares neither under- nor overflow
            lengths = np.sqrt(np.bincount(rows, shares**2, minlength=matrix.shape[0]))
            values = np.where(largest[rows] > 0, shares / lengths[rows], 0.0)
        return sp.csr_matrix((values, matrix.indices, matrix.indptr), shape=matrix.shape)

    def names(self, names: Sequence[str]) -> Sequence[str]:
        """The features' names: those of the columns."""
        return names

    def to_json(self) -> dict[str, Any]:
        """What `basis_from_json` reads back."""
        return {"unit rows": self.inputs}


@dataclass(frozen=True)
class Knots:
    """The knots of a column, in increasing order, and the place of the one whose hat is left out; −1: none is.

    Hats of all knots add up to 1, as the intercept does, so one may be left out: where the column is at that knot, all of its
    features are 0, and sparse rows stay sparse.
    """

    at: tuple[float, ...]
    without: int = 0

    def __post_init__(self) -> None:
        if len(self.at) < 2 or not all(np.isfinite(self.at)) or any(np.diff(np.divide(self.at, 2)) <= 0):
            raise InputError("the knots of a column are two finite numbers or more, in increasing order.")
        if not -1 <= self.without < len(self.at):
            raise InputError("the hat that is left out is that of one of the knots, or of none (-1).")

    @property
    def shown(self) -> list[float]:
        """The knots that have a feature."""
        return [knot for place, knot in enumerate(self.at) if place != self.without]


@dataclass(frozen=True)
class Hats:
    """Columns with knots become hats, in order, and then come the columns that stay as they are.

    `knots` are those of each column; `None` is a column that stays, and () one without a feature.

    >>> hats = Hats((Knots((0.0, 10.0, 20.0)), None))
    >>> hats.names(["age", "member"])
    ['age at 10', 'age at 20', 'member']
    >>> hats.transform(np.array([[5.0, 1.0], [15.0, 0.0], [99.0, 0.0]])).toarray().tolist()
    [[0.5, 0.0, 1.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
    """

    knots: tuple[Knots | tuple[()] | None, ...]

    @property
    def inputs(self) -> int:
        """The number of columns."""
        return len(self.knots)

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(1 if knots is None else len(knots.shown) if isinstance(knots, Knots) else 0 for knots in self.knots)

    @property
    def complete(self) -> int:
        """The number of columns without a hat that is left out: as many features follow from the others and the intercept."""
        return sum(isinstance(knots, Knots) and knots.without < 0 for knots in self.knots)

    def transform(self, matrix: Vector | sp.csr_matrix) -> sp.csr_matrix:
        """The features, a part of the rows at a time."""
        placed = [(place, knots) for place, knots in enumerate(self.knots) if isinstance(knots, Knots)]
        kept = [place for place, knots in enumerate(self.knots) if knots is None]
        step = max(1, CHUNK // max(1, 2 * len(placed)))
        parts = [self._part(matrix[start : start + step], placed, kept) for start in range(0, max(1, matrix.shape[0]), step)]
        return sp.csr_matrix(sp.vstack(parts, format="csr")) if len(parts) > 1 else parts[0]

    def _part(self, matrix: Vector | sp.csr_matrix, placed: list[tuple[int, Knots]], kept: list[int]) -> sp.csr_matrix:
        size, width = matrix.shape[0], sum(len(knots.shown) for _, knots in placed)
        values, features = np.zeros((size, 2 * len(placed))), np.zeros((size, 2 * len(placed)), dtype=np.int32)
        first = 0
        for entry, (column, knots) in enumerate(placed):
            found: Any = matrix[:, [column]]
            left, share = _between(np.ravel(found.toarray() if sp.issparse(found) else found), np.array(knots.at))
            feature = first + np.arange(len(knots.at))
            if knots.without >= 0:
                feature = np.insert(feature[:-1], knots.without, -1)
            for side, weight in ((0, 1 - share), (1, share)):
                places = feature[left + side]
                values[:, 2 * entry + side] = np.where(places < 0, 0.0, weight)
                features[:, 2 * entry + side] = np.maximum(places, 0)
            first += len(knots.shown)
        starts = np.arange(size + 1) * values.shape[1]
        hats = sp.csr_matrix((values.ravel(), features.ravel(), starts), shape=(size, width))
        hats.eliminate_zeros()
        others = sp.csr_matrix(matrix[:, kept])
        return sp.csr_matrix(sp.hstack([hats, others], format="csr"))

    def names(self, names: Sequence[str], ranges: Mapping[str, tuple[float, float]] | None = None) -> list[str]:
        """The features' names: a column's and where its hat is 1, or the column's.

        `ranges` are those of columns that were put on [−1, 1]: their knots are named in the units that they had.
        """
        found = []
        for name, knots in zip(names, self.knots, strict=True):
            low, high = (ranges or {}).get(name, (-1.0, 1.0))
            if isinstance(knots, Knots):
                found += [f"{name} at {low * (1 - knot) / 2 + high * (1 + knot) / 2:.6g}" for knot in knots.shown]
        return found + [name for name, knots in zip(names, self.knots, strict=True) if knots is None]

    def to_json(self) -> dict[str, Any]:
        """What `basis_from_json` reads back."""
        parts = [
            {"at": list(knots.at), "without": knots.without} if isinstance(knots, Knots) else None if knots is None else {}
            for knots in self.knots
        ]
        return {"knots": parts}


Basis = Clipped | UnitRows | Hats


def basis_from_json(value: Any) -> Basis:
    """What `to_json` wrote."""
    match value:
        case {"low": [*low], "high": [*high]} if len(low) == len(high):
            ends = np.array(low, dtype=float), np.array(high, dtype=float)
            if np.isfinite(ends).all() and (ends[0] <= ends[1]).all():
                return Clipped(*ends)
        case {"unit rows": int(inputs)}:
            return UnitRows(inputs)
        case {"knots": [*parts]}:
            return Hats(tuple(map(_knots_from_json, parts)))
    raise InputError("what it says about columns cannot be read.")


def _knots_from_json(value: Any) -> Knots | tuple[()] | None:
    match value:
        case None:
            return None
        case {"at": [*at], "without": int(without)}:
            return Knots(tuple(map(float, at)), without)
        case {}:
            return ()
    raise InputError("what it says about knots cannot be read.")


def _between(values: Vector, knots: Vector) -> tuple[Vector, Vector]:
    """The knot to the left of each value, and how far the value is on the way to the next: 0 to 1, also beyond the knots."""
    left = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(knots) - 2)
    start, end = knots[left] / 2, knots[left + 1] / 2  # halves cannot overflow
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        return left, np.clip((values / 2 - start) / (end - start), 0.0, 1.0)
