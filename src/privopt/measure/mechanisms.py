"""Mechanisms: what noise hides a bounded change. Noise is drawn here and nowhere else.

A mechanism is told the sum and how far one example can move it (`bound`, in the norm `order`), adds noise in proportion to
that bound, and names the event. Its noise is relative to the *add-or-remove* bound; accountants know what a replacement
costs. Who draws the noise writes the event.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Protocol

import numpy as np

from privopt.errors import BudgetExceeded, CompositionError
from privopt.measure import randomness
from privopt.measure.randomness import Rng, Sum, alike, normal
from privopt.perexample.grads import Array, Vector
from privopt.privacy.events import DpEvent, GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, PureDpEvent

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


@dataclass(frozen=True)
class _Relative:
    """Noise of z times the bound."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise CompositionError(
                f"{type(self).__name__}({self.noise_multiplier}): a noise multiplier is ≥ 0 (0 is no privacy)."
            )


def _pure(noise_multiplier: float) -> DpEvent:
    """1/z-DP, or no guarantee without noise."""
    return PureDpEvent(1 / noise_multiplier) if noise_multiplier else NonPrivateDpEvent()


@dataclass(frozen=True)
class gaussian(_Relative):  # noqa: N801  # a constructor that reads as a phrase
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


@dataclass(frozen=True)
class gaussian_pool(_Relative):  # noqa: N801
    """Answers that share what one Gaussian(z) costs: an answer that takes the share p of it has the noise multiplier z/√p.

    **Guarantee** Gaussian(z) for all answers together, if their shares add up to at most 1; how many there are, what they are
    asked and which share each takes may depend on earlier answers, and on whatever else was released.

    Derivation. Let b = 0 or 1 say which of two neighbouring data sets is there. An answer's noise across the direction in which
    the two differ says nothing of b. Along it, in units of the bound, the answer is N(cb, z²/p) with 0 ≤ c ≤ 1, and so it is made
    from Y ~ N(bp/z², p/z²), the increment over a time p/z² of a Brownian motion with drift b, by scaling it (c = 1) and adding
    noise (c < 1). Answers one after another are increments one after another of *one* such path, which is read at times that
    earlier answers chose, none later than 1/z². All that is ever answered is therefore made from the path up to 1/z² by means
    that know nothing of b, and all that this path says of b is its end, N(b/z², 1/z²): it is one Gaussian(z).

    Releases of other kinds in between, at most K of which each is ε-DP whatever came before, are each made from one bit of an
    ε-DP randomised response, independent of the path (Kairouz, Oh, Viswanath). So all releases together are made from the
    path and K such bits: Gaussian(z) composed with K × ε-DP, as accountants compose them. Time that nobody reads only helps.
    """

    @property
    def event(self) -> DpEvent:
        """What all of it costs."""
        return gaussian(self.noise_multiplier).event

    def release(self, total: Array, bound: float, share: float, spent: float, rng: Rng) -> tuple[Array, float]:
        """The sum, hidden by this share of the pool, and what is spent of it afterwards."""
        if not (share > 0 and spent >= 0 and spent + share <= 1):
            raise BudgetExceeded(f"{spent:.6g} of a pool of noise is spent, so an answer cannot take {share:.6g} of it.")
        return gaussian(self.noise_multiplier / math.sqrt(share)).release(total, bound, rng), spent + share


@dataclass(frozen=True)
class laplace(_Relative):  # noqa: N801
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


@dataclass(frozen=True)
class gamma_norm(_Relative):  # noqa: N801
    """Noise with density ∝ exp(−‖x‖₂ / (z · bound)): a uniform direction of Gamma(d, z · bound) length.

    **Guarantee** 1/z-DP: two sums that differ by at most `bound` in l2 have densities whose ratio is at most e^(1/z).
    """

    order: ClassVar[Literal[1, 2]] = 2

    @property
    def event(self) -> DpEvent:
        return _pure(self.noise_multiplier)

    def begin(self, like: Array, bound: float, rng: Rng) -> Callable[[Sum], Array]:
        return lambda total: self.release(total(None), bound, rng)

    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        direction = rng.standard_normal(tuple(total.shape))
        length = rng.gamma(direction.size, self.noise_multiplier * bound)
        return total + alike(length * direction / np.linalg.norm(direction), total)


@dataclass(frozen=True)
class above_threshold(_Relative):  # noqa: N801
    """Compare values with one hidden threshold: Laplace(2 z · bound) on it, fresh Laplace(4 z · bound) on each value.

    **Guarantee** 1/z-DP for all answers from one `hidden` threshold up to and including its first "yes", if one example moves
    each value by at most `bound` (Dwork, Roth, The Algorithmic Foundations of Differential Privacy, Theorem 3.23). Values may be
    chosen by earlier answers. Proof, Δ = bound: take the noise of the "no" answers as given, and let g be the largest of their
    noisy values; neighbours move g by at most Δ. The answers are "no … no yes" iff the hidden threshold is above g and the last
    noisy value reaches it. Moving the threshold's noise by the change of g, at most Δ, makes up for it at a price of e^(Δ/2zΔ);
    moving the last value's noise by that change and its own, at most 2Δ, at e^(2Δ/4zΔ). Their product is e^(1/z).

    After a "yes" the hidden threshold must be drawn anew, and paid for anew. Drawing it anew after a "no" would break the
    argument, for then each "no" has a g of its own.
    """

    @property
    def event(self) -> DpEvent:
        """What one hidden threshold costs."""
        return _pure(self.noise_multiplier)

    def hidden(self, threshold: float, bound: float, rng: Rng) -> float:
        """The threshold with its noise: secret, and kept until the first "yes"."""
        return threshold + float(rng.laplace(0.0, 2 * self.noise_multiplier * bound))

    def exceeds(self, value: float, hidden: float, bound: float, rng: Rng) -> bool:
        """Whether the value, with noise of its own, reaches the hidden threshold."""
        return value + float(rng.laplace(0.0, 4 * self.noise_multiplier * bound)) >= hidden


@dataclass(frozen=True)
class noisy_min(_Relative):  # noqa: N801
    """The place of the least of the scores, each *lowered* by exponential noise of mean z · bound (permute-and-flip).

    **Guarantee** 1/z-DP, if an added example raises every score by something between 0 and `bound`. Proof: take the noise of all
    scores but the i-th as given. Place i is told iff the noise of its score reaches t = (its score) − (the least of the others,
    lowered), which has the probability e^(−max(t, 0)/(z·bound)). The example moves either term upwards, by at most `bound`, so it
    moves t by at most `bound` in either direction, and the probability by a factor of at most e^(1/z).

    Two things the proof needs: scores that move in the same direction (else t could move by 2 · bound), and noise of this sign.
    Noise that *raises* the scores is bounded on the wrong side: among k candidates it can cost k − 1 times as much.

    >>> noisy_min(2.0).event
    PureDpEvent(epsilon=0.5)
    """

    @property
    def event(self) -> DpEvent:
        """What one choice costs."""
        return _pure(self.noise_multiplier)

    def choose(self, scores: Vector, bound: float, rng: Rng) -> int:
        """The place."""
        return int(np.argmin(scores - rng.exponential(self.noise_multiplier * bound, len(scores))))
