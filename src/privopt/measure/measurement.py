"""Measurements: sampler × clipped queries × mechanism. What leaves one is private."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from privopt.errors import CompositionError
from privopt.measure.mechanisms import Mechanism
from privopt.measure.queries import Term, Trajectory
from privopt.measure.randomness import Rng
from privopt.measure.samplers import Sampler
from privopt.perexample.grads import Array, Oracle
from privopt.privacy.events import DpEvent


class Noisy(NamedTuple):
    """An answer that may be used freely, and the event that pays for it."""

    value: Array
    event: DpEvent


@dataclass(frozen=True)
class Measurement:
    """The noisy mean of clipped per-example vectors.

    **Guarantee** One example moves Σ over terms of weight × clipped sum by at most Σ |weight| × bound; the mechanism's noise is
    relative to that; the sampler amplifies its event. The divisor is the sampler's expected size, a public constant.

    >>> from privopt.measure.clips import l1, l2
    >>> from privopt.measure.mechanisms import gaussian, laplace
    >>> from privopt.measure.queries import gradient
    >>> from privopt.measure.samplers import full_batch
    >>> Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(2.0)).event(0)
    GaussianDpEvent(noise_multiplier=2.0)
    >>> Measurement(full_batch(), [gradient() @ l2(1.0)], laplace(2.0))
    Traceback (most recent call last):
    privopt.errors.CompositionError: laplace hides an l1 change, but the clip bounds l2. Use l1(1.0), or gaussian / gamma_norm.
    """

    sampler: Sampler
    terms: Sequence[Term]
    mechanism: Mechanism

    def __post_init__(self) -> None:
        if not self.terms:
            raise CompositionError("a measurement needs at least one clipped query.")
        for term in self.terms:
            if term.clip.order != self.mechanism.order:
                kind, bound = type(self.mechanism).__name__, term.clip.bound
                fit = f"l1({bound}), or gaussian / gamma_norm" if self.mechanism.order == 1 else f"l2({bound}), or laplace"
                raise CompositionError(
                    f"{kind} hides an l{self.mechanism.order} change, but the clip bounds l{term.clip.order}. Use {fit}."
                )

    @property
    def bound(self) -> float:
        """How far one example can move the sum."""
        return sum(term.bound for term in self.terms)

    def event(self, round_: int) -> DpEvent:
        """What this round will cost: known before any data are read."""
        return self.sampler.amplify(self.mechanism.event, round_)

    def measure(self, oracle: Oracle, at: Trajectory, round_: int, rng: Rng) -> Noisy:
        """Ask, clip, sum, hide: the only function that meets private data."""
        rows = self.sampler.draw(oracle.size, round_, rng)
        sums = [term.weight * term.clip.sum(term.query(oracle, rows, at)) for term in self.terms]
        return self.hide(sum(sums[1:], sums[0]), oracle.size, round_, rng)

    def hide(self, total: Array, size: int, round_: int, rng: Rng) -> Noisy:
        """The noisy mean of a round whose clipped sum is known, when `size` examples could have taken part."""
        hidden = self.mechanism.release(total, self.bound, rng)
        hidden /= self.sampler.expected(size)
        return Noisy(hidden, self.event(round_))
