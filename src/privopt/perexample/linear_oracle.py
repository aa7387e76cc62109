"""Linear models: per-example gradients in closed form.

The gradient of one example is residual × row (an outer product with several outputs). So its norm is the product of two norms,
and a weighted sum is one matrix product: a private step costs as much as a non-private one. The difference between two points is
a difference of residuals; a public diagonal D and a public shift s stay in closed form, too.

Public rows give mean gradients of batches. The batch of a round depends only on the round's number, so a resumed run uses the
same batches.
"""

import math

import numpy as np

from privopt.errors import CompositionError
from privopt.perexample.design import Batch, Design
from privopt.perexample.grads import PerExampleVectors, Rows, Vector
from privopt.perexample.losses import Loss
from privopt.perexample.row_storage import lengths

ROUNDING = 1e-12  # share of the largest possible squared norm that is added to a shifted one, whose parts may cancel
HUGE = 1e150  # a gradient of this norm is absent: sums before the diagonal must not overflow where the diagonal is small


class LinearGrads(PerExampleVectors):
    """gᵢ = D ⊙ (residualᵢ ⊗ rowᵢ) + s, kept as its factors."""

    def __init__(self, residuals: Vector, batch: Batch, *, diagonal: Vector | None = None, shift: Vector | None = None) -> None:
        self.residuals, self.batch = residuals, batch
        self.diagonal, self._shift = diagonal, shift

    def norms(self, order: int) -> Vector:
        own = self._own_norms(order)
        if self._shift is None:
            return own
        if order == 1:
            raise CompositionError("l1 norms of shifted gradients have no closed form: clip them in l2.")
        return shifted_norms(own, self.dots(self._shift), self._shift)

    def dots(self, vector: Vector) -> Vector:
        """⟨D ⊙ (residualᵢ ⊗ rowᵢ), vector⟩."""
        inner = vector if self.diagonal is None else vector * self.diagonal
        products = self.batch.scores(self._shaped(inner)) * self.residuals
        return products if products.ndim == 1 else products.sum(axis=1)

    def weighted_sum(self, weights: Vector) -> Vector:
        weighted = (self.residuals.T * weights).T
        if not math.isfinite(np.vdot(weighted, weighted)):  # an example of weight 0 is absent, whatever its residual
            weighted[weights == 0] = 0.0
        total = self.batch.weighted_sum(weighted).ravel()
        if self.diagonal is not None:
            total = total * self.diagonal
        return total if self._shift is None else total + weights.sum() * self._shift

    def minus(self, other: "LinearGrads", weight: float = 1.0) -> "LinearGrads":
        """gᵢ − weight · g′ᵢ for the same rows at another point."""
        if self.batch is not other.batch or self.diagonal is not other.diagonal:
            raise CompositionError("a difference needs the same rows in the same scale at both points.")
        residuals = self.residuals - (other.residuals if weight == 1 else weight * other.residuals)
        shift = self._shift
        if other._shift is not None:
            shift = (0.0 if shift is None else shift) - weight * other._shift
        return LinearGrads(residuals, self.batch, diagonal=self.diagonal, shift=shift)

    def scaled(self, diagonal: Vector) -> "LinearGrads":
        """gᵢ ⊙ diagonal: preconditioning by a public vector."""
        both = diagonal if self.diagonal is None else self.diagonal * diagonal
        shift = None if self._shift is None else self._shift * diagonal
        return LinearGrads(self.residuals, self.batch, diagonal=both, shift=shift)

    def shifted(self, vector: Vector, weight: float = 1.0) -> "LinearGrads":
        """gᵢ + weight · vector, for a public vector."""
        shift = weight * vector if self._shift is None else self._shift + weight * vector
        return LinearGrads(self.residuals, self.batch, diagonal=self.diagonal, shift=shift)

    def _shaped(self, vector: Vector) -> Vector:
        """A flat vector as coefficients."""
        return vector if self.residuals.ndim == 1 else vector.reshape(self.residuals.shape[1], -1)

    def _own_norms(self, order: int) -> Vector:
        """Norms of D ⊙ (residual ⊗ row)."""
        residuals = self.residuals
        sizes = np.abs(residuals)
        if residuals.ndim == 2:
            sizes = lengths(sizes, order)  # without under- or overflow: a large row makes up for a small residual
        if self.diagonal is None:
            return sizes * self.batch.norms(order)
        rows = self.batch.scaled_norms(self._shaped(self.diagonal), order)  # of D ⊙ row, for each output
        own = sizes * rows if rows.ndim == 1 else np.linalg.norm(np.abs(residuals) * rows, ord=order, axis=1)
        if sizes.max(initial=0.0) * self.batch.longest(order) < HUGE:
            return own
        return np.where(sizes * self.batch.norms(order) < HUGE, own, np.inf)


def shifted_norms(own: Vector, dots: Vector, shift: Vector) -> Vector:
    """‖g + shift‖₂ of vectors with these norms and these products with the shift."""
    size = np.linalg.norm(shift)
    squares = own**2 + 2 * dots + size**2
    return np.sqrt(np.maximum(squares, 0.0) + ROUNDING * (own + size) ** 2)


class LinearOracle:
    """A linear model on its data: parameters are outputs × width, flat."""

    def __init__(self, design: Design, targets: Vector, loss: Loss) -> None:
        self._design, self._targets, self._loss = design, targets, loss
        self._taken: tuple[Rows, Batch, Vector] | None = None

    @property
    def size(self) -> int:
        return len(self._design)

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self._loss.outputs * self._design.width

    @property
    def lipschitz(self) -> float:
        """The largest possible norm of an example's gradient: largest residual × largest row."""
        return self._loss.steepness * self._design.limit

    @property
    def smoothness(self) -> float:
        """The largest rate at which an example's gradient changes; each example's loss is convex."""
        return self._loss.curvature * self._design.limit**2

    def __call__(self, parameters: Vector, rows: Rows) -> LinearGrads:
        batch, scores, targets = self._scores(parameters, rows)
        return LinearGrads(self._loss.residuals(scores, targets), batch)

    def losses(self, parameters: Vector, rows: Rows) -> Vector:
        """The loss of each example."""
        _, scores, targets = self._scores(parameters, rows)
        return self._loss.values(scores, targets)

    def _scores(self, parameters: Vector, rows: Rows) -> tuple[Batch, Vector, Vector]:
        coefficients = parameters if self._loss.outputs == 1 else parameters.reshape(self._loss.outputs, -1)
        if self._taken is None or self._taken[0] is not rows:  # a round may use the same rows at several points
            self._taken = rows, self._design.take(rows), self._targets if rows is None else self._targets.take(rows)
        _, batch, targets = self._taken
        return batch, batch.scores(coefficients), targets


# ---------------------------------------------------------------- public rows


class PublicRows:
    """(θ, round) → the mean gradient of a batch of public rows of a linear model, in the frame of the private ones.

    The caller declares that the rows are public: they are used without noise, and no event is recorded.

    >>> from privopt.perexample.design import Frame
    >>> from privopt.perexample.losses import Squared
    >>> public = PublicRows(Design(np.eye(3), Frame(intercept=0.0)), np.array([1.0, 2.0, 3.0]), Squared(), batch_size=1)
    >>> public.epoch, sum(public(np.zeros(3), round_) for round_ in range(3)).tolist()
    (3, [-1.0, -2.0, -3.0])
    """

    def __init__(self, design: Design, targets: Vector, loss: Loss, batch_size: int = 64) -> None:
        batches = public_batches(len(design), batch_size)
        self._loss, self.batches = loss, [(design.framed(rows), targets[rows]) for rows in batches]

    @property
    def epoch(self) -> int:
        return len(self.batches)

    def __call__(self, parameters: Vector, round_: int) -> Vector:
        rows, targets = self.batches[round_ % len(self.batches)]
        coefficients = parameters if self._loss.outputs == 1 else parameters.reshape(self._loss.outputs, -1)
        residuals = self._loss.residuals(rows.times(coefficients.T), targets)
        return rows.transposed_times(residuals).T.ravel() / len(targets)


def public_batches(size: int, batch_size: int) -> list[Vector]:
    """The rows, shuffled once and cut into batches of at least this size, or into one."""
    order = np.random.Generator(np.random.PCG64DXSM(0)).permutation(size)
    return np.array_split(order, max(1, size // batch_size))
