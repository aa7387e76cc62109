"""The gamma-norm mechanism: pure differential privacy for an l2 bound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from privopt.measure.mechanisms.relative import Relative, pure
from privopt.measure.randomness import Rng, Sum, alike
from privopt.perexample.grads import Array
from privopt.privacy.events import DpEvent


@dataclass(frozen=True)
class gamma_norm(Relative):  # noqa: N801  # a constructor that reads as a phrase
    """Noise with density ∝ exp(−‖x‖₂ / (z · bound)): a uniform direction of Gamma(d, z · bound) length.

    **Guarantee** 1/z-DP: two sums that differ by at most `bound` in l2 have densities whose ratio is at most e^(1/z).
    """

    order: ClassVar[Literal[1, 2]] = 2

    @property
    def event(self) -> DpEvent:
        return pure(self.noise_multiplier)

    def begin(self, like: Array, bound: float, rng: Rng) -> Callable[[Sum], Array]:
        return lambda total: self.release(total(None), bound, rng)

    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        direction = rng.standard_normal(tuple(total.shape))
        length = rng.gamma(direction.size, self.noise_multiplier * bound)
        return total + alike(length * direction / np.linalg.norm(direction), total)
