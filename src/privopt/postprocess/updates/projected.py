"""Steps that stay inside a ball."""

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.needs import Needs, needs_of
from privopt.postprocess.updates.rule import State, Step, UpdateRule
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class projected:  # noqa: N801  # a constructor that reads as a phrase
    """θ ← Π(θ + the step of `rule`), Π the nearest point of the ball ‖θ − θ₀‖ ≤ `radius` around the start θ₀."""

    rule: UpdateRule
    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise CompositionError(f"radius is {self.radius}, but a ball has a finite radius > 0.")

    @property
    def needs(self) -> Needs:
        return needs_of(self.rule)

    def start(self, parameters: Any) -> State:
        return {**self.rule.start(parameters), "moved": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        own = {name: value for name, value in state.items() if name != "moved"}
        step, own = self.rule.step(direction, own, round_, known)
        moved = step.taken(state["moved"])
        length = float(array_namespace(moved).linalg.vector_norm(moved))
        if length > self.radius:
            moved = moved * (self.radius / length)
            step = Step(1.0, state["moved"] - moved)
        return step, {**own, "moved": moved}
