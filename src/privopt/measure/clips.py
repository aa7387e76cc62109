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
from privopt.perexample.grads import Array, PerExampleGrads


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

    def sum(self, grads: PerExampleGrads) -> Array:
        """The sum of the clipped vectors."""
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

    def sum(self, grads: PerExampleGrads) -> Array:
        return _clipped_sum(grads, self.order, self.bound)


@dataclass(frozen=True)
class l1:  # noqa: N801
    """Clip to an l1 norm: for Laplace noise. **Guarantee** as `l2`, in the l1 norm."""

    bound: float
    order: ClassVar[Literal[1, 2]] = 1

    def __post_init__(self) -> None:
        _check(self.bound)

    def sum(self, grads: PerExampleGrads) -> Array:
        return _clipped_sum(grads, self.order, self.bound)


def _check(bound: float) -> None:
    if not 0 <= bound < math.inf:
        raise CompositionError(f"a clip bound is a finite number ≥ 0, not {bound}.")


def _clipped_sum(grads: PerExampleGrads, order: int, bound: float) -> Array:
    """Σ gᵢ · min(1, C/‖gᵢ‖). A vector that is not finite has weight 0."""

    def weights(norms: Any) -> Any:
        xp = array_namespace(norms)
        inside = bound / xp.clip(norms, min=bound)  # 0/0, a zero vector under a zero bound, is NaN here
        whole = bound > 0 and bool(xp.isfinite(xp.sum(norms)))
        return inside if whole else xp.where(xp.isfinite(norms) & (bound > 0), inside, xp.zeros_like(norms))

    with np.errstate(all="ignore"):  # a warning would tell something about the data
        return grads.fold(weights, order)
