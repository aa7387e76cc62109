"""A progress bar: rounds, ε so far, the time left, and perhaps a loss on public data; nothing that depends on private data.

rich is loaded when a bar is made, not before.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from privopt.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

MARKS = 20  # how often ε is computed anew, at most; between two marks the bar shows the next one's, which is never too little
SHARE = 0.02  # of the time may go into ε, and as much into the loss
PREPARING = "Calibrating noise (a few seconds where batches are small) …"

Loss = Callable[[], float]


class Bar:
    """A bar for a training run, and a spinner for what comes before it; `public_loss` computes the loss on public data."""

    def __init__(self, console: "Console", title: str, public_loss: Loss | None = None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds  ε ≤ {task.fields[epsilon]}{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._preparing = console.status(PREPARING)
        self._public_loss = public_loss

    def __enter__(self) -> Self:
        self._preparing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self, rounds: int, spent: Callable[[int], float]) -> None:
        """Training begins; `spent` gives ε after so many rounds."""
        self._rounds, self._spent = rounds, spent
        self._preparing.stop()
        self._progress.start()
        self._task = self._progress.add_task("", total=rounds, epsilon="…", loss="")
        self._began = self._loss_due = time.monotonic()
        self._mark = 0
        self._until(max(1, round(rounds / MARKS)))
        self._began = time.monotonic()

    def advance(self, done: int) -> None:
        """So many rounds are done."""
        now = time.monotonic()
        if done > self._mark:
            pace = (now - self._began) / done
            self._until(done + max(self._rounds / MARKS, self._cost / SHARE / max(pace, 1e-9)))
        if self._public_loss is not None and (now >= self._loss_due or done == self._rounds):
            value = self._public_loss()
            self._loss_due = time.monotonic() + (time.monotonic() - now) / SHARE
            self._progress.update(self._task, loss=f"  public loss {value:.4g}")
        self._progress.update(self._task, completed=done)

    def stop(self) -> None:
        """Remove the spinner and the bar."""
        self._preparing.stop()
        self._progress.stop()

    def _until(self, mark: float) -> None:
        """Show the ε of all rounds up to this mark."""
        started = time.monotonic()
        self._mark = min(self._rounds, round(mark))
        self._progress.update(self._task, epsilon=f"{self._spent(self._mark):.3f}")
        self._cost = time.monotonic() - started


@dataclass(frozen=True)
class Round:
    """A round that is done, for an observer: nothing here depends on private data but through answers that were paid for."""

    done: int
    rounds: int
    spent: Callable[[int], float]

    @property
    def epsilon(self) -> float:
        """ε of all rounds so far. It is computed when it is asked for, which takes a moment."""
        return self.spent(self.done)


class Watchers:
    """Whoever watches a run: a bar, the user's callback f(rounds_done), an observer f(Round)."""

    def __init__(self, bar: Bar | None, callback: Callable[[int], None] | None, observer: Callable[[Round], None] | None) -> None:
        self._bar, self._callback, self._observer = bar, callback, observer

    def start(self, rounds: int, spent: Callable[[int], float]) -> None:
        """Training begins; `spent` gives ε after so many rounds."""
        self._rounds, self._spent = rounds, spent
        if self._bar is not None:
            self._bar.start(rounds, spent)

    def advance(self, done: int) -> None:
        """So many rounds are done."""
        if self._bar is not None:
            self._bar.advance(done)
        if self._callback is not None:
            self._callback(done)
        if self._observer is not None:
            self._observer(Round(done, self._rounds, self._spent))


@contextmanager
def preparing() -> Iterator[None]:
    """Say that noise is being calibrated, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(PREPARING):
        yield


@contextmanager
def watching(
    progress: bool | Callable[[int], None] = False,
    observer: Callable[[Round], None] | None = None,
    public_loss: Loss | None = None,
) -> Iterator[Watchers]:
    """Show a bar if standard error is a terminal and `progress` is True; call what is callable."""
    if not (isinstance(progress, bool) or callable(progress)) or not (observer is None or callable(observer)):
        raise InputError("progress is True, False or a callback f(rounds_done); observer is a callback f(Round), or None.")
    callback = progress if callable(progress) else None
    if callback is not None or not progress or not sys.stderr.isatty():
        yield Watchers(None, callback, observer)
        return
    from rich.console import Console

    with Bar(Console(stderr=True), "training", public_loss) as bar:
        yield Watchers(bar, None, observer)
