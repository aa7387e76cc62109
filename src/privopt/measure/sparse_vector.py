"""Sparse vector: the private data are asked only where a public gradient is wrong.

What must stay true: the noisy threshold is kept in `carry`, which no update rule sees, from its draw to the first private answer;
and all that a run can use is paid before its first round.
"""

import math
from dataclasses import dataclass
from typing import Literal

from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.measure.measurement import Carry, Noisy
from privopt.measure.mechanisms import above_threshold, laplace
from privopt.measure.queries import Term
from privopt.measure.randomness import Rng
from privopt.measure.samplers import Sampler, full_batch
from privopt.needs import EVERY_ROUND, PUBLIC_GRADIENT, Needs, needs_of
from privopt.perexample.grads import Oracle
from privopt.privacy.events import DpEvent, NoOpDpEvent, SelfComposedDpEvent, compose
from privopt.state import PublicState


@dataclass(frozen=True)
class SparseVector:
    """The public gradient, unless the private mean is found to be far from it; then that mean, with Laplace noise.

    With S the sum of n clipped vectors and h the public gradient, gap = ‖S − n h‖₂ is compared with `threshold` × √(2d/answers)
    z C. That is the length of the noise that is left in the mean of all answers: h is good enough if all of them together could
    not tell it from S/n. The private mean is answered at most `answers` times. After that, the answer is the public gradient, or
    0.

    **Guarantee** One example moves S by at most C in l1. It moves the gap by at most that: |‖S − n h‖ − ‖S′ − n h‖| ≤ ‖S − S′‖₂
    ≤ ‖S − S′‖₁ ≤ C, n being public. So one noisy threshold, up to its first "yes", is 1/z-DP (`above_threshold`), and the
    answer that follows is Laplace(z). A run has at most `answers` of either. Event: all of these, in round 0; nothing later.
    Only the oracle's examples are protected: h is used as it is.

    >>> from privopt.measure.clips import l1
    >>> from privopt.measure.queries import gradient
    >>> SparseVector(full_batch(), gradient() @ l1(1.0), noise_multiplier=8.0, answers=1).event(0)
    ComposedDpEvent(events=[PureDpEvent(epsilon=0.125), LaplaceDpEvent(noise_multiplier=8.0)])
    """

    sampler: Sampler
    term: Term
    noise_multiplier: float
    answers: int
    threshold: float = 1.0
    afterwards: Literal["public", "stop"] = "public"

    def __post_init__(self) -> None:
        if self.sampler != full_batch():
            raise CompositionError(
                f"{type(self.sampler).__name__} sampling around a sparse vector: a noisy threshold lasts several rounds, so "
                "these are not independent releases, and sampling does not amplify them. Use full_batch()."
            )
        if self.term.clip.order != 1:
            raise CompositionError(
                f"a sparse vector's answers have Laplace noise, which hides an l1 change: use l1({self.term.bound})."
            )
        if self.answers < 1:
            raise CompositionError(f"a sparse vector with {self.answers} answers never asks: it has at least one.")
        if not math.isfinite(self.threshold):
            raise CompositionError(f"threshold is {self.threshold}, but it is a finite number.")
        if self.afterwards not in ("public", "stop"):
            raise CompositionError(f"afterwards is {self.afterwards!r}; it is 'public' or 'stop'.")

    @property
    def needs(self) -> Needs:
        return needs_of(self.term) | {PUBLIC_GRADIENT, EVERY_ROUND}

    def event(self, round_: int) -> DpEvent:
        """What this round will cost: known before any data are read."""
        if round_:
            return NoOpDpEvent()
        kinds = above_threshold(self.noise_multiplier), laplace(self.noise_multiplier)
        return compose(SelfComposedDpEvent(kind.event, self.answers) for kind in kinds)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        """Compare, and answer by public or by private data."""
        public, event = at.known.gradient, self.event(round_)
        if round_ == 0:
            carry = {"left": self.answers, "noise_multiplier": self.noise_multiplier}
        if carry.get("noise_multiplier") != self.noise_multiplier:
            raise CompositionError("a sparse vector is paid for in round 0, so it has to be what round 0 measures.")
        if carry["left"] == 0:
            return Noisy(public if self.afterwards == "public" else 0 * public, event, carry)
        term = self.term.at(at)
        total = term.weight * term.query(oracle, None, at).clipped_sum(term.clip)
        compare = above_threshold(self.noise_multiplier)
        if "hidden" not in carry:
            length = math.sqrt(2 * math.prod(total.shape) / self.answers) * self.noise_multiplier * term.bound
            carry = {**carry, "hidden": compare.noisy_threshold(self.threshold * length, term.bound, rng)}
        gap = float(array_namespace(total).linalg.vector_norm(total - oracle.size * public))
        if not compare.exceeds(gap, carry["hidden"], term.bound, rng):
            return Noisy(public, event, carry)
        answer = laplace(self.noise_multiplier).release(total, term.bound, rng) / oracle.size
        return Noisy(answer, event, {"left": carry["left"] - 1, "noise_multiplier": self.noise_multiplier})
