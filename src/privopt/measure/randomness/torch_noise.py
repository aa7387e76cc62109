"""Noise for torch: normal numbers from a keystream.

Each call draws a key of 256 bits from the run's generator. The numbers follow from the key (`keyed_normal`), whichever thread
draws them, so the generator is the only state to save.
"""

import os
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privopt.measure.randomness import KEY_BITS, Rng, Sum
from privopt.measure.randomness import key as next_key
from privopt.measure.randomness.keyed_normal import fill

FEW = 1 << 12  # below this size NumPy draws: a key costs more
MANY = 1 << 15  # from this size on a second thread pays off
PART = 1 << 18  # numbers per unit of work
MOST_THREADS = 8

Results = SimpleQueue[BaseException | None]  # one for each part: None, or the error that it failed with


def normal(like: Tensor, deviation: float, rng: Rng) -> Callable[[Sum], Tensor]:
    """Start drawing normal noise; the function that is returned adds a sum to it.

    It is drawn on the CPU, in single precision; small or double-precision noise by NumPy. Large noise is drawn while the sum is
    computed if torch leaves processors idle, else after it, by all threads.
    """
    size = like.numel()
    if size < FEW or like.dtype == torch.float64:
        return lambda total: total(as_tensor_like(deviation * rng.standard_normal(tuple(like.shape)), like))
    key = _key(rng)
    finish = None
    if size >= MANY and (torch.get_num_threads() == 1 or not like.is_cpu):
        finish = _start_drawing(size, deviation, key)

    def add(total: Sum) -> Tensor:
        numbers = finish() if finish else _draw(size, deviation, key)
        return total(numbers if like.is_cpu and like.ndim == 1 else numbers.view(like.shape).to(like.device))

    return add


def _draw(size: int, deviation: float, key: NDArray[np.uint32]) -> Tensor:
    """Draw the numbers, with other threads if there are many."""
    if size >= 2 * PART:
        return _start_drawing(size, deviation, key)()
    room = _allocate(size)
    fill(key, 0, room.numpy(), deviation)
    return room[:size] if size % 2 else room


def _start_drawing(size: int, deviation: float, key: NDArray[np.uint32]) -> Callable[[], Tensor]:
    """Let other threads start drawing; the function that is returned draws what is left, and waits for them."""
    room = _allocate(size)
    numbers, starts = room.numpy(), range(0, size, PART)
    left = deque(partial(fill, key, start, numbers[start : start + PART], deviation) for start in starts)
    results: Results = SimpleQueue()
    for _ in starts[: MOST_THREADS - 1]:
        _workers(os.getpid()).put(partial(_draw_parts, left, results))

    def finish() -> Tensor:
        _draw_parts(left, results)
        for _ in starts:
            if error := results.get():
                raise error
        return room[:size]

    return finish


def _allocate(size: int) -> Tensor:
    """Allocate memory for pairs of numbers, aligned for vector instructions."""
    return torch.empty(size + size % 2, dtype=torch.float32)


def _draw_parts(left: deque[partial[None]], results: Results) -> None:
    """Draw parts until none is left."""
    while left:
        try:
            draw = left.pop()
        except IndexError:  # another thread has the last one
            return
        try:
            draw()
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)


@cache
def _workers(process: int) -> "SimpleQueue[Callable[[], None]]":
    """The work queue of this process's threads; a fork inherits none. (An executor takes as long as a small model's noise.)"""
    waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def serve() -> None:
        while True:
            waiting.get()()

    for _ in range(max(1, min(MOST_THREADS, _processors()) - 1)):
        Thread(target=serve, name="privopt-noise", daemon=True).start()
    return waiting


def as_tensor_like(numbers: NDArray[Any], like: Tensor) -> Tensor:
    """Convert numbers to a tensor of the same precision and device as `like`."""
    return torch.from_numpy(numbers).to(like)


def _key(rng: Rng) -> NDArray[np.uint32]:
    """Draw a key, as the words that `keyed_normal` takes."""
    return np.frombuffer(next_key(rng).to_bytes(KEY_BITS // 8, "little"), np.uint32)


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
