"""A round in which nothing is asked of the examples: public work that a recipe does before, or between, private rounds."""

from dataclasses import dataclass

from privopt.measure.measurement import Carry, Noisy
from privopt.measure.randomness import Rng
from privopt.perexample.grads import Oracle
from privopt.privacy.events import DpEvent, NoOpDpEvent
from privopt.trajectory import Trajectory


@dataclass(frozen=True)
class unasked:  # noqa: N801  # a constructor that reads as a phrase
    """The answer 0. **Guarantee** The oracle is not called, so the event is none."""

    def event(self, round_: int) -> DpEvent:
        return NoOpDpEvent()

    def measure(self, oracle: Oracle, at: Trajectory, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        return Noisy(0 * at.current, NoOpDpEvent(), carry)
