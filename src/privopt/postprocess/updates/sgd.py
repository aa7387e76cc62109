"""Gradient descent."""

from dataclasses import dataclass
from typing import Any

from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import NOTHING, State
from privopt.trajectory import Known


@dataclass(frozen=True)
class sgd:  # noqa: N801  # a constructor that reads as a phrase
    """θ ← θ − η g."""

    learning_rate: float | Schedule

    def start(self, parameters: Any) -> State:
        return {}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Any, State]:
        return -as_schedule(self.learning_rate)(round_) * direction, state
