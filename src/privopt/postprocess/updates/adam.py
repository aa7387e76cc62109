"""Adam with a ceiling on the second moment, with or without bias correction."""

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import State, Step
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class adam:  # noqa: N801  # a constructor that reads as a phrase
    """m ← β₁ m + (1 − β₁) g; v ← β₂ v + (1 − β₂) g²; θ ← θ − η m/(√min(v, λ) + ν).

    With bias correction m and v are divided by 1 − β₁ᵗ and 1 − β₂ᵗ first. The DPAGD paper has the ceiling λ and no
    correction; the AdaDPS paper has the correction and no ceiling. With a noise variance s², max(v − s², floor) takes the
    place of v (DP-AdamBC).
    """

    learning_rate: float | Schedule
    first_decay: float = 0.9
    second_decay: float = 0.999
    stability: float = 1e-8
    ceiling: float = math.inf
    bias_correction: bool = True
    noise_variance: float = 0.0
    floor: float = 0.0

    def start(self, parameters: Any) -> State:
        return {"first": 0 * parameters, "second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp = array_namespace(direction)
        first = self.first_decay * state["first"] + (1 - self.first_decay) * direction
        second = self.second_decay * state["second"] + (1 - self.second_decay) * direction**2
        mean, square = first, second
        if self.bias_correction:
            mean = first / (1 - self.first_decay ** (round_ + 1))
            square = second / (1 - self.second_decay ** (round_ + 1))
        if self.noise_variance:
            square = xp.clip(square - self.noise_variance, min=self.floor)
        if self.ceiling != math.inf:
            square = xp.clip(square, max=self.ceiling)
        along = mean / (xp.sqrt(square) + self.stability)
        return Step(as_schedule(self.learning_rate)(round_), along), {"first": first, "second": second}
