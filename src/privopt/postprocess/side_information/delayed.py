"""A preconditioner from private answers: late, but with less noise than any of them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.needs import SCALE, Need
from privopt.postprocess.side_information.slot import State
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class delayed_preconditioner:  # noqa: N801  # a constructor that reads as a phrase
    """Nothing is known for `phase` rounds, whose answers are averaged; then the scale √v + ν is, for as many; and so on.

    v ← β v + (1 − β) ḡ² at the end of each phase of averaging, where ḡ is the mean of its answers.
    """

    phase: int
    decay: float = 0.9
    stability: float = 1e-8
    offers: ClassVar[frozenset[Need]] = frozenset({SCALE})  # in some rounds

    def __post_init__(self) -> None:
        if self.phase < 1:
            raise CompositionError(f"a phase has at least one round, not {self.phase}.")

    def ready(self, round_: int) -> bool:
        """Whether the scale is known in this round."""
        return round_ // self.phase % 2 == 1

    def start(self, parameters: Any) -> State:
        return {"total": 0 * parameters, "second": 0 * parameters}

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        if not self.ready(round_):
            return NOTHING, state
        return Known(scale=array_namespace(parameters).sqrt(state["second"]) + self.stability), state

    def observe(self, answer: Any, state: State, round_: int) -> State:
        if self.ready(round_):
            return state
        total = state["total"] + answer
        if not self.ready(round_ + 1):
            return {**state, "total": total}
        second = self.decay * state["second"] + (1 - self.decay) * (total / self.phase) ** 2
        return {"total": 0 * total, "second": second}
