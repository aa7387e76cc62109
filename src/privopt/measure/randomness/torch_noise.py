"""Randomness for torch: normal numbers from a keystream.

Each call draws a key of 256 bits from a generator of ours, and numbers are made of it (`keyed_normal`) in whichever thread. Ours
is the only state there is to keep.
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

from privopt.measure.randomness.generators import KEY_BITS, Rng
from privopt.measure.randomness.generators import key as next_key
from privopt.measure.randomness.keyed_normal import fill
from privopt.measure.randomness.noise import Sum

FEW = 1 << 12  # numbers that are not worth a key
MANY = 1 << 15  # numbers that are worth a thread
PART = 1 << 18  # numbers that a thread takes at a time
MOST = 8  # threads

Ended = SimpleQueue[BaseException | None]  # of each part, once it is drawn or has failed


def normal(like: Tensor, deviation: float, rng: Rng) -> Callable[[Sum], Tensor]:
    """Independent normal numbers; the function that is returned adds a sum to them.

    They are drawn on the CPU, in single precision; a few, and those in double precision, by numpy. Many are drawn while the sum
    is prepared, if torch leaves processors idle; else after it, by all of them.
    """
    size = like.numel()
    if size < FEW or like.dtype == torch.float64:
        return lambda total: total(brought(deviation * rng.standard_normal(tuple(like.shape)), like))
    key = _key(rng)
    begun = None
    if size >= MANY and (torch.get_num_threads() == 1 or not like.is_cpu):
        begun = _begun(size, deviation, key)

    def added(total: Sum) -> Tensor:
        numbers = begun() if begun else _drawn(size, deviation, key)
        return total(numbers if like.is_cpu and like.ndim == 1 else numbers.view(like.shape).to(like.device))

    return added


def _drawn(size: int, deviation: float, key: NDArray[np.uint32]) -> Tensor:
    """The numbers, by other threads too if they are many."""
    if size >= 2 * PART:
        return _begun(size, deviation, key)()
    room = _room(size)
    fill(key, 0, room.numpy(), deviation)
    return room[:size] if size % 2 else room


def _begun(size: int, deviation: float, key: NDArray[np.uint32]) -> Callable[[], Tensor]:
    """Let other threads begin with the numbers; the function that is returned draws what is left of them."""
    room = _room(size)
    numbers, starts = room.numpy(), range(0, size, PART)
    left = deque(partial(fill, key, start, numbers[start : start + PART], deviation) for start in starts)
    ended: Ended = SimpleQueue()
    for _ in starts[: MOST - 1]:
        _helpers(os.getpid()).put(partial(_work, left, ended))

    def drawn() -> Tensor:
        _work(left, ended)
        for _ in starts:
            if error := ended.get():
                raise error
        return room[:size]

    return drawn


def _room(size: int) -> Tensor:
    """Where numbers will be: pairs of them, aligned as products like it."""
    return torch.empty(size + size % 2, dtype=torch.float32)


def _work(left: deque[partial[None]], ended: Ended) -> None:
    """Draw parts until none is left."""
    while left:
        try:
            draw = left.pop()
        except IndexError:  # another thread has the last one
            return
        try:
            draw()
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)


@cache
def _helpers(process: int) -> "SimpleQueue[Callable[[], None]]":
    """Where threads of this process wait for work: a fork inherits none. (An executor takes as long as a small model's noise.)"""
    waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def serve() -> None:
        while True:
            waiting.get()()

    for _ in range(max(1, min(MOST, _processors()) - 1)):
        Thread(target=serve, name="privopt-noise", daemon=True).start()
    return waiting


def brought(numbers: NDArray[Any], like: Tensor) -> Tensor:
    """These numbers, where and as precise as `like` is."""
    return torch.from_numpy(numbers).to(like)


def _key(rng: Rng) -> NDArray[np.uint32]:
    """A key of ours, as the words that `keyed_normal` takes."""
    return np.frombuffer(next_key(rng).to_bytes(KEY_BITS // 8, "little"), np.uint32)


def _processors() -> int:
    """What this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
