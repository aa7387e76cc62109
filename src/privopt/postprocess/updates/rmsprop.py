"""RMSProp with a ceiling on the second moment."""

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import State, Step
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class rmsprop:  # noqa: N801  # a constructor that reads as a phrase
    """v ← β₂ v + (1 − β₂) g²; θ ← θ − η g/(√min(v, λ) + ν).

    The ceiling λ keeps noise, which inflates v, from making the steps vanish (Zhou et al., DPAGD).
    """

    learning_rate: float | Schedule
    decay: float = 0.99
    stability: float = 1e-8
    ceiling: float = math.inf

    def start(self, parameters: Any) -> State:
        return {"second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp = array_namespace(direction)
        second = self.decay * state["second"] + (1 - self.decay) * direction**2
        held = second if self.ceiling == math.inf else xp.clip(second, max=self.ceiling)
        return Step(as_schedule(self.learning_rate)(round_), direction / (xp.sqrt(held) + self.stability)), {"second": second}
