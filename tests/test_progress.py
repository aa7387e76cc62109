"""The progress bar: never too little ε, never much of the time, and nothing at all where nobody watches."""

import io
import itertools
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from privopt import progress
from privopt.progress import MARKS, PREPARING, SHARE, Bar, Round, watching
from tests.test_import import loaded


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def run(bar: Bar, clock: Clock, rounds: int, cost: float, each: float = 1.0) -> tuple[list[float], list[int]]:
    """The ε that is shown after each round, and the rounds it was computed for; an ε takes `cost`, a round takes `each`."""
    asked: list[int] = []

    def spent(done: int) -> float:
        clock.now += cost
        asked.append(done)
        return done / 1000

    bar.start(rounds, spent)
    shown = []
    for done in range(1, rounds + 1):
        clock.now += each
        bar.advance(done)
        shown.append(float(bar._progress.tasks[0].fields["epsilon"]))
    return shown, asked


@pytest.mark.parametrize("rounds", [1, 7, 1000])
@pytest.mark.parametrize("cost", [0.0, 0.3, 50.0])
def test_the_epsilon_shown_is_never_too_little_and_exact_in_the_end(clock: Clock, rounds: int, cost: float) -> None:
    with Bar(Console(file=io.StringIO()), "training") as bar:
        shown, asked = run(bar, clock, rounds, cost)
    assert all(epsilon >= done / 1000 for done, epsilon in enumerate(shown, start=1))
    assert shown[-1] == rounds / 1000
    assert len(asked) <= MARKS + 1
    assert cost * (len(asked) - 2) <= SHARE * rounds + cost  # two at least: before the first round, and at the first mark


def test_the_loss_on_public_data_takes_little_time_and_is_shown(clock: Clock) -> None:
    values = itertools.count(1)
    told = []

    def loss() -> float:
        clock.now += 3.0
        told.append(next(values))
        return told[-1] / 10

    written = io.StringIO()
    with Bar(Console(file=written, width=120), "training", loss) as bar:
        run(bar, clock, 1000, 0.0)
    assert 1 < len(told) <= 2 + SHARE * 1000 / 3.0
    assert f"public loss {told[-1] / 10:.4g}" in written.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(
    asked: bool | Callable[[int], None],
    stream: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    observer: Callable[[Round], None] | None = None,
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with watching(asked, observer) as watchers:
        watchers.start(3, lambda done: 0.1 * done)
        for done in (1, 2, 3):
            watchers.advance(done)


def test_an_observer_sees_each_round_and_its_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, float]] = []
    watch(False, io.StringIO(), monkeypatch, lambda round_: seen.append((round_.done, round_.rounds, round(round_.epsilon, 9))))
    assert seen == [(1, 3, 0.1), (2, 3, 0.2), (3, 3, 0.3)]


def test_a_terminal_shows_rounds_and_epsilon_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    watch(True, screen, monkeypatch)
    shown = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", screen.getvalue())
    assert re.search(r"training ━+ 3/3 rounds  ε ≤ 0\.300 0:00:00\s*$", shown)


def appears(text: str, screen: Terminal, seconds: float) -> bool:
    """Whether this is seen within some seconds: rich draws ten times a second."""
    end = time.monotonic() + seconds
    while text not in screen.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return text in screen.getvalue()


def test_a_terminal_is_told_what_comes_before_the_first_round_until_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    screen = Terminal()
    with Bar(Console(file=screen, force_terminal=True), "training") as bar:
        assert appears(PREPARING, screen, 20)
        bar.start(3, lambda done: 0.1 * done)
        before = len(screen.getvalue())
        bar.advance(3)
    assert PREPARING not in screen.getvalue()[before:]


@pytest.mark.parametrize(("asked", "seen"), [(True, True), (False, False), (print, False)])
def test_whoever_will_see_a_bar_is_told_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, asked: Any, seen: bool) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with watching(asked):
        assert appears(PREPARING, screen, 20 if seen else 0.5) is seen


@pytest.mark.parametrize(("asked", "stream"), [(True, io.StringIO()), (False, Terminal())])
def test_a_file_and_a_user_who_asks_for_silence_see_nothing(
    monkeypatch: pytest.MonkeyPatch, asked: bool, stream: io.StringIO
) -> None:
    watch(asked, stream, monkeypatch)
    assert stream.getvalue() == ""


def test_a_function_is_told_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    watch(told.append, Terminal(), monkeypatch)
    assert told == [1, 2, 3]


def test_importing_the_bar_does_not_load_rich() -> None:
    modules = loaded("import privopt.progress")
    assert "privopt.progress" in modules
    assert "rich" not in modules
