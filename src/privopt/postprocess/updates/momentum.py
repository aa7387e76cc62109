"""Gradient descent with heavy-ball momentum."""

from dataclasses import dataclass
from typing import Any

from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import State, Step
from privopt.postprocess.updates.sgd import sgd
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class momentum:  # noqa: N801  # a constructor that reads as a phrase
    """m ← β m + g; θ ← θ − η m."""

    learning_rate: float | Schedule
    decay: float = 0.9

    def start(self, parameters: Any) -> State:
        return {"velocity": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        velocity = self.decay * state["velocity"] + direction
        return Step(as_schedule(self.learning_rate)(round_), velocity), {"velocity": velocity}


def descent(learning_rate: float | Schedule, decay: float) -> momentum | sgd:
    """With momentum, or without."""
    return momentum(learning_rate, decay) if decay else sgd(learning_rate)
