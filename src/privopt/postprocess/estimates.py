"""Estimates: the gradient of the data, from the private answers so far.

An answer may be the gradient itself, or only how it changed since the round before. The regulariser is public and known exactly,
so the loop adds its gradient *after* the estimate, anew in every round: an estimate is of the data's part only.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from privopt.postprocess.updates import Schedule, as_schedule

State = dict[str, Any]  # arrays by name, so that it can be saved


class Estimate(Protocol):
    """Turns answers into a gradient."""

    def start(self, parameters: Any) -> State:
        """The state before the first round; it depends on the shape of the parameters only."""
        ...

    def of(self, answer: Any, state: State, round_: int) -> tuple[Any, State]:
        """The estimated gradient of the data after this answer, and the next state."""
        ...


@dataclass(frozen=True)
class newest_answer:  # noqa: N801  # a constructor that reads as a phrase
    """The answer of the round: it is a gradient."""

    def start(self, parameters: Any) -> State:
        return {}

    def of(self, answer: Any, state: State, round_: int) -> tuple[Any, State]:
        return answer, state


@dataclass(frozen=True)
class recursive_momentum:  # noqa: N801
    """v ← κv + answer, from v = 0, where κ = `carry` is a number or a function of the round (0 where v starts anew).

    An answer that estimates ∇F(θ) − κ∇F(θ′), with θ′ the iterate before, makes v an estimate of ∇F(θ).

    >>> rule, state = recursive_momentum(0.5), {"estimate": 0.0}
    >>> for round_, answer in enumerate([8.0, 2.0]):
    ...     estimate, state = rule.of(answer, state, round_)
    >>> estimate
    6.0
    """

    carry: float | Schedule

    def start(self, parameters: Any) -> State:
        return {"estimate": 0 * parameters}

    def of(self, answer: Any, state: State, round_: int) -> tuple[Any, State]:
        estimate = as_schedule(self.carry)(round_) * state["estimate"] + answer
        return estimate, {"estimate": estimate}
