"""The slot: an update rule turns a direction into a step, and keeps its memory in named arrays (so that it can be saved)."""

from typing import Any, Protocol

from privopt.errors import CompositionError
from privopt.trajectory import Known

State = dict[str, Any]  # arrays by name; an empty one for a rule without memory
NOTHING = Known()


class UpdateRule(Protocol):
    """What to do with the answer of a round."""

    def start(self, parameters: Any) -> State:
        """The memory before the first round; it depends on the shape of the parameters only."""
        ...

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Any, State]:
        """What to add to the iterate, and the memory after; `known` is the side information of the round.

        The step is an array of its own, neither the direction nor a part of the memory: it is turned into the next iterate.
        """
        ...


def public(known: Known) -> Any:
    """The public gradient of the round, for rules that need one."""
    if known.gradient is None:
        raise CompositionError("this update rule steps by public gradients, but the recipe's side information knows none.")
    return known.gradient
