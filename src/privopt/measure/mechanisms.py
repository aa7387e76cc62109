"""Mechanisms: what noise hides a bounded change. Noise is drawn here and nowhere else.

A mechanism is given the sum and how far one example can move it (`bound`, in the norm `order`), adds noise in proportion to
that bound, and names the event. Its noise is relative to the *add-or-remove* bound; accountants know what a replacement
costs. Who draws the noise writes the event.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from privopt.errors import BudgetExceeded, CompositionError
from privopt.measure import randomness
from privopt.measure.randomness import Rng, Sum, as_array_like, normal
from privopt.perexample.grads import Array, Vector
from privopt.privacy.events import DpEvent, GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, PureDpEvent

State = dict[str, Any]  # arrays and numbers by name, so that it can be saved; secret


class Mechanism(Protocol):
    """The noise of a run: a measurement `start`s it, and takes one `step` in each round.

    A mechanism may keep a state from round to round, so that its noise is correlated across rounds. The state is as secret as
    the noise: it is saved in checkpoints and given to the next round, and no update rule sees it. Mechanisms with fresh noise in
    every round (`Independent`) have none. With any other, a measurement is that of every round, takes all rows (sampling
    amplifies independent noise only), and asks for noise of the same scale in each round.
    """

    @property
    def order(self) -> Literal[1, 2]:
        """The norm in which the change has to be bounded."""
        ...

    def event_in(self, round_: int) -> DpEvent:
        """What this round costs. Correlated noise may cost all in its first round, and nothing in the others."""
        ...

    def start(self, like: Array) -> State:
        """The state before round 0, for sums with the shape, library and precision of `like`."""
        ...

    def step(self, state: State, round_: int, like: Array, bound: float, rng: Rng) -> Callable[[Sum], tuple[Array, State]]:
        """Start drawing the noise of a round: a function that adds a sum to it, and returns the answer and the next state.

        The sum is computed between the two calls, so noise may be drawn at the same time.
        """
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


@dataclass(frozen=True)
class Independent(_Relative, ABC):
    """Mechanisms with fresh noise in every round. A subclass says what one release costs, and draws its noise."""

    order: ClassVar[Literal[1, 2]]

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """What one release costs."""

    @abstractmethod
    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        """Add noise to a sum."""

    def begin(self, like: Array, bound: float, rng: Rng) -> Callable[[Sum], Array]:
        """Start drawing noise shaped like `like`; the function that is returned adds a sum to it."""
        return lambda total: self.release(total(None), bound, rng)

    def event_in(self, round_: int) -> DpEvent:
        return self.event

    def start(self, like: Array) -> State:
        return {}

    def step(self, state: State, round_: int, like: Array, bound: float, rng: Rng) -> Callable[[Sum], tuple[Array, State]]:
        add = self.begin(like, bound, rng)
        return lambda total: (add(total), {})


def _pure(noise_multiplier: float) -> DpEvent:
    """1/z-DP, or no guarantee without noise."""
    return PureDpEvent(1 / noise_multiplier) if noise_multiplier else NonPrivateDpEvent()


@dataclass(frozen=True)
class gaussian(Independent):  # noqa: N801  # a constructor that reads as a phrase
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
    path and K such bits: Gaussian(z) composed with K × ε-DP, as accountants compose them. Reading less of the path only
    helps.
    """

    @property
    def event(self) -> DpEvent:
        """What the pool costs, however it is divided."""
        return gaussian(self.noise_multiplier).event

    def release(self, total: Array, bound: float, share: float, spent: float, rng: Rng) -> tuple[Array, float]:
        """Add noise that takes this share of the pool; return the answer, and the share that is spent after it."""
        if not (share > 0 and spent >= 0 and spent + share <= 1):
            raise BudgetExceeded(f"{spent:.6g} of a pool of noise is spent, so an answer cannot take a share of {share:.6g}.")
        return gaussian(self.noise_multiplier / math.sqrt(share)).release(total, bound, rng), spent + share


@dataclass(frozen=True)
class laplace(Independent):  # noqa: N801
    """Laplace noise of scale z · bound on each coordinate.

    **Guarantee** Laplace(z), which is 1/z-DP: the l1 change of one example is at most `bound`.
    """

    order: ClassVar[Literal[1, 2]] = 1

    @property
    def event(self) -> DpEvent:
        return LaplaceDpEvent(self.noise_multiplier)

    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        return total + self.noise_multiplier * bound * randomness.laplace(total, rng)


@dataclass(frozen=True)
class gamma_norm(Independent):  # noqa: N801
    """Noise with density ∝ exp(−‖x‖₂ / (z · bound)): a uniform direction of Gamma(d, z · bound) length.

    **Guarantee** 1/z-DP: two sums that differ by at most `bound` in l2 have densities whose ratio is at most e^(1/z).
    """

    order: ClassVar[Literal[1, 2]] = 2

    @property
    def event(self) -> DpEvent:
        return _pure(self.noise_multiplier)

    def release(self, total: Array, bound: float, rng: Rng) -> Array:
        direction = rng.standard_normal(tuple(total.shape))
        length = rng.gamma(direction.size, self.noise_multiplier * bound)
        return total + as_array_like(length * direction / np.linalg.norm(direction), total)


@dataclass(frozen=True)
class above_threshold(_Relative):  # noqa: N801
    """The sparse vector technique: is a value above a threshold? Any number of "no" are free; the first "yes" uses up the price.

    The threshold has Laplace(2 z · bound) noise, and each value fresh Laplace(4 z · bound) noise.

    **Guarantee** 1/z-DP for all answers from one noisy threshold up to and including its first "yes", if one example moves
    each value by at most `bound` (Dwork, Roth, The Algorithmic Foundations of Differential Privacy, Theorem 3.23). Values may be
    chosen by earlier answers. Proof, Δ = bound: take the noise of the "no" answers as given, and let g be the largest of their
    noisy values; neighbours move g by at most Δ. The answers are "no … no yes" iff the noisy threshold is above g and the last
    noisy value reaches it. Moving the threshold's noise by the change of g, at most Δ, makes up for it at a price of e^(Δ/2zΔ);
    moving the last value's noise by that change and its own, at most 2Δ, at e^(2Δ/4zΔ). Their product is e^(1/z).

    After a "yes" the threshold's noise must be drawn, and paid for, anew. Drawing it anew after a "no" would break the argument,
    because each "no" would have a g of its own.
    """

    @property
    def event(self) -> DpEvent:
        """What one noisy threshold costs."""
        return _pure(self.noise_multiplier)

    def noisy_threshold(self, threshold: float, bound: float, rng: Rng) -> float:
        """The threshold with its noise: secret, and kept until the first "yes"."""
        return threshold + float(rng.laplace(0.0, 2 * self.noise_multiplier * bound))

    def exceeds(self, value: float, threshold: float, bound: float, rng: Rng) -> bool:
        """Whether the value, with fresh noise, reaches the noisy threshold."""
        return value + float(rng.laplace(0.0, 4 * self.noise_multiplier * bound)) >= threshold


@dataclass(frozen=True)
class noisy_min(_Relative):  # noqa: N801
    """The index of the smallest score, after each is *lowered* by exponential noise of mean z · bound (permute-and-flip).

    **Guarantee** 1/z-DP, if an added example raises every score by something between 0 and `bound`. Proof: take the noise of all
    scores but the i-th as given. Index i is returned iff the noise of its score reaches t = (its score) − (the smallest of
    the others, lowered), which has the probability e^(−max(t, 0)/(z·bound)). The example moves either term upwards, by at most
    `bound`, so it moves t by at most `bound` in either direction, and the probability by a factor of at most e^(1/z).

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
        """Choose an index."""
        return int(np.argmin(scores - rng.exponential(self.noise_multiplier * bound, len(scores))))
