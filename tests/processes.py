"""Real processes, started quickly: a fork server has loaded and used privopt once for all of them."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["privopt.loop", "privopt.perexample.linear_oracle", "tests.processes", "tests.crash.warm"])
one_fork_server = pytest.mark.xdist_group("processes")


def started(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process that does this work."""
    process = CONTEXT.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def killed(process: BaseProcess) -> None:
    """`kill -9`: no handler runs, no file is flushed or closed by the process itself."""
    assert process.pid is not None
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def answered(work: Callable[..., None], *arguments: Any) -> Any:
    """What another process sends back through the connection that it gets as its first argument."""
    here, there = CONTEXT.Pipe()
    process = started(work, there, *arguments)
    try:
        assert here.poll(60), "no answer"
        return here.recv()
    finally:
        killed(process)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


__all__ = ["Connection", "answered", "killed", "one_fork_server", "size", "started", "wait_for"]
