"""Design matrices: the rows of a linear model, dense or CSR, scaled and extended without a copy.

A row is (x − centre)/scale, followed by the constant `intercept` if that is not 0. Centre and scale are folded into the
coefficients, so the user's matrix is used as it is; sparse rows are never made dense, and so have no centre. Everything is
computed in double precision: in single precision, rounding a sum over many rows moves it by more than one row does.
"""

import itertools
from dataclasses import dataclass
from functools import reduce

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.perexample.grads import Rows, Vector

CHUNK = 1 << 18  # elements at a time where a copy is needed: two megabytes


@dataclass(frozen=True)
class Frame:
    """Public numbers that put columns on a common scale: a row is (x − centre)/scale, then `intercept`."""

    centre: Vector | None = None
    scale: Vector | None = None
    intercept: float = 1.0

    def unfold(self, coefficients: Vector) -> tuple[Vector, Vector]:
        """Coefficients of framed rows (outputs × width) as slopes and intercepts for the original ones."""
        slopes = coefficients[..., :-1] if self.intercept else coefficients
        constants = coefficients[..., -1] * self.intercept if self.intercept else np.zeros(coefficients.shape[:-1])
        if self.scale is not None:
            slopes = slopes / self.scale
        if self.centre is not None:
            constants = constants - slopes @ self.centre
        return slopes, constants


class Design:
    """The rows of a linear model, and their norms."""

    def __init__(self, matrix: Vector | sp.csr_array | sp.csr_matrix, frame: Frame) -> None:
        if sp.issparse(matrix) and frame.centre is not None:
            raise InputError("sparse rows cannot be centred without making them dense: give column ranges around 0.")
        matrix = matrix.astype(float, copy=False)
        self._matrix = _Csr(matrix) if sp.issparse(matrix) else _Dense(matrix)
        self.frame = frame
        self._norms: dict[int, Vector] = {}
        self._unusable = ~np.isfinite(self._matrix.norms(1, frame))
        if self._unusable.any():  # their norms are infinite, so that a clip leaves them out; 0 × inf must not spoil the sum
            self._matrix = self._matrix.without(self._unusable)

    def __len__(self) -> int:
        return self._matrix.shape[0]

    @property
    def width(self) -> int:
        """How many coefficients one output has."""
        return self._matrix.shape[1] + (self.frame.intercept != 0)

    def norms(self, order: int) -> Vector:
        """The norm of each framed row, computed once; infinite for a row that is not finite.

        Sums of centred rows cancel, and lose digits to a row that is nearly 0 under a huge weight. So no row counts as shorter
        than a millionth of the centre: its weight is then bounded, and with it what it can round away.
        """
        if order not in self._norms:
            self._norms[order] = self.framed_norms(self._matrix, None, order, self.frame.scale, 1.0)
        return self._norms[order]

    def framed_norms(
        self, matrix: "_Dense | _Csr | _CsrRows", rows: Rows, order: int, scale: Vector | None, constant: float
    ) -> Vector:
        """Norms of rows of the design, in columns of another scale and with `constant` × the intercept."""
        centre = self.frame.centre
        norms = matrix.norms(order, Frame(centre, scale, 0.0))
        parts = [norms, np.full(len(norms), abs(constant * self.frame.intercept))]
        if centre is not None:
            parts.append(np.full(len(norms), 1e-6 * np.linalg.norm(centre if scale is None else centre / scale, ord=order)))
        whole = reduce(np.hypot if order == 2 else np.add, parts)
        return np.where(self._unusable if rows is None else self._unusable[rows], np.inf, whole)

    def take(self, rows: Rows) -> "Batch":
        """These rows; `None` is all of them, without a copy."""
        return Batch(self, rows)


class Batch:
    """Some rows of a design: its products with coefficients and with weights."""

    def __init__(self, design: Design, rows: Rows) -> None:
        self._matrix = design._matrix if rows is None else design._matrix.take(rows)
        self._design, self._rows, self._frame = design, rows, design.frame

    def norms(self, order: int) -> Vector:
        """The norm of each framed row."""
        norms = self._design.norms(order)
        return norms if self._rows is None else norms[self._rows]

    def scaled_norms(self, diagonal: Vector, order: int) -> Vector:
        """The norm of diagonal ⊙ framed row: (rows,) for a vector, (rows, outputs) for outputs × width."""
        if diagonal.ndim == 2:
            if (diagonal == diagonal[:1]).all():  # shared by all outputs
                return np.broadcast_to(self.scaled_norms(diagonal[0], order)[:, None], (self._matrix.shape[0], len(diagonal)))
            return np.stack([self.scaled_norms(row, order) for row in diagonal], axis=1)
        scale = 1.0 if self._frame.scale is None else self._frame.scale
        with np.errstate(divide="ignore"):
            weights = np.abs(diagonal)
            if not self._frame.intercept:
                return self._design.framed_norms(self._matrix, self._rows, order, scale / weights, 0.0)
            return self._design.framed_norms(self._matrix, self._rows, order, scale / weights[:-1], float(weights[-1]))

    def scores(self, coefficients: Vector) -> Vector:
        """Row times coefficients: (rows,) for a vector, (rows, outputs) for outputs × width."""
        slopes, constants = self._frame.unfold(coefficients)
        return self._matrix.times(slopes.T) + constants

    def weighted_sum(self, weights: Vector) -> Vector:
        """Σ weight × row: (width,) for a weight per row, (outputs, width) for several."""
        frame = self._frame
        total = self._matrix.transposed_times(weights).T
        sums = weights.sum(axis=0)
        if frame.centre is not None:
            total = total - np.multiply.outer(sums, frame.centre)
        if frame.scale is not None:
            total = total / frame.scale
        if frame.intercept:
            total = np.concatenate([total, np.asarray(sums * frame.intercept)[..., None]], axis=-1)
        return total


class _Dense:
    def __init__(self, values: Vector) -> None:
        self._values = values
        self.shape = (int(values.shape[0]), int(values.shape[1]))

    def take(self, rows: Vector) -> "_Dense":
        return _Dense(self._values[rows])

    def without(self, rows: Vector) -> "_Dense":
        return _Dense(np.where(rows[:, None], 0.0, self._values))

    def times(self, slopes: Vector) -> Vector:
        product: Vector = self._values @ slopes
        return product

    def transposed_times(self, weights: Vector) -> Vector:
        product: Vector = self._values.T @ weights
        return product

    def norms(self, order: int, frame: Frame) -> Vector:
        total = np.empty(self.shape[0])
        step = max(1, CHUNK // max(1, self.shape[1]))
        with np.errstate(all="ignore"):
            for start in range(0, len(total), step):
                chunk = self._values[start : start + step]
                if frame.centre is not None:
                    chunk = chunk - frame.centre
                if frame.scale is not None:
                    chunk = chunk / frame.scale
                total[start : start + step] = _norms(np.abs(chunk), order)
        return total


class _Csr:
    def __init__(self, matrix: sp.csr_array | sp.csr_matrix) -> None:
        if not matrix.has_canonical_format:  # an entry stored in two parts has a larger norm than its parts
            matrix = matrix.copy()
            matrix.sum_duplicates()
        self._matrix = matrix
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))

    def take(self, rows: Vector) -> "_CsrRows":
        return _CsrRows(self._matrix, rows)

    def without(self, rows: Vector) -> "_Csr":
        matrix = self._matrix.copy()
        matrix.data[np.repeat(rows, np.diff(matrix.indptr))] = 0.0
        return _Csr(matrix)

    def times(self, slopes: Vector) -> Vector:
        product: Vector = self._matrix @ slopes
        return product

    def transposed_times(self, weights: Vector) -> Vector:
        product: Vector = self._matrix.T @ weights
        return product

    def norms(self, order: int, frame: Frame) -> Vector:
        starts, size = self._matrix.indptr, self.shape[0]
        total = np.zeros(size)
        edges = np.searchsorted(starts, np.arange(0, int(starts[-1]) + CHUNK, CHUNK))
        for first, after in itertools.pairwise(np.unique([0, *edges.clip(max=size), size])):
            part = slice(starts[first], starts[after])
            row_of = np.repeat(np.arange(after - first), np.diff(starts[first : after + 1]))
            entries, columns = self._matrix.data[part], self._matrix.indices[part]
            total[first:after] = _sparse_norms(entries, columns, row_of, after - first, order, frame)
        return total


class _CsrRows:
    """A few rows of a CSR matrix. scipy's own row indexing checks for longer than these sums take."""

    def __init__(self, matrix: sp.csr_array | sp.csr_matrix, rows: Vector) -> None:
        starts, lengths = matrix.indptr[rows], matrix.indptr[rows + 1] - matrix.indptr[rows]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        self._data, self._columns = matrix.data[places], matrix.indices[places]
        self._row_of = np.repeat(np.arange(len(rows)), lengths)
        self.shape = (len(rows), int(matrix.shape[1]))

    def times(self, slopes: Vector) -> Vector:
        if slopes.ndim == 2:
            return np.stack([self.times(column) for column in slopes.T], axis=1)
        return np.bincount(self._row_of, self._data * slopes[self._columns], minlength=self.shape[0])

    def transposed_times(self, weights: Vector) -> Vector:
        if weights.ndim == 2:
            return np.stack([self.transposed_times(column) for column in weights.T], axis=1)
        return np.bincount(self._columns, self._data * weights[self._row_of], minlength=self.shape[1])

    def norms(self, order: int, frame: Frame) -> Vector:
        return _sparse_norms(self._data, self._columns, self._row_of, self.shape[0], order, frame)


def _sparse_norms(entries: Vector, columns: Vector, row_of: Vector, rows: int, order: int, frame: Frame) -> Vector:
    """Norms of rows that are given by their entries."""
    with np.errstate(all="ignore"):
        sizes = np.abs(entries) / (1.0 if frame.scale is None else frame.scale[columns])
        largest = np.ones(rows)
        if order == 2:  # as in `_norms`
            largest[:] = 0.0
            np.maximum.at(largest, row_of, sizes)
            largest[largest == 0] = 1.0
            sizes = (sizes / largest[row_of]) ** 2
        sums = np.bincount(row_of, sizes, minlength=rows)
        return sums if order == 1 else largest * np.sqrt(sums)


def _norms(sizes: Vector, order: int) -> Vector:
    """Norms of rows of absolute values; the squares of tiny numbers would be 0, and those of huge ones infinite."""
    if order == 1:
        return sizes.sum(axis=1)
    largest = sizes.max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    return unit * np.sqrt(((sizes / unit[:, None]) ** 2).sum(axis=1))
