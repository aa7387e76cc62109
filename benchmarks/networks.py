"""Networks: one private step beside the non-private one and beside Opacus, in time and in memory.

Each contender (`contenders.py`) is a process of its own that idles until it is told to do a block of steps. Blocks alternate, and
a ratio is of two blocks of the same round. Each contender has the number of torch threads, 1 or 2, that is faster for it; privopt
draws the noise of large models by all processors in either case. `TUNED` tells `opacus-hooks-tuned` to keep its memory.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.data import Array
from benchmarks.report import Row, middle, spread

MODELS = ("logistic", "linear-5m", "mlp-128", "mlp-512", "mnist-cnn", "autoencoder", "lstm", "transformer", "cifar-cnn")
GHOST, OPACUS = "opacus-ghost", ("opacus-ghost", "opacus-hooks", "opacus-hooks-tuned")
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}  # glibc gives no memory back, so it is not mapped anew

LIMITS = {
    "linear-5m": 2.0, "mlp-128": 1.6, "mlp-512": 1.35, "mnist-cnn": 1.15, "autoencoder": 1.9, "lstm": 1.8, "transformer": 1.3,
    "cifar-cnn": 1.5,
}  # fmt: skip
TWICE = ("linear-5m", "mlp-128", "mlp-512", "autoencoder", "lstm")  # as fast as Opacus' ghost clipping; the others 1.5 times
MEMORY = 1.1  # times that of ghost clipping
FEW = 10  # megabytes
OTHER_QUERIES = ("mlp-128", "mnist-cnn", "transformer")
PRECONDITIONED, DIFFERENCE = 1.6, 1.5

MOST = 100  # steps in a block
BUSY = 0.2  # seconds of a block, if that is not too many steps


class Contender:
    """A process that trains when it is told to."""

    def __init__(self, model: str, name: str) -> None:
        self._process = subprocess.Popen(
            _order(model, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(name)
        )
        self.threads, self.steps = 1, 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate()  # no more orders: it ends

    def block(self) -> float:
        """Seconds per step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self.threads} {self.steps}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def settle(self, busy: float) -> None:
        """Choose the number of threads, and of steps in a block."""
        self.steps = max(1, min(MOST, round(busy / 2 / self.block())))
        choices = [1, 2] if (os.cpu_count() or 1) > 1 else [1]
        seconds = dict.fromkeys(choices, np.inf)
        for threads in 5 * choices:
            self.threads = threads
            seconds[threads] = min(seconds[threads], self.block())
        self.threads = min(choices, key=seconds.__getitem__)
        self.steps = max(1, min(MOST, round(busy / seconds[self.threads])))


def networks(blocks: int, models: tuple[str, ...] = MODELS, busy: float = BUSY) -> Iterator[Row]:
    """Every model with every contender that is installed."""
    if find_spec("torch") is None:
        return
    names = ("non-private", "privopt", *(OPACUS if find_spec("opacus") else ()))
    for model in models:
        seconds, threads = timed(model, names, blocks, busy)
        yield from _rows(model, seconds, threads)
        if GHOST in names:
            yield from _beside_opacus(model, seconds)
        if model in OTHER_QUERIES:
            others, _ = timed(model, ("plain", "preconditioned", "difference", "two-gradients"), blocks, busy)
            for row, of, name, limit in (
                ("preconditioned", "plain", "preconditioned step / plain private step", PRECONDITIONED),
                ("difference", "two-gradients", "sum of differences, without noise / two gradients, not private", DIFFERENCE),
            ):
                ratio = others[row] / others[of]
                yield Row(
                    _section(model),
                    name,
                    spread(ratio, " ×"),
                    f"≤ {limit} ×",
                    middle(ratio)[0] <= limit,
                    spread(others[row], " ms", 1e3),
                    {"ratio": middle(ratio)},
                )


def memory_of_networks(models: tuple[str, ...] = MODELS) -> Iterator[Row]:
    """What a step of every model takes beyond model and data."""
    if find_spec("torch") is None:
        return
    names = ("non-private", "privopt", *((GHOST,) if find_spec("opacus") else ()))
    for model in models:
        yield from _memory_rows(model, {name: peak(model, name) for name in names})


def timed(model: str, names: tuple[str, ...], blocks: int, busy: float) -> tuple[dict[str, Array], dict[str, int]]:
    """Seconds per step of each contender in each round, and its threads."""
    with ExitStack() as stack:
        contenders = {name: stack.enter_context(Contender(model, name)) for name in names}
        for contender in contenders.values():
            contender.settle(busy)
        rounds = [{name: contender.block() for name, contender in contenders.items()} for _ in range(blocks)]
        threads = {name: contender.threads for name, contender in contenders.items()}
    return {name: np.array([found[name] for found in rounds]) for name in names}, threads


def peak(model: str, name: str) -> float:
    """Megabytes beyond model and data: the middle of three fresh processes, or of nine if they are few.

    Processes differ by a megabyte, by how the parts of their heaps fit into one another.
    """
    if not Path("/proc/self/clear_refs").exists():
        return float("nan")
    order, environment = [*_order(model, name), "memory"], _environment(name)
    found: list[float] = []
    while len(found) < (9 if found and found[0] < FEW else 3):
        run = subprocess.run(order, capture_output=True, text=True, check=True, env=environment)
        found.append(float(run.stdout) / 1e6)
    return float(np.median(found))


def _order(model: str, name: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("contenders.py")), model, name]


def _environment(name: str) -> dict[str, str]:
    return {**os.environ, **(TUNED if name.endswith("tuned") else {})}


def _section(model: str) -> str:
    return f"networks: {model}"


def _rows(model: str, seconds: Mapping[str, Array], threads: Mapping[str, int]) -> Iterator[Row]:
    for name, own in seconds.items():
        ratio = own / seconds["non-private"]
        median, low, high = middle(ratio)
        limit = LIMITS.get(model) if name == "privopt" else None
        yield Row(
            _section(model),
            name,
            spread(ratio, " ×"),
            f"≤ {limit} ×" if limit else "",
            median <= limit if limit else None,
            f"{spread(own, ' ms', 1e3)}, {threads[name]} thread{'s' * (threads[name] > 1)}",
            {"ratio": median, "quartiles": [low, high], "seconds": middle(own)[0], "threads": threads[name]},
            place=(model, name),
        )


def _beside_opacus(model: str, seconds: Mapping[str, Array]) -> Iterator[Row]:
    least = 2.0 if model in TWICE else 1.5
    best = min(OPACUS, key=lambda name: middle(seconds[name])[0])
    for name, limit in ((GHOST, least), (best, 1.0)):
        faster = seconds[name] / seconds["privopt"]
        yield Row(
            _section(model),
            f"privopt beside {name}{', the fastest' if limit == 1.0 else ''}",
            f"{spread(faster, ' ×')} faster",
            f"≥ {limit} × faster",
            middle(faster)[0] >= limit,
            numbers={"faster": middle(faster)},
        )


def _memory_rows(model: str, memory: Mapping[str, float]) -> Iterator[Row]:
    for name, megabytes in memory.items():
        place = (model, name)
        yield Row(_section(model), f"{name}, memory", f"{megabytes:.2f} MB", numbers={"memory_mb": megabytes}, place=place)
    if GHOST in memory:
        more = memory["privopt"] / memory[GHOST]
        yield Row(
            _section(model),
            f"privopt's memory / {GHOST}'s",
            f"{more:.2f} ×",
            f"≤ {MEMORY} ×",
            more <= MEMORY,
            numbers={"memory": more},
        )
