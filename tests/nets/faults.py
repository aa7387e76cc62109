"""Faults in loops: a program in which one call raises, and what has left its private side."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import privopt
from privopt import Ledger
from privopt.measure.mechanisms import gaussian
from privopt.measure.samplers import poisson

CLIP = 0.5
PACKAGE = str(Path(privopt.__file__).parent)


class Fault(BaseException):
    """What a program meets once, as it might meet Ctrl-C."""


class Faults:
    """Raises at the call of privopt's, or the return from one, with this number, from 0; lists those that it has met.

    Those that count are inside a function of privopt's, if one is named.
    """

    def __init__(self, at: int | None = None, within: str | None = None) -> None:
        self.at, self.met = at, list[str]()
        self._within, self._counts = within, within is None

    def places(self, share: slice = slice(None)) -> list[int]:
        """One number for each function that is called, and one for its return: from the middle of the program."""
        where: dict[str, list[int]] = {}
        for number, name in enumerate(self.met):
            where.setdefault(name, []).append(number)
        return [numbers[len(numbers) // 2] for _, numbers in sorted(where.items())][share]

    @contextmanager
    def inside(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines = False
        self._counts = self._counts or frame.f_code.co_qualname == self._within
        self._meet(frame, "calling")
        return self._returned

    def _returned(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._counts = self._counts and frame.f_code.co_qualname != self._within
            self._meet(frame, "returning from")
        return self._returned

    def _meet(self, frame: FrameType, what: str) -> None:
        if self._counts:
            self.met.append(f"{what} {frame.f_code.co_qualname}")
        if self._counts and len(self.met) - 1 == self.at:
            raise Fault


def once(
    call: Callable[..., Any], times: list[bool], *, after: bool, when: int, counts: Callable[[], bool] = lambda: True
) -> Callable[..., Any]:
    """The same call, which raises the time with this number, before it does anything or after it has done all; says so.

    Times at which it does not count have no number.
    """

    def called(*arguments: Any, **named: Any) -> Any:
        if not counts():
            return call(*arguments, **named)
        times.append(len(times) == when)
        now = times[-1]
        if now and not after:
            raise Fault
        value = call(*arguments, **named)
        if now:
            raise Fault
        return value

    return called


class Released:
    """What left the private side: every answer, with the noise that hides it and how many examples it counts.

    All examples of the problem below have one and the same long gradient, so that the length of a clipped sum counts them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[tuple[bytes, bytes]] = []  # noise and answer
        self.drawn, self.counted = 0, list[tuple[int, float]]()  # examples of a round: drawn, and in its sum
        begin, draw = gaussian.begin, poisson.draw

        def drawing(sampler: Any, size: int, round_: int, rng: Any) -> Any:
            rows: Any = draw(sampler, size, round_, rng)
            self.drawn = len(rows)
            return rows

        def beginning(mechanism: Any, like: Any, bound: float, rng: Any) -> Any:
            hidden, drawn, expected = begin(mechanism, like, bound, rng), self.drawn, CLIP / bound

            def answered(total: Any) -> Any:
                noise = b""

                def noisy(out: Any) -> Any:
                    nonlocal noise
                    noise = out.numpy().tobytes()
                    self.counted.append((drawn, float(total(torch.zeros_like(out)).norm()) * expected / CLIP))
                    return total(out)

                value = hidden(noisy)
                self.answers.append((noise, value.numpy().tobytes()))
                return value

            return answered

        monkeypatch.setattr(gaussian, "begin", beginning)
        monkeypatch.setattr(poisson, "draw", drawing)

    @contextmanager
    def checked(self, ledger: Ledger, fault: Faults) -> Iterator[None]:
        """The laws: what left was paid for, no noise hides two answers, no example counts twice."""
        self.answers.clear()
        self.counted.clear()
        try:
            yield
            different = set(self.answers)
            assert len(different) <= sum(entry.count for entry in ledger.entries), "answers that nobody paid for"
            assert len({noise for noise, _ in different}) == len(different), "one noise, two answers"
            assert all(counted <= drawn + 1e-3 for drawn, counted in self.counted), "examples that count twice"
        except Exception as error:
            error.add_note(f"after a fault when {[*fault.met, ''][fault.at or 0]}")
            raise


def data() -> tuple[Tensor, Tensor]:
    return torch.ones(8, 3), torch.zeros(8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1, bias=False)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return 100 * (output[:, 0] - targets)
