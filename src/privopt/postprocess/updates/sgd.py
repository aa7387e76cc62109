"""Gradient descent."""

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import State, Step
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class sgd:  # noqa: N801  # a constructor that reads as a phrase
    """θ ← θ − min{η, `longest`/‖g‖} g: no step is longer than `longest`."""

    learning_rate: float | Schedule
    longest: float = math.inf

    def start(self, parameters: Any) -> State:
        return {}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        rate = as_schedule(self.learning_rate)(round_)
        if self.longest < math.inf:
            length = float(array_namespace(direction).linalg.vector_norm(direction))
            rate = rate if rate * length <= self.longest else self.longest / length
        return Step(rate, direction), state
