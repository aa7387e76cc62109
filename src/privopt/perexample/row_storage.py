"""Storage of the rows of a linear model: dense, CSR, or a few rows of a CSR matrix; sparse rows have no centre.

`norms` are accurate for any row. `squares` are faster; they are not finite where they may have lost digits because entries are
too small or too large to be squared: where a sum of squares is not above `SURE`.
"""

import itertools

import numpy as np
import scipy.sparse as sp

from privopt.perexample.grads import Vector

CHUNK = 1 << 18  # elements that are copied at a time: two megabytes
CACHED = 1 << 16  # elements that are copied at a time to stay in the processor's cache
EXACT = 1 << 10  # rows whose sum loses few digits
SURE = 1e-280
SPAN = 1e-120  # ratio of the smallest to the largest weight whose squares lose no digits


class Dense:
    """Rows of an array."""

    def __init__(self, values: Vector) -> None:
        self.values = values
        self.shape = (int(values.shape[0]), int(values.shape[1]))

    def take(self, rows: Vector) -> "Dense":
        return Dense(self.values.take(rows, axis=0))

    def without(self, rows: Vector) -> "Dense":
        return Dense(np.where(rows[:, None], 0.0, self.values))

    def framed(self, rows: Vector, centre: Vector | None, scale: Vector | None, intercept: float) -> "Dense":
        return Dense(self.framed_values(rows, centre, scale, intercept))

    def framed_values(self, rows: Vector, centre: Vector | None, scale: Vector | None, intercept: float) -> Vector:
        """(row − centre)/scale, and then the intercept unless that is 0."""
        values = self.values.take(rows, axis=0) - (0.0 if centre is None else centre)
        values /= 1.0 if scale is None else scale
        return np.hstack([values, np.full((len(rows), 1), intercept)]) if intercept else values

    def rows(self, start: int, stop: int) -> "Dense":
        return Dense(self.values[start:stop])

    def times(self, slopes: Vector) -> Vector:
        product: Vector = self.values @ slopes
        return product

    def transposed_times(self, weights: Vector) -> Vector:
        product: Vector = self.values.T @ weights
        return product

    def compact(self) -> "Dense | Csr":
        """The same rows for many products: as CSR if most entries are 0."""
        few = 2 * np.count_nonzero(self.values) < self.values.size
        return Csr(sp.csr_array(self.values)) if few else self

    def norms(self, order: int, centre: Vector | None, scale: Vector | None) -> Vector:
        """Norms of (row − centre)/scale."""
        total = np.empty(self.shape[0])
        step = max(1, CHUNK // max(1, self.shape[1]))
        with np.errstate(all="ignore"):
            for start in range(0, len(total), step):
                chunk = self.values[start : start + step]
                if centre is not None:
                    chunk = chunk - centre
                if scale is not None:
                    chunk = chunk / scale
                total[start : start + step] = lengths(np.abs(chunk), order)
        return total

    def squares(self, centre: Vector | None, weights: Vector) -> Vector:
        """Σ (weight × (entry − centre))²: (rows,) for a vector of weights, (rows, outputs) for columns × outputs."""
        squared, unit = _squared(weights)
        step = max(1, CACHED // max(1, self.shape[1]))
        if self.shape[0] <= step:  # for a few rows the loop takes longer than the sums
            entries = self.values if centre is None else self.values - centre
            return _scaled_back((entries * entries) @ squared, unit)
        total = np.empty((self.shape[0], *weights.shape[1:]))
        buffer = np.empty((min(step, self.shape[0]), self.shape[1]))
        for start in range(0, len(total), step):
            chunk = self.values[start : start + step]
            part = buffer[: len(chunk)]
            if centre is not None:
                chunk = np.subtract(chunk, centre, out=part)
            np.matmul(np.multiply(chunk, chunk, out=part), squared, out=total[start : start + step])
        return _scaled_back(total, unit)

    def absolute_sum(self, centre: Vector | None, weights: Vector) -> Vector:
        """Σ weight × |row − centre|."""
        total = np.zeros(self.shape[1])
        step = max(1, CHUNK // max(1, self.shape[1]))
        for start in range(0, len(weights), step):
            chunk = self.values[start : start + step]
            total += weights[start : start + step] @ np.abs(chunk if centre is None else chunk - centre)
        return total


class Csr:
    """All rows of a CSR matrix."""

    def __init__(self, matrix: sp.csr_array | sp.csr_matrix) -> None:
        if not matrix.has_canonical_format:  # duplicates have to be added before norms are taken
            matrix = matrix.copy()
            matrix.sum_duplicates()
        self._matrix, self._transposed = matrix, matrix.T  # a view that takes longer to create than a small product
        self._places: tuple[Vector, Vector] | None = None  # the end and the number of entries of each row
        self._squares: sp.csr_array | sp.csr_matrix | None = None
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))

    def take(self, rows: Vector) -> "CsrRows":
        if self._places is None:
            starts = self._matrix.indptr.astype(np.intp)
            self._places = starts[1:], np.diff(starts)
        return CsrRows(self._matrix, *self._places, rows)

    def framed(self, rows: Vector, centre: Vector | None, scale: Vector | None, intercept: float) -> "CsrRows":
        return Csr(self.framed_values(rows, centre, scale, intercept)).take(np.arange(len(rows)))

    def framed_values(self, rows: Vector, centre: Vector | None, scale: Vector | None, intercept: float) -> sp.csr_array:
        """row/scale, and then the intercept unless that is 0."""
        taken = sp.csr_array(self._matrix[rows])
        taken.data /= 1.0 if scale is None else scale[taken.indices]
        column = sp.csr_array(np.full((len(rows), 1), intercept))
        return sp.csr_array(sp.hstack([taken, column], format="csr")) if intercept else taken

    def without(self, rows: Vector) -> "Csr":
        matrix = self._matrix.copy()
        matrix.data[np.repeat(rows, np.diff(matrix.indptr))] = 0.0
        return Csr(matrix)

    def times(self, slopes: Vector) -> Vector:
        product: Vector = self._matrix @ slopes
        return product

    def transposed_times(self, weights: Vector) -> Vector:
        product: Vector = self._transposed @ weights
        return product

    def norms(self, order: int, centre: Vector | None, scale: Vector | None) -> Vector:
        """Norms of row/scale."""
        starts, size = self._matrix.indptr, self.shape[0]
        total = np.zeros(size)
        edges = np.searchsorted(starts, np.arange(0, int(starts[-1]) + CHUNK, CHUNK))
        for first, after in itertools.pairwise(np.unique([0, *edges.clip(max=size), size])):
            part = slice(starts[first], starts[after])
            row_of = np.repeat(np.arange(after - first), np.diff(starts[first : after + 1]))
            entries, columns = self._matrix.data[part], self._matrix.indices[part]
            total[first:after] = _sparse_norms(entries, columns, row_of, after - first, order, scale)
        return total

    def squares(self, centre: Vector | None, weights: Vector) -> Vector:
        """Σ (weight × entry)²; the squares of the entries are cached."""
        if self._squares is None:
            matrix = self._matrix
            self._squares = type(matrix)((matrix.data**2, matrix.indices, matrix.indptr), shape=matrix.shape)
        squared, unit = _squared(weights)
        return _scaled_back(self._squares @ squared, unit)

    def absolute_sum(self, centre: Vector | None, weights: Vector) -> Vector:
        """Σ weight × |row|."""
        matrix = self._matrix
        return np.bincount(matrix.indices, np.abs(matrix.data) * np.repeat(weights, np.diff(matrix.indptr)), self.shape[1])


class CsrRows:
    """A few rows of a CSR matrix. (The checks of scipy's row indexing take longer than these sums.)"""

    def __init__(self, matrix: sp.csr_array | sp.csr_matrix, ends: Vector, lengths: Vector, rows: Vector) -> None:
        own = lengths.take(rows)
        self._row_of = np.arange(len(rows)).repeat(own)
        places = (ends.take(rows) - own.cumsum()).repeat(own)
        places += np.arange(len(places))
        self._data, self._columns = matrix.data.take(places), matrix.indices.take(places).astype(np.intp, copy=False)
        self.shape = (len(rows), int(matrix.shape[1]))

    def times(self, slopes: Vector) -> Vector:
        if slopes.ndim == 2:
            return np.stack([self.times(column) for column in slopes.T], axis=1)
        return np.bincount(self._row_of, self._data * slopes.take(self._columns), minlength=self.shape[0])

    def transposed_times(self, weights: Vector) -> Vector:
        if weights.ndim == 2:
            return np.stack([self.transposed_times(column) for column in weights.T], axis=1)
        return np.bincount(self._columns, self._data * weights.take(self._row_of), minlength=self.shape[1])

    def norms(self, order: int, centre: Vector | None, scale: Vector | None) -> Vector:
        """Norms of row/scale."""
        return _sparse_norms(self._data, self._columns, self._row_of, self.shape[0], order, scale)

    def squares(self, centre: Vector | None, weights: Vector) -> Vector:
        """Σ (weight × entry)²."""
        if weights.ndim == 2:
            return np.stack([self.squares(None, column) for column in weights.T], axis=1)
        sizes = self._data * weights.take(self._columns)
        sizes *= sizes
        return _scaled_back(np.bincount(self._row_of, sizes, minlength=self.shape[0]), 1.0)


def _sparse_norms(entries: Vector, columns: Vector, row_of: Vector, rows: int, order: int, scale: Vector | None) -> Vector:
    """Norms of rows from their entries."""
    with np.errstate(all="ignore"):
        return sparse_lengths(np.abs(entries) / (1.0 if scale is None else scale[columns]), row_of, rows, order)


def sparse_lengths(sizes: Vector, row_of: Vector, rows: int, order: int) -> Vector:
    """The norms of so many rows from the absolute values of their entries."""
    with np.errstate(all="ignore"):
        largest = np.ones(rows)
        if order == 2:  # as in `lengths`
            largest[:] = 0.0
            np.maximum.at(largest, row_of, sizes)
            largest[largest == 0] = 1.0
            sizes = (sizes / largest[row_of]) ** 2
        sums = np.bincount(row_of, sizes, minlength=rows)
        return sums if order == 1 else largest * np.sqrt(sums)


def lengths(sizes: Vector, order: int) -> Vector:
    """The norm of each row of absolute values, without under- or overflow of squares."""
    if order == 1:
        return sizes.sum(axis=1)
    largest = sizes.max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    return unit * np.sqrt(((sizes / unit[:, None]) ** 2).sum(axis=1))


def _squared(weights: Vector) -> tuple[Vector, float]:
    """Squares of weights relative to the largest; NaN if they span more than squares can hold."""
    unit, least = float(weights.max(initial=0.0)), float(weights.min(initial=np.inf))
    if not least > 0:
        least = float(weights.min(where=weights > 0, initial=np.inf))
    return (weights / unit) ** 2 if SPAN * unit < least < np.inf else np.full_like(weights, np.nan), unit


def _scaled_back(total: Vector, unit: float) -> Vector:
    """Sums of squares, scaled back; NaN where they may have lost digits."""
    found = total * (unit * unit)
    least = total if unit > 1 else found
    return found if least.min(initial=1.0) > SURE else np.where(least > SURE, found, np.nan)


Stored = Dense | Csr | CsrRows


def centred_times(matrix: Stored, weights: Vector, centre: Vector) -> Vector:
    """Σ weight × (row − centre), a few rows at a time: subtracting the centre from a sum of many rows would lose digits."""
    if not isinstance(matrix, Dense):  # most entries are 0: no digits are lost
        return matrix.transposed_times(weights) - np.multiply.outer(centre, weights.sum(axis=0))
    total = np.zeros((len(centre), *weights.shape[1:]))
    for start in range(0, len(weights), EXACT):
        part = weights[start : start + EXACT]
        total += matrix.rows(start, start + EXACT).transposed_times(part)
        total -= np.multiply.outer(centre, part.sum(axis=0))
    return total
