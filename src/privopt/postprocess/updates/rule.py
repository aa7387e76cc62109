"""The slot: an update rule turns a direction into a step, and keeps its memory in named arrays (so that it can be saved)."""

import math
from typing import Any, NamedTuple, Protocol

from array_api_compat import array_namespace, is_torch_array

from privopt.trajectory import NOTHING, Known

State = dict[str, Any]  # arrays by name; an empty one for a rule without memory


class Step(NamedTuple):
    """θ ← θ − rate · along."""

    rate: float
    along: Any

    @property
    def displacement(self) -> Any:
        """What is added to the iterate."""
        return -self.rate * self.along

    def taken(self, here: Any, *, in_place: bool = False) -> Any:
        """The next iterate, in an array of its own or in that of the iterate. For torch in one pass: it may be large."""
        if is_torch_array(here):
            most = array_namespace(here).finfo(here.dtype).max
            rate = self.rate if self.rate <= most else math.inf  # torch refuses what overflows, but takes what is infinite
            return (here.add_ if in_place else here.add)(self.along, alpha=-rate)
        there, more = (here, self.displacement) if in_place else (self.displacement, here)
        there += more
        return there


class UpdateRule(Protocol):
    """What to do with the answer of a round. What it needs beside the answer, it declares: `privopt.needs`."""

    def start(self, parameters: Any) -> State:
        """The memory before the first round; it depends on the shape of the parameters only."""
        ...

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        """Where to go from the iterate, and the memory after; `known` is the side information of the round."""
        ...
