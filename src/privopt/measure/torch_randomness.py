"""Randomness for torch: normal numbers from a keystream.

Each part of the numbers has a key of 128 bits, which a call draws from a generator of ours. What AES in counter mode makes of it
becomes normal numbers (`box_muller`). Ours is the only state there is to keep.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256
from itertools import pairwise
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from torch import Tensor

from privopt.measure.box_muller import WORDS, give_more_bits, normal_numbers
from privopt.measure.randomness import Rng, Sum

FEW = 1 << 12  # numbers that are not worth a key
MANY = 1 << 15  # numbers that are worth a thread
PART = 1 << 18  # numbers of one key at least
MOST = 8  # parts, and threads; a seed gives the same numbers on every machine
PIECE = 1 << 15  # numbers that are drawn in one go: their words stay in a processor's cache

Numbers = NDArray[np.float32]
Ended = SimpleQueue[BaseException | None]  # of each part, once it is drawn or has failed

FIRST, NOTHING = bytes(16), memoryview(bytes(2 * WORDS * PIECE))  # the counter of a key, which is used once; what is encrypted


def normal(like: Tensor, deviation: float, rng: Rng) -> Callable[[Sum], Tensor]:
    """Independent normal numbers; the function that is returned adds a sum to them.

    They are drawn on the CPU, in single precision; a few, and those in double precision, by numpy. Many are drawn while the sum
    is prepared, if torch leaves processors idle; else after it, by all of them.
    """
    size = like.numel()
    if size < FEW or like.dtype == torch.float64:
        return lambda total: total(brought(deviation * rng.standard_normal(tuple(like.shape)), like))
    keys = [_key(rng) for _ in range(min(MOST, size // PART) or 1)]
    begun = None
    if size >= MANY and (torch.get_num_threads() == 1 or not like.is_cpu):
        begun = _begun(size, deviation, keys)

    def added(total: Sum) -> Tensor:
        numbers = begun() if begun else _drawn(size, deviation, keys)
        return total(numbers if like.is_cpu and like.ndim == 1 else numbers.view(like.shape).to(like.device))

    return added


def _drawn(size: int, deviation: float, keys: Sequence[bytes]) -> Tensor:
    """The numbers, by other threads too if they are many."""
    if len(keys) > 1:
        return _begun(size, deviation, keys)()
    room = _room(size)
    _draw(room.numpy(), deviation, keys[0])
    return room[:size]


def _begun(size: int, deviation: float, keys: Sequence[bytes]) -> Callable[[], Tensor]:
    """Let other threads begin with the numbers; the function that is returned draws what is left of them."""
    room = _room(size)
    numbers: Numbers = room.numpy()
    edges = [2 * (len(numbers) // 2 * part // len(keys)) for part in range(len(keys) + 1)]
    left = deque(
        partial(_draw, numbers[start:stop], deviation, key) for key, (start, stop) in zip(keys, pairwise(edges), strict=True)
    )
    ended: Ended = SimpleQueue()
    for _ in keys:
        _helpers(os.getpid()).put(partial(_work, left, ended))

    def drawn() -> Tensor:
        _work(left, ended)
        for _ in keys:
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


def _key(rng: Rng) -> bytes:
    """128 bits, also of a generator whose words have 32. (`rng.bytes` takes a third of the time of a small model's noise.)"""
    return sha256(rng.bit_generator.random_raw(4).tobytes()).digest()[:16]


def _draw(numbers: Numbers, deviation: float, key: bytes) -> None:
    stream, drawn = Cipher(AES(key), CTR(FIRST)).encryptor(), np.empty(len(NOTHING), np.uint8)
    words = drawn.view(np.uint32)
    for start in range(0, len(numbers), PIECE):
        piece = numbers[start : start + PIECE]
        used = WORDS * (len(piece) // 2)
        stream.update_into(NOTHING[: 4 * used], drawn.data)
        if wanting := normal_numbers(words[:used], piece, deviation):
            more = np.frombuffer(stream.update(bytes(4 * wanting)), np.uint32).copy()
            give_more_bits(words[:used], more, piece, deviation)


def _processors() -> int:
    """What this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
