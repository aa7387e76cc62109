"""Rounds without a mechanism: one asks nothing of the examples and is free, the others answer without privacy, for comparison.

The event of an answer without privacy is NonPrivate, so ε is infinite: a recipe that asks for one has no guarantee, and a ledger
with a budget refuses it.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from array_api_compat import array_namespace

from privopt.measure.measurement import Carry, Measurement, Noisy
from privopt.measure.queries import Query, gradient
from privopt.measure.randomness import Rng
from privopt.measure.samplers import Sampler
from privopt.measure.units import Unit, each_row
from privopt.needs import SCALE, Needs, needs_of
from privopt.perexample.grads import Array, Oracle
from privopt.privacy.events import DpEvent, NonPrivateDpEvent, NoOpDpEvent
from privopt.state import PublicState


@dataclass(frozen=True)
class unasked:  # noqa: N801  # a constructor that reads as a phrase
    """The answer 0. **Guarantee** The oracle is not called, so the event is none."""

    unit: Unit = field(default=each_row(), repr=False)  # any: nobody is asked

    def protecting(self, unit: Unit) -> "unasked":
        """Nothing is asked of units of this kind, either."""
        return unasked(unit)

    def event(self, round_: int) -> DpEvent:
        return NoOpDpEvent()

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        return Noisy(0 * at.current, NoOpDpEvent(), carry)


@dataclass(frozen=True)
class in_the_clear:  # noqa: N801
    """The mean of a query's vectors as they are, without clip and noise. **No guarantee.**"""

    sampler: Sampler
    query: Query

    @property
    def needs(self) -> Needs:
        return needs_of(self.sampler, self.query)

    def event(self, round_: int) -> DpEvent:
        return NonPrivateDpEvent()

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        vectors = self.query(oracle, self.sampler.draw(oracle.size, round_, rng), at)
        return Noisy(vectors.clipped_sum(_unclipped()) / self.sampler.expected(oracle.size), self.event(round_), carry)


@dataclass(frozen=True)
class by_clean_scale:  # noqa: N801
    """A measurement with the scale A = √v + ε of clean private gradients: v ← β v + (1 − β) ḡ². **No guarantee.**

    ḡ is the mean gradient of a batch of private examples, drawn by `sampler`; v stays on the private side.
    """

    measurement: Measurement
    sampler: Sampler
    decay: float = 0.9
    stability: float = 1e-5

    @property
    def needs(self) -> Needs:
        return needs_of(self.measurement, self.sampler) - {SCALE}

    def event(self, round_: int) -> DpEvent:
        return NonPrivateDpEvent()

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        clean = in_the_clear(self.sampler, gradient()).measure(oracle, at, round_, rng).value
        second = self.decay * carry.get("second", 0.0) + (1 - self.decay) * clean**2
        known = at.known._replace(scale=array_namespace(second).sqrt(second) + self.stability)
        noisy = self.measurement.measure(oracle, at._replace(known=known), round_, rng)
        return Noisy(noisy.value, self.event(round_), {"second": second})


@dataclass(frozen=True)
class _unclipped:  # noqa: N801
    """Vectors as they are; one that is not finite is absent all the same."""

    order: ClassVar[Literal[1, 2]] = 2

    def factors(self, norms: Array, weight: float) -> Array:
        return weight * array_namespace(norms).ones_like(norms)
