"""Rounds for a trainer that has its own loop.

A trainer asks its loader for a batch, perhaps one ahead, and counts batches: for schedulers, logging and the end. It is handed
*turns*: objects without any example. The private round is drawn, paid and computed when the trainer takes its step, so what a
trainer fetches ahead or skips draws nothing, and its count of steps is the count of rounds.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from privopt.errors import InputError
from privopt.nets.choices import count_passes, need_batch_size
from privopt.nets.loading import Examples
from privopt.nets.private_loop import Private
from privopt.perexample.persons import Persons

AGAIN = (
    "this model may have been trained privately before. What can be claimed about it then is what all runs cost together, "
    "private.ledger.epsilon(delta=…): the newest statement counts the newest run."
)
ACCUMULATION = (
    "a round is one batch, which privopt cuts into pieces that fit into memory: accumulate nothing, and say the batch size that "
    "all of them together had."
)
Turn = dict[str, Any]  # without an entry


class Turns:
    """A loader of turns: as many in a pass as rounds make up an epoch of Poisson batches, of persons if their ids are given.

    >>> turns = Turns((Tensor(range(100)), Tensor(range(100))), 30)
    >>> len(turns), list(turns)
    (3, [{}, {}, {}])
    """

    def __init__(self, data: Any, batch_size: int | None, persons: Any = None) -> None:
        examples = Examples.given(data)
        self._size = len(examples) if persons is None else Persons.of(persons, len(examples)).size
        self.batch_size = need_batch_size(batch_size, examples.batch_size)

    def __len__(self) -> int:
        return count_passes(self._size, min(self.batch_size, self._size), 1, None)[0]

    def __iter__(self) -> Iterator[Turn]:
        return iter([{} for _ in range(len(self))])


class TurnTaker:
    """Takes the rounds of a private loop, one at each turn of a trainer."""

    def __init__(self, private: Private) -> None:
        self._private = private
        self._pieces: Iterator[Any] = iter(private.loader)

    def take(self, losses: Callable[[Any], Tensor]) -> None:
        """Train for one round; `losses` gives one loss for each example of a piece.

        A round without examples is closed on the way to the next one, so the last turns may find nothing to do.
        """
        for piece in self._pieces:
            if self._private.step(lambda piece=piece: losses(piece)):  # type: ignore[misc]
                return


def refuse_accumulation(steps: int, argument: str) -> None:
    """Refuse a trainer that adds up several batches: a round is one."""
    if steps != 1:
        raise InputError(f"{argument} is {steps}, but {ACCUMULATION}")
