"""Linear models: per-example gradients in closed form.

The gradient of one example is residual × row (an outer product with several outputs), so its norm is the product of the
two norms and a weighted sum is one matrix product: private costs what non-private costs.
"""

import numpy as np

from privopt.perexample.design import Batch, Design
from privopt.perexample.grads import Rows, Rule, Vector
from privopt.perexample.losses import Loss


class LinearGrads:
    """gᵢ = residualᵢ ⊗ rowᵢ, kept as its factors."""

    def __init__(self, residuals: Vector, batch: Batch) -> None:
        self._residuals, self._batch = residuals, batch

    def norms(self, order: int) -> Vector:
        residuals = self._residuals
        if residuals.ndim == 1:
            sizes = np.abs(residuals)
        else:
            sizes = np.sqrt(np.einsum("ij,ij->i", residuals, residuals)) if order == 2 else np.abs(residuals).sum(axis=1)
        return sizes * self._batch.norms(order)

    def weighted_sum(self, weights: Vector) -> Vector:
        weighted = (self._residuals.T * weights).T
        if not np.isfinite(weighted).all():  # an example of weight 0 is absent, whatever its residual
            weighted[weights == 0] = 0.0
        return self._batch.weighted_sum(weighted).ravel()

    def fold(self, rule: Rule, order: int) -> Vector:
        return self.weighted_sum(rule(self.norms(order)))


class LinearOracle:
    """A linear model on its data: parameters are outputs × width, flat."""

    def __init__(self, design: Design, targets: Vector, loss: Loss) -> None:
        self._design, self._targets, self._loss = design, targets, loss

    @property
    def size(self) -> int:
        return len(self._design)

    @property
    def dimension(self) -> int:
        """How many parameters there are."""
        return self._loss.outputs * self._design.width

    def __call__(self, parameters: Vector, rows: Rows) -> LinearGrads:
        coefficients = parameters if self._loss.outputs == 1 else parameters.reshape(self._loss.outputs, -1)
        batch = self._design.take(rows)
        targets = self._targets if rows is None else self._targets[rows]
        with np.errstate(all="ignore"):  # a warning would tell something about the data
            return LinearGrads(self._loss.residuals(batch.scores(coefficients), targets), batch)
