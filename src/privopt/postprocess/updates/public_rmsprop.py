"""RMSProp whose second moment is that of public gradients."""

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from privopt.needs import PUBLIC_GRADIENT, Needs
from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import State, Step
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class public_rmsprop:  # noqa: N801  # a constructor that reads as a phrase
    """v ← β v + (1 − β) ĝ²; θ ← θ − η g/(√v + ε), where ĝ is a public gradient: noise in g does not inflate v."""

    learning_rate: float | Schedule
    decay: float = 0.9
    stability: float = 1e-5
    needs: ClassVar[Needs] = frozenset({PUBLIC_GRADIENT})

    def start(self, parameters: Any) -> State:
        return {"second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp = array_namespace(direction)
        second = self.decay * state["second"] + (1 - self.decay) * known.gradient**2
        return Step(as_schedule(self.learning_rate)(round_), direction / (xp.sqrt(second) + self.stability)), {"second": second}
