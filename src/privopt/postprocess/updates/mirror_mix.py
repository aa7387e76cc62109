"""Mirror descent by a public loss, in its practical form: steps along a mixture of a private and a public gradient."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from privopt.needs import PUBLIC_GRADIENT, Needs
from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import State, Step
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class mirror_mix:  # noqa: N801  # a constructor that reads as a phrase
    """θ ← θ − η (α g + (1 − α) ĝ) with α = cos(πt/2K) until t = K, then 0, where ĝ is a public gradient."""

    learning_rate: float | Schedule
    horizon: int  # K
    needs: ClassVar[Needs] = frozenset({PUBLIC_GRADIENT})

    def start(self, parameters: Any) -> State:
        return {}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        share = math.cos(math.pi * min(round_ / self.horizon, 1.0) / 2)
        mixed = share * direction + (1 - share) * known.gradient
        return Step(as_schedule(self.learning_rate)(round_), mixed), state
