"""The slot: what is known publicly at an iterate."""

from dataclasses import dataclass
from typing import Any, Protocol

from privopt.trajectory import NOTHING, Known

State = dict[str, Any]  # arrays by name, so that it can be saved


class SideInformation(Protocol):
    """What is known. Which of it (a public gradient, a scale, a momentum), it declares as `offers`: `privopt.needs`."""

    def start(self, parameters: Any) -> State:
        """The memory before the first round."""
        ...

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        """What is known at this iterate when a round begins, and the memory after."""
        ...

    def observe(self, answer: Any, state: State, round_: int) -> State:
        """The memory after a round whose private answer this is."""
        ...


class Unmoved:
    """Private answers teach it nothing."""

    def start(self, parameters: Any) -> State:
        return {}

    def observe(self, answer: Any, state: State, round_: int) -> State:
        return state


@dataclass(frozen=True)
class nothing(Unmoved):  # noqa: N801  # a constructor that reads as a phrase
    """Nothing is known."""

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        return NOTHING, state
