"""Rounds of a loop that is not ours: paid a few ahead, each answered at most once, and spent whatever happens in it.

After a round that failed, a state that was saved before leads elsewhere than this loop: to the round that failed, and past it. So
the loop goes on as a new run of the ledger; what the old run paid ahead is left to the saved state.
"""

from collections.abc import Sequence
from typing import Any

from privopt.errors import BudgetExceeded
from privopt.privacy.events import DpEvent, compose
from privopt.privacy.ledger import Run

AHEAD = 16  # rounds that are paid with one write


class PaidRounds:
    """How many rounds are closed, begun and affordable, and the runs of the ledger that they are paid in.

    **Guarantee** A round is begun once it is paid for, and its number is then used up. A round that fails is closed without an
    answer, and the next one has a payment of its own.
    """

    def __init__(self, spending: Run, events: Sequence[DpEvent]) -> None:
        self._spending, self._events, self._ledger = spending, list(events), spending.ledger
        self._earlier: list[Run] = []  # runs that ended with a round that failed
        self._first = 0  # the round that `_spending` began with
        self._saved = False  # whether a state of `_spending` may be replayed
        self.planned = self._last = len(self._events)  # and affordable
        self.closed = self.begun = self.failed = 0  # begun: inside a round one more than closed; failed: closed without an update

    @property
    def event(self) -> DpEvent:
        """What was paid for."""
        return compose(run.since(0) for run in (*self._earlier, self._spending))

    @property
    def left(self) -> bool:
        """Whether another round is planned and affordable."""
        return self.closed < self._last

    @property
    def inside(self) -> bool:
        """Whether a round is begun and not closed."""
        return self.begun > self.closed

    def afford(self) -> None:
        """Ask the ledger how many rounds it still holds."""
        paid = self._first + self._spending.position
        self._last = paid + self._spending.affordable(self._events[paid:])
        if self._last == self.closed < self.planned:
            raise BudgetExceeded(f"not even one round fits into what is left of the ledger's budget: {self._ledger.budget}.")

    def begin(self) -> None:
        """Pay for the next round, if that was not done ahead, and use up its number."""
        if self.closed >= self._first + self._spending.position:
            self._spending.pay(self._events[self.closed : min(self.closed + AHEAD, self._last)])
        self.begun = self.closed + 1

    def close(self) -> None:
        """The round that was begun has answered."""
        self.closed = self.begun

    @property
    def renews(self) -> bool:
        """Whether the loop goes on as a new run, with new randomness, if the round that was begun fails."""
        return self._saved

    def fail(self) -> None:
        """Close the round that was begun without an answer."""
        if self._saved:
            paid = self._first + self._spending.position
            self._earlier, self._spending, self._saved = [*self._earlier, self._spending], self._ledger.run(), False
            self._first = self.begun = paid
        self.failed += self.begun - self.closed
        self.close()

    def save(self) -> dict[str, Any]:
        """What `load` reads back: the runs, and where they stand."""
        self._saved = True
        runs = [[run.name, run.position] for run in (*self._earlier, self._spending)]
        return {"runs": runs, "round": self.closed, "failed": self.failed}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved; a durable ledger holds its payments already."""
        runs, first = [], 0
        for name, paid in state["runs"]:
            runs.append(self._ledger.run(name))
            runs[-1].pay(self._events[first : first + paid])
            first += paid
        *self._earlier, self._spending = runs
        self._first, self._saved = first - self._spending.position, True
        self.begun = self.closed = state["round"]
        self.failed = state["failed"]
