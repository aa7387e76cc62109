"""Mechanisms: what noise hides a bounded change. Noise is drawn here and nowhere else.

A mechanism is told the sum and how far one example can move it (`bound`, in the norm `order`), adds noise in proportion to
that bound, and names the event. Its noise is relative to the *add-or-remove* bound; accountants know what a replacement
costs. Who draws the noise writes the event.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from privopt.measure.mechanisms.above_threshold import above_threshold
from privopt.measure.mechanisms.gamma_norm import gamma_norm
from privopt.measure.mechanisms.gaussian import gaussian
from privopt.measure.mechanisms.gaussian_pool import gaussian_pool
from privopt.measure.mechanisms.laplace import laplace
from privopt.measure.mechanisms.noisy_min import noisy_min
from privopt.measure.randomness import Rng, Sum
from privopt.perexample.grads import Array
from privopt.privacy.events import DpEvent

__all__ = ["Mechanism", "above_threshold", "gamma_norm", "gaussian", "gaussian_pool", "laplace", "noisy_min"]


Hidden = Callable[[Sum], Array]  # a sum, hidden


class Mechanism(Protocol):
    """Noise that hides a change of at most `bound`."""

    @property
    def order(self) -> Literal[1, 2]:
        """The norm in which the change has to be bounded."""
        ...

    @property
    def event(self) -> DpEvent:
        """What one release costs."""
        ...

    def begin(self, like: Array, bound: float, rng: Rng) -> Hidden:
        """What will hide a sum of the shape, kind and precision of `like`: its noise may be drawn while the sum is prepared."""
        ...

    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        """The sum, hidden: what has begun, ended at once."""
        ...
