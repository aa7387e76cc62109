"""Randomness for torch: its fast generators, filled with enough of ours.

torch seeds its generators with 32 bits, which can be tried out one by one. Here all 19,968 bits of a generator's state are drawn
from a generator of ours, anew for each call, so that ours is the only state there is to keep.
"""

import atexit
import os
from collections.abc import Callable
from functools import cache
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privopt.errors import PrivoptError
from privopt.measure.randomness import Rng, Sum

FEW = 1 << 15  # numbers that are not worth a thread
PART = 1 << 20  # numbers of one generator, always, so that a seed gives the same numbers on every machine
_START, _WORDS, _SIZE = 24, 624, 5056  # where torch keeps the Mersenne twister's words, 8 bytes each, in a state of this size

Job = tuple[Tensor, float, bytes, SimpleQueue[None]]  # numbers, deviation, words of a generator, and where to say "drawn"


def normal(like: Tensor, deviation: float, rng: Rng) -> Callable[[Sum], Tensor]:
    """Independent normal numbers, drawn while others work; the function that is returned adds a sum to them.

    They are drawn on the CPU, in single precision at least.
    """
    noise = torch.empty(like.numel(), dtype=torch.float64 if like.dtype == torch.float64 else torch.float32)
    parts, drawn = torch.split(noise, PART), SimpleQueue[None]()
    jobs = _jobs(os.getpid()) if len(noise) > FEW else SimpleQueue[Job | None]()
    for part in parts:
        jobs.put((part, deviation, rng.bytes(4 * _WORDS), drawn))

    def added(total: Sum) -> Tensor:
        while _draw_next(jobs):  # what nobody has begun with
            pass
        for _ in parts:
            drawn.get()
        found: Tensor = total(noise.to(like.device, like.dtype).view(like.shape))
        return found

    return added


@cache
def _jobs(process: int) -> SimpleQueue[Job | None]:
    """Where a process puts what its thread shall draw, and at its end None: a fork inherits no thread."""
    jobs: SimpleQueue[Job | None] = SimpleQueue()
    thread = Thread(target=_draw_all, args=(jobs,), daemon=True)
    thread.start()
    atexit.register(_end, jobs, thread)  # torch does not like to be interrupted
    return jobs


def _end(jobs: SimpleQueue[Job | None], thread: Thread) -> None:
    jobs.put(None)
    thread.join()


def _draw_all(jobs: SimpleQueue[Job | None]) -> None:
    while job := jobs.get():
        _draw(*job)


def _draw_next(jobs: SimpleQueue[Job | None]) -> bool:
    try:
        job = jobs.get_nowait()
    except Empty:
        return False
    if job:
        _draw(*job)
    return True


def _draw(numbers: Tensor, deviation: float, words: bytes, drawn: SimpleQueue[None]) -> None:
    numbers.normal_(0.0, deviation, generator=_generator(words))
    drawn.put(None)


def brought(numbers: NDArray[Any], like: Tensor) -> Tensor:
    """These numbers, where and as precise as `like` is."""
    return torch.from_numpy(numbers).to(like)


def _generator(words: bytes) -> torch.Generator:
    """A generator whose whole state is given."""
    made, state = torch.Generator(), _blank().copy()
    state[_START : _START + 8 * _WORDS].view(np.uint64)[:] = np.frombuffer(words, dtype=np.uint32)
    made.set_state(torch.from_numpy(state))
    return made


@cache
def _blank() -> NDArray[np.uint8]:
    """A state whose words are still to be filled in."""
    state: NDArray[np.uint8] = torch.Generator().get_state().numpy()
    if len(state) != _SIZE:
        raise PrivoptError(
            f"torch {torch.__version__} keeps its generators in another form than privopt knows. Use torch 2.4 … 2.13."
        )
    return state
