"""Adam whose second moment is that of public gradients, and whose first moment mixes them in."""

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from privopt.needs import PUBLIC_GRADIENT, Needs
from privopt.postprocess.schedules import Schedule, as_schedule
from privopt.postprocess.updates.rule import State, Step
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class public_adam:  # noqa: N801  # a constructor that reads as a phrase
    """m ← β₂ m + (1 − β₂)(β₁ g + (1 − β₁) ĝ); v ← β₃ v + (1 − β₃) ĝ²; θ ← θ − η m̂/(√v̂ + ε), where ĝ is a public gradient.

    m̂ and v̂ are m and v divided by 1 − β₂ᵗ and 1 − β₃ᵗ.
    """

    learning_rate: float | Schedule
    weight: float = 0.9  # β₁
    first_decay: float = 0.9  # β₂
    second_decay: float = 0.999  # β₃
    stability: float = 1e-5
    needs: ClassVar[Needs] = frozenset({PUBLIC_GRADIENT})

    def start(self, parameters: Any) -> State:
        return {"first": 0 * parameters, "second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp, gradient = array_namespace(direction), known.gradient
        mixed = self.weight * direction + (1 - self.weight) * gradient
        first = self.first_decay * state["first"] + (1 - self.first_decay) * mixed
        second = self.second_decay * state["second"] + (1 - self.second_decay) * gradient**2
        mean = first / (1 - self.first_decay ** (round_ + 1))
        root = xp.sqrt(second / (1 - self.second_decay ** (round_ + 1)))
        along = mean / (root + self.stability)
        return Step(as_schedule(self.learning_rate)(round_), along), {"first": first, "second": second}
