"""Processes that are killed at their n-th durable call, the one thing that a crash can come before or after.

`durable_calls(work, …)` runs `work(…)` in a process of its own and lists the calls it made; `killed_at(n, work, …)` runs it
again and kills it, with SIGKILL, when it is about to make the n-th: no handler runs, nothing is flushed. A write is cut in half.
`work` is a function of a module, and its arguments can be pickled; the fork server has loaded privopt and torch, so that a
process takes a few milliseconds to start.
"""

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from tests.processes import CONTEXT

DURABLE = ("open", "write", "fsync", "ftruncate", "truncate", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")


def durable_calls(work: Callable[..., Any], *arguments: Any) -> list[str]:
    """Run it to its end: the durable calls that it made, in order."""
    here, there = CONTEXT.Pipe(duplex=False)
    killed, calls = _run(None, there, work, arguments), here.recv() if here.poll() else []
    assert not killed
    return list(calls)


def killed_at(place: int, work: Callable[..., Any], *arguments: Any) -> bool:
    """Run it until it is about to make its durable call of this number, from 0: whether it came so far."""
    return _run(place, None, work, arguments)


def spread(count: int, most: int) -> Iterator[int]:
    """At most so many of `count` places, evenly: the first and the last are among them."""
    yield from range(count) if count <= most else sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _run(place: int | None, told: Connection | None, work: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    process = CONTEXT.Process(target=_work, args=(place, told, work, arguments), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), f"the process ended with {process.exitcode}"
    return process.exitcode == -signal.SIGKILL


def _work(place: int | None, told: Connection | None, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    calls: list[str] = []
    for name in DURABLE:
        setattr(os, name, _counted(name, getattr(os, name), calls, place))
    work(*arguments)
    if told is not None:
        told.send(list(calls))


def _counted(name: str, call: Callable[..., Any], calls: list[str], place: int | None) -> Callable[..., Any]:
    def counted(*given: Any, **named: Any) -> Any:
        if name == "open" and not given[1] & os.O_CREAT:  # nothing lasts of reading
            return call(*given, **named)
        if len(calls) == place:
            if name == "write":
                call(given[0], given[1][: len(given[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        calls.append(name)
        return call(*given, **named)

    return counted
