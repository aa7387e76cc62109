"""Measurements: sampler × clipped queries × mechanism. What leaves one is private."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from privopt.errors import CompositionError
from privopt.measure.mechanisms import Independent, Mechanism
from privopt.measure.queries import Term
from privopt.measure.randomness import Rng, Sum
from privopt.measure.samplers import Sampler, full_batch
from privopt.measure.units import Unit, each_row
from privopt.needs import EVERY_ROUND, Needs, needs_of
from privopt.perexample.grads import Array, Oracle, PerExampleGrads, Rows
from privopt.privacy.events import DpEvent
from privopt.state import PublicState

Carry = dict[str, Any]  # arrays and numbers by name


class Noisy(NamedTuple):
    """A private answer, the event that pays for it, and what the private side keeps for the next round."""

    value: Array
    event: DpEvent
    carry: Carry = {}  # noqa: RUF012  # never changed; it may be secret (a noisy threshold, noise), so update rules do not see it


class Measuring(Protocol):
    """What a round measures: a `Measurement`, or an answer of another kind, such as a stable solution or a noisy choice.

    It declares what it needs of other slots and of the oracle: `privopt.needs`.
    """

    def event(self, round_: int) -> DpEvent:
        """What this round will cost: known before any data are read."""
        ...

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = ...) -> Noisy:
        """Measure; `carry` is what the round before kept."""
        ...


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
    unit: Unit = field(default=each_row(), kw_only=True)

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
        if not self._independent and not (isinstance(self.sampler, full_batch) and math.isfinite(self.bound)):
            raise CompositionError(
                f"the noise of {type(self.mechanism).__name__} is correlated across rounds, so it hides the same change of every "
                "row in each of them. Use full_batch() and a clip with a finite bound, or noise that is independent (gaussian)."
            )

    @property
    def needs(self) -> Needs:
        return needs_of(self.sampler, *self.terms) | (frozenset() if self._independent else {EVERY_ROUND})

    @property
    def _independent(self) -> bool:
        return isinstance(self.mechanism, Independent)

    @property
    def bound(self) -> float:
        """How far one example can move the sum."""
        return sum(term.bound for term in self.terms)

    def event(self, round_: int) -> DpEvent:
        """What this round will cost: known before any data are read."""
        return self.sampler.amplify(self.mechanism.event_in(round_), round_)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        """Draw rows, query, clip, sum, and add noise."""
        rows = self.sampler.draw(oracle.size, round_, rng)
        terms = [term.at(at) for term in self.terms]
        expected = self.sampler.expected(oracle.size)
        bound = sum(term.bound for term in terms) if self._independent else self.bound  # correlated noise has one scale
        hidden = self.begin(at.current, bound / expected, round_, rng, carry)
        asked = oracle if len(terms) == 1 else _Once(oracle)
        vectors = [term.query(asked, rows, at) for term in terms]

        def mean(out: Array | None) -> Array:
            for term, grads in zip(terms, vectors, strict=True):
                out = grads.clipped_sum(term.clip, term.weight / expected, out)
            return out

        return hidden(mean)

    def begin(self, like: Array, bound: float, round_: int, rng: Rng, carry: Carry = {}) -> Callable[[Sum], Noisy]:  # noqa: B006
        """Start drawing the noise of a round; the function that is returned adds the mean, which one example moves by `bound`."""
        if not (self._independent or carry or round_ == 0):
            raise CompositionError("correlated noise begins in round 0, and each round needs what the one before kept.")
        add = self.mechanism.step(carry if round_ else self.mechanism.start(like), round_, like, bound, rng)

        def answer(mean: Sum) -> Noisy:
            value, kept = add(mean)
            return Noisy(value, self.event(round_), kept)

        return answer


class _Once:
    """An oracle that visits each point once, when several terms of a round ask for the same rows there."""

    def __init__(self, oracle: Oracle) -> None:
        self._visited: list[tuple[Array, Rows, PerExampleGrads]] = []  # holds the points: another could not take one's place
        self._oracle, self.size = oracle, oracle.size

    def __call__(self, parameters: Array, rows: Rows) -> PerExampleGrads:
        for point, asked, grads in self._visited:
            if point is parameters and asked is rows:
                return grads
        self._visited.append((parameters, rows, self._oracle(parameters, rows)))
        return self._visited[-1][2]
