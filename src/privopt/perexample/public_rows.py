"""Public rows: mean gradients of batches of public data.

The batch of a round depends only on the round's number, so a resumed run uses the same batches.
"""

import numpy as np

from privopt.perexample.design import Design
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Loss


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
        self._loss, self._batches = loss, [(design.framed(rows), targets[rows]) for rows in batches]

    @property
    def epoch(self) -> int:
        return len(self._batches)

    def __call__(self, parameters: Vector, round_: int) -> Vector:
        rows, targets = self._batches[round_ % len(self._batches)]
        coefficients = parameters if self._loss.outputs == 1 else parameters.reshape(self._loss.outputs, -1)
        residuals = self._loss.residuals(rows.times(coefficients.T), targets)
        return rows.transposed_times(residuals).T.ravel() / len(targets)


def public_batches(size: int, batch_size: int) -> list[Vector]:
    """The rows, shuffled once and cut into batches of at least this size, or into one."""
    order = np.random.Generator(np.random.PCG64DXSM(0)).permutation(size)
    return np.array_split(order, max(1, size // batch_size))
