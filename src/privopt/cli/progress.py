"""A progress bar that shows rounds, ε so far and the time left: nothing that depends on the data."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

MARKS = 20  # how often ε is computed anew; between two marks the bar shows the next one's, which is never too little


class Bar:
    """Watches a training run."""

    def __init__(self, console: Console, title: str) -> None:
        self._progress = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds  ε ≤ {task.fields[epsilon]}"),
            TimeRemainingColumn(),
            console=console,
            transient=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def start(self, rounds: int, spent: Callable[[int], float]) -> None:
        self._progress.start()
        self._spent = spent
        self._marks = sorted({max(1, round(rounds * share / MARKS)) for share in range(1, MARKS + 1)})
        self._task = self._progress.add_task("", total=rounds, epsilon=f"{spent(self._marks[0]):.3f}")

    def advance(self, done: int) -> None:
        while self._marks and self._marks[0] < done:
            self._marks.pop(0)
            if self._marks:
                self._progress.update(self._task, epsilon=f"{self._spent(self._marks[0]):.3f}")
        self._progress.update(self._task, completed=done)
