"""Design matrices: the rows of a linear model, dense or CSR, scaled and extended without a copy.

A row is (x − centre)/scale, followed by the constant `intercept` if that is not 0. Centre and scale are folded into the
coefficients, so the user's matrix is not copied. Sparse rows are never made dense, so they have no centre. Everything is computed
in double precision: in single precision, rounding a sum over many rows moves it by more than one row does.

A `LimitedDesign` shortens rows that are longer than a public limit: its rows are framed rows × min(1, limit/length), so that the
constants of a loss hold for every row. A residual of at most r then gives a gradient of at most r × limit. A row that is not
finite becomes 0.
"""

import math
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.perexample.grads import Rows, Vector
from privopt.perexample.row_storage import CHUNK as CHUNK
from privopt.perexample.row_storage import Csr, Dense, Stored, centred_times


@dataclass(frozen=True)
class Frame:
    """Public numbers that put columns on a common scale: a framed row is (x − centre)/scale, then `intercept`."""

    centre: Vector | None = None
    scale: Vector | None = None
    intercept: float = 1.0

    @cached_property
    def changes_nothing(self) -> bool:
        """Whether framed rows equal the original ones."""
        return self.centre is None and self.scale is None and not self.intercept

    def unfold(self, coefficients: Vector) -> tuple[Vector, Vector]:
        """Convert coefficients of framed rows (outputs × width) to slopes and intercepts for the original rows."""
        slopes = coefficients[..., :-1] if self.intercept else coefficients
        constants = coefficients[..., -1] * self.intercept if self.intercept else np.zeros(coefficients.shape[:-1])
        if self.scale is not None:
            slopes = slopes / self.scale
        if self.centre is not None:
            constants = constants - slopes @ self.centre
        return slopes, constants


def centre_and_scale(low: Vector, high: Vector, centred: Vector | bool) -> tuple[Vector, Vector]:
    """The numbers that put the ranges of columns on [−1, 1]; the scale of a range of width 0 is 0.

    A column that is centred has the middle and the half width of its range, another one 0 and its largest magnitude.

    >>> centre_and_scale(np.array([2.0, 0.0]), np.array([6.0, 6.0]), np.array([True, False]))
    (array([4., 0.]), array([2., 6.]))
    """
    half_low, half_high = low / 2, high / 2  # which cannot overflow
    centre = np.where(centred, half_low + half_high, 0.0)
    return centre, np.where(centred, half_high - half_low, np.maximum(np.abs(low), np.abs(high)))


class Design:
    """The rows of a linear model, and their norms."""

    limit = np.inf  # the largest possible norm of a row

    def __init__(self, matrix: Vector | sp.csr_array | sp.csr_matrix, frame: Frame) -> None:
        if sp.issparse(matrix) and frame.centre is not None:
            raise InputError("sparse rows cannot be centred without making them dense: give column ranges around 0.")
        matrix = matrix.astype(float, copy=False)
        self._matrix = Csr(matrix) if sp.issparse(matrix) else Dense(matrix)
        self.frame = frame
        self._norms: dict[int, Vector] = {}
        self._longest: dict[int, float] = {}
        self._diagonal: tuple[int, Vector] | None = None
        self._scaled: Vector | None = None
        self._unusable = ~np.isfinite(self._matrix.norms(1, frame.centre, frame.scale))
        self._some_unusable = bool(self._unusable.any())
        if self._some_unusable:  # a clip leaves them out, but 0 × inf would make the sum NaN
            self._matrix = self._matrix.without(self._unusable)

    def __len__(self) -> int:
        return self._matrix.shape[0]

    @property
    def width(self) -> int:
        """The number of coefficients of one output."""
        return self._matrix.shape[1] + (self.frame.intercept != 0)

    def norms(self, order: int) -> Vector:
        """The norm of each framed row, computed once; infinite for a row that is not finite.

        Sums of centred rows cancel. A row that is almost 0, with a huge weight, would cost the others digits. So each norm is at
        least a millionth of the centre's, which bounds the weights and with them the rounding.
        """
        if order not in self._norms:
            self._norms[order] = self.framed_norms(self._matrix, None, order, self.frame.scale, 1.0)
        return self._norms[order]

    def longest(self, order: int) -> float:
        """The largest of the norms."""
        if order not in self._longest:
            self._longest[order] = float(self.norms(order).max(initial=0.0))
        return self._longest[order]

    def framed_norms(self, matrix: Stored, rows: Rows, order: int, scale: Vector | None, constant: float) -> Vector:
        """Norms of rows of the design, with another scale of the columns and with `constant` × the intercept."""
        centre = self.frame.centre
        norms = matrix.norms(order, centre, scale)
        parts = [norms, np.full(len(norms), abs(constant * self.frame.intercept))]
        if centre is not None:
            parts.append(np.full(len(norms), 1e-6 * np.linalg.norm(centre if scale is None else centre / scale, ord=order)))
        total = reduce(np.hypot if order == 2 else np.add, parts)
        return np.where(self._unusable if rows is None else self._unusable[rows], np.inf, total)

    def absolute_sum(self, weights: Vector) -> Vector:
        """Σ weight × |row|, over all rows and without the intercept."""
        total = self._matrix.absolute_sum(self.frame.centre, weights)
        return total if self.frame.scale is None else total / self.frame.scale

    def scaled_norms(self, matrix: Stored, rows: Rows, diagonal: Vector, order: int) -> Vector:
        """Norms of diagonal ⊙ framed row, for rows of the design; cached for all rows when a diagonal is used a second time."""
        if self._diagonal is None or self._diagonal[0] != order or not _same(self._diagonal[1], diagonal):
            self._diagonal, self._scaled = (order, diagonal.copy()), None
            norms = self._weighted_norms(matrix, rows, np.abs(diagonal), order)
            self._scaled = norms if rows is None else None
            return norms
        if self._scaled is None:
            self._scaled = self._weighted_norms(self._matrix, None, np.abs(diagonal), order)
        return self._scaled if rows is None else self._scaled[rows]

    def _weighted_norms(self, matrix: Stored, rows: Rows, weights: Vector, order: int) -> Vector:
        """Norms of weights ⊙ framed row: by sums of squares; where those would lose digits, and for l1, entry by entry."""
        if weights.ndim == 2 and (weights == weights[:1]).all():  # shared by all outputs
            norms = self._weighted_norms(matrix, rows, weights[0], order)
            return np.broadcast_to(norms[:, None], (len(norms), len(weights)))
        columns, constants = (weights[..., :-1], weights[..., -1]) if self.frame.intercept else (weights, 0 * weights[..., 0])
        if self.frame.scale is not None:
            columns = columns / self.frame.scale
        if order == 1:
            return self._careful_norms(matrix, rows, columns, constants, order)
        total = matrix.squares(self.frame.centre, columns.T) + (constants * self.frame.intercept) ** 2
        if self.frame.centre is not None:  # as in `norms`
            total += 1e-12 * ((columns * self.frame.centre) ** 2).sum(axis=-1)
        norms = np.sqrt(total)
        all_sure = math.isfinite(total.sum())
        if self._some_unusable:
            norms[self._unusable if rows is None else self._unusable[rows]] = np.inf
        if not all_sure:
            lossy = np.flatnonzero(~np.isfinite(total).reshape(len(norms), -1).all(axis=1))
            own = lossy if rows is None else rows[lossy]
            norms[lossy] = self._careful_norms(self._matrix.take(own), own, columns, constants, order)
        return norms

    def _careful_norms(self, matrix: Stored, rows: Rows, columns: Vector, constants: Vector, order: int) -> Vector:
        if columns.ndim == 2:
            each = [self._careful_norms(matrix, rows, *pair, order) for pair in zip(columns, constants, strict=True)]
            return np.stack(each, axis=1)
        return self.framed_norms(matrix, rows, order, 1 / columns, float(constants))

    def take(self, rows: Rows) -> "Batch":
        """These rows; `None` is all of them, without a copy."""
        return Batch(self, rows)

    def framed(self, rows: Vector) -> Stored:
        """A framed copy of a few rows that are multiplied many times."""
        return self._matrix.framed(rows, self.frame.centre, self.frame.scale, self.frame.intercept)

    def framed_values(self, rows: Vector) -> Vector | sp.csr_array:
        """A framed copy of a few rows, as an array or as a CSR array. A row that is not finite is as if it were 0."""
        return self._matrix.framed_values(rows, self.frame.centre, self.frame.scale, self.frame.intercept)


def _same(one: Vector, other: Vector) -> bool:
    """Whether two vectors are equal. The last element, of the intercept, is compared first: it changes most often."""
    return one.shape == other.shape and (not one.size or one.item(-1) == other.item(-1)) and bool((one == other).all())


class Batch:
    """Some rows of a design: its products with coefficients and with weights."""

    def __init__(self, design: Design, rows: Rows) -> None:
        self._matrix = design._matrix if rows is None else design._matrix.take(rows)
        self._design, self._rows, self._frame = design, rows, design.frame
        self._norms: dict[int, Vector] = {}

    def norms(self, order: int) -> Vector:
        """The norm of each framed row."""
        if order not in self._norms:  # two terms of a round ask for them
            norms = self._design.norms(order)
            self._norms[order] = norms if self._rows is None else norms.take(self._rows)
        return self._norms[order]

    def longest(self, order: int) -> float:
        """An upper bound of the rows' norms."""
        return self._design.longest(order)

    def scaled_norms(self, diagonal: Vector, order: int) -> Vector:
        """The norm of diagonal ⊙ framed row: (rows,) for a vector, (rows, outputs) for outputs × width."""
        return self._design.scaled_norms(self._matrix, self._rows, diagonal, order)

    def scores(self, coefficients: Vector) -> Vector:
        """Row times coefficients: (rows,) for a vector, (rows, outputs) for outputs × width."""
        if self._frame.changes_nothing:
            return self._matrix.times(coefficients.T)
        slopes, constants = self._frame.unfold(coefficients)
        return self._matrix.times(slopes.T) + constants

    def weighted_sum(self, weights: Vector) -> Vector:
        """Σ weight × row: (width,) for a weight per row, (outputs, width) for several."""
        centre = self._frame.centre
        total = self._matrix.transposed_times(weights) if centre is None else centred_times(self._matrix, weights, centre)
        return self._framed(total.T, weights.sum(axis=0))

    @property
    def is_dense(self) -> bool:
        """Whether there are `segment_sums`."""
        return isinstance(self._matrix, Dense)

    def segment_sums(self, weights: Vector, ends: Vector, first: int = 0) -> Vector:
        """Σ weight × row within segments of the rows from `first` on: (segments, width), or (outputs, segments, width).

        A segment is the rows from one of `ends` to the next. Its sum has the rounding of Σ |weight| × (|row| + |centre|).
        """
        assert isinstance(self._matrix, Dense)
        size, segments, outputs = len(weights), len(ends) - 1, weights.shape[1:]
        places, starts = np.arange(size), ends
        if outputs:
            places = np.tile(places, outputs[0])
            starts = np.append(np.add.outer(np.arange(outputs[0]) * size, ends[:-1]), size * outputs[0])
        sums = sp.csr_array((weights.T.ravel(), places, starts), (len(starts) - 1, size))
        total, constants = sums @ self._matrix.rows(first, first + size).values, sums @ np.ones(size)
        if self._frame.centre is not None:
            total -= np.multiply.outer(constants, self._frame.centre)
        return self._framed(total, constants).reshape(*outputs, segments, -1)

    def _framed(self, total: Vector, constants: Vector) -> Vector:
        """Sums of centred rows in the frame's scale, with the intercept's sum."""
        if self._frame.scale is not None:
            total = total / self._frame.scale
        if not self._frame.intercept:
            return total
        extended = np.empty((*total.shape[:-1], total.shape[-1] + 1))
        extended[..., :-1], extended[..., -1] = total, constants * self._frame.intercept
        return extended


# ---------------------------------------------------------------- rows of bounded length


class LimitedDesign(Design):
    """A design whose rows have norms of at most `limit`.

    >>> design = LimitedDesign(np.array([[3.0, 4.0], [0.3, 0.4], [np.inf, 0.0]]), Frame(intercept=0.0), limit=1.0)
    >>> design.take(None).scores(np.array([1.0, 0.0])).round(3).tolist()
    [0.6, 0.3, 0.0]
    """

    def __init__(self, matrix: Vector | sp.csr_array | sp.csr_matrix, frame: Frame, limit: float) -> None:
        if not (math.isfinite(limit) and limit > 0):
            raise InputError(f"limit is {limit}, but the largest norm of a row is a finite number > 0.")
        super().__init__(matrix, frame)
        self.limit = limit
        self.shares = limit / np.maximum(self.norms(2), limit)  # 0 for a row that is not finite
        self.products = self._matrix.compact() if isinstance(self._matrix, Dense) else self._matrix

    def take(self, rows: Rows) -> "LimitedBatch":
        return LimitedBatch(self, rows)


class LimitedBatch(Batch):
    """Some rows of a limited design."""

    def __init__(self, design: LimitedDesign, rows: Rows) -> None:
        super().__init__(design, rows)
        self._shares = design.shares if rows is None else design.shares[rows]
        self._stored = self._matrix  # for norms, which use the centre
        if rows is None:
            self._matrix = design.products

    def norms(self, order: int) -> Vector:
        return _scale_rows(super().norms(order), self._shares)

    def scaled_norms(self, diagonal: Vector, order: int) -> Vector:
        return _scale_rows(self._design.scaled_norms(self._stored, self._rows, diagonal, order), self._shares)

    def scores(self, coefficients: Vector) -> Vector:
        return _scale_rows(super().scores(coefficients), self._shares)

    def weighted_sum(self, weights: Vector) -> Vector:
        return super().weighted_sum(_scale_rows(weights, self._shares))


def _scale_rows(values: Vector, shares: Vector) -> Vector:
    """Each row's values × its share; 0 for a share of 0, even if a value is infinite."""
    product: Vector = (values.T * shares).T
    return np.where((shares == 0).reshape(-1, *[1] * (product.ndim - 1)), 0.0, product) if (shares == 0).any() else product
