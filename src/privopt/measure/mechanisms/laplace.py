"""The Laplace mechanism."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from privopt.measure import randomness
from privopt.measure.mechanisms.relative import Relative
from privopt.measure.randomness import Rng, Sum
from privopt.perexample.grads import Array
from privopt.privacy.events import DpEvent, LaplaceDpEvent


@dataclass(frozen=True)
class laplace(Relative):  # noqa: N801  # a constructor that reads as a phrase
    """Laplace noise of scale z · bound on each coordinate.

    **Guarantee** Laplace(z), which alone is 1/z-DP: the l1 change of one example is at most `bound`.
    """

    order: ClassVar[Literal[1, 2]] = 1

    @property
    def event(self) -> DpEvent:
        return LaplaceDpEvent(self.noise_multiplier)

    def begin(self, like: Array, bound: float, rng: Rng) -> Callable[[Sum], Array]:
        return lambda total: self.release(total(None), bound, rng)

    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        return total + self.noise_multiplier * bound * randomness.laplace(total, rng)
