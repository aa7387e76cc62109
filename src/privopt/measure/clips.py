"""Clips: how far one example can move the sum.

A clip turns per-example vectors into their weighted sum and states how much that sum can change, in which norm, when one
example is added or removed. The bound may depend on what is already public, never on the batch.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.perexample.grads import Array, PerExampleVectors
from privopt.trajectory import Trajectory


class Clip(Protocol):
    """A bounded sum."""

    @property
    def order(self) -> Literal[1, 2]:
        """The norm in which one example's part is bounded."""
        ...

    @property
    def bound(self) -> float:
        """The bound."""
        ...

    def at(self, trajectory: Trajectory) -> "Clip":
        """The clip of a round: its bound is a number, which may depend on where the public iterates are."""
        ...

    def sum(self, grads: PerExampleVectors, weight: float = 1.0) -> Array:
        """weight × the sum of the clipped vectors."""
        ...


@dataclass(frozen=True)
class l2:  # noqa: N801  # a constructor that reads as a phrase
    """Clip to an l2 norm: for Gaussian and gamma-norm noise.

    **Guarantee** ‖Σ gᵢ wᵢ‖₂ changes by at most `bound` when one example is added or removed, and 2 × `bound` when one is
    replaced.
    """

    bound: float
    order: ClassVar[Literal[1, 2]] = 2

    def __post_init__(self) -> None:
        _check(self.bound)

    def at(self, trajectory: Trajectory) -> "l2":
        return self

    def sum(self, grads: PerExampleVectors, weight: float = 1.0) -> Array:
        return _clipped_sum(grads, self.order, self.bound, weight)


@dataclass(frozen=True)
class l1:  # noqa: N801
    """Clip to an l1 norm: for Laplace noise. **Guarantee** as `l2`, in the l1 norm."""

    bound: float
    order: ClassVar[Literal[1, 2]] = 1

    def __post_init__(self) -> None:
        _check(self.bound)

    def at(self, trajectory: Trajectory) -> "l1":
        return self

    def sum(self, grads: PerExampleVectors, weight: float = 1.0) -> Array:
        return _clipped_sum(grads, self.order, self.bound, weight)


@dataclass(frozen=True)
class l2_moved:  # noqa: N801
    """Clip to `rate` × the distance between the two last iterates, but to no more than `most`: for differences of gradients.

    For a loss whose gradient is `rate`-Lipschitz nothing is cut, unless `most` cuts it. **Guarantee** as `l2`: the iterates are
    public, so the bound of a round depends on no example of it.

    >>> l2_moved(2.0).at(Trajectory(np.array([3.0, 4.0]), np.zeros(2))).bound
    10.0
    """

    rate: float
    most: float = math.inf
    order: ClassVar[Literal[1, 2]] = 2

    def __post_init__(self) -> None:
        _check(self.rate)
        if not self.most >= 0:
            raise CompositionError(f"l2_moved(…, most={self.most}): the largest bound is a number ≥ 0.")

    @property
    def bound(self) -> float:
        return self.most  # until it is known how far the iterate moved

    def at(self, trajectory: Trajectory) -> l2:
        xp = array_namespace(trajectory.current)
        return l2(min(self.rate * float(xp.linalg.vector_norm(trajectory.current - trajectory.previous)), self.most))

    def sum(self, grads: PerExampleVectors, weight: float = 1.0) -> Array:
        raise CompositionError("l2_moved bounds nothing before it is known how far the iterate moved: use .at(trajectory).")


def _check(bound: float) -> None:
    if not 0 <= bound < math.inf:
        raise CompositionError(f"a clip bound is a finite number ≥ 0, not {bound}.")


def _clipped_sum(grads: PerExampleVectors, order: int, bound: float, weight: float) -> Array:
    """weight · Σ gᵢ · min(1, C/‖gᵢ‖). A vector that is not finite is absent."""

    def weights(norms: Any) -> Any:
        inside = bound / norms.clip(bound) * weight  # 0/0, a zero vector under a zero bound, is NaN here
        if bound > 0 and math.isfinite(float(norms.sum())):
            return inside
        xp = array_namespace(norms)
        return xp.where(xp.isfinite(norms) & (bound > 0), inside, xp.zeros_like(norms))

    with np.errstate(all="ignore"):  # a warning would tell something about the data
        return grads.fold(weights, order)
