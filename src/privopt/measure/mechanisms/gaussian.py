"""The Gaussian mechanism."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from privopt.measure.mechanisms.relative import Relative
from privopt.measure.randomness import Rng, Sum, normal
from privopt.perexample.grads import Array
from privopt.privacy.events import DpEvent, GaussianDpEvent


@dataclass(frozen=True)
class gaussian(Relative):  # noqa: N801  # a constructor that reads as a phrase
    """N(0, (z · bound)²) on each coordinate.

    **Guarantee** Gaussian(z): the l2 change of one example is at most `bound`, so the noise is z times it.
    """

    order: ClassVar[Literal[1, 2]] = 2

    @cached_property
    def event(self) -> DpEvent:
        return GaussianDpEvent(self.noise_multiplier)

    def begin(self, like: Array, bound: float, rng: Rng) -> Callable[[Sum], Array]:
        return normal(like, self.noise_multiplier * bound, rng)

    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        return self.begin(total, bound, rng)(lambda out: total if out is None else out + total)
