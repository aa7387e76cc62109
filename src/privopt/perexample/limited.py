"""Rows of bounded length: a row that is longer than the limit is shortened to it.

A limited row is the framed row (with its intercept) × min(1, limit/length), so that the constants of a loss hold for every row:
a residual of at most r gives a gradient of at most r × limit. A row that is not finite becomes 0. The limit is public.
"""

import math

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.perexample.design import Batch, Design, Frame
from privopt.perexample.grads import Rows, Vector
from privopt.perexample.row_storage import Dense


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
