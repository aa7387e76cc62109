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

FEW = 1 << 15  # numbers that are not worth a thread: it is woken for as long as they take
PART = 1 << 18  # numbers of one generator at least
MOST = 8  # generators, and threads; a seed gives the same numbers on every machine
_START, _WORDS, _SIZE = 24, 624, 5056  # where torch keeps the Mersenne twister's words, 8 bytes each, in a state of this size

Job = tuple[Tensor, float, torch.Generator, SimpleQueue[None]]  # numbers, their deviation, and where to say "drawn"


def normal(like: Tensor, deviation: float, rng: Rng) -> Callable[[Sum], Tensor]:
    """Independent normal numbers; the function that is returned adds a sum to them.

    They are drawn on the CPU, in single precision at least: while the sum is prepared, if torch leaves processors idle; else
    after it, many by all processors (torch's products wait for their slowest thread: meanwhile, they would take twice as long).
    """
    generators = [_generator(rng) for _ in range(min(MOST, like.numel() // PART) or 1)]
    idle = torch.get_num_threads() == 1 or like.device.type != "cpu"
    if like.numel() < FEW or (len(generators) == 1 and not idle):
        return lambda total: total(_empty(like).normal_(0.0, deviation, generator=generators[0]).to(like))

    def begin() -> Callable[[], Tensor]:
        noise, drawn, jobs = _empty(like), SimpleQueue[None](), _jobs(os.getpid())
        for part, own in zip(torch.tensor_split(noise.view(-1), len(generators)), generators, strict=True):
            jobs.put((part, deviation, own, drawn))

        def end() -> Tensor:
            while _draw_next(jobs):  # what nobody has begun with
                pass
            for _ in generators:
                drawn.get()
            return noise

        return end

    begun = begin() if idle else None
    return lambda total: total((begun or begin())().to(like))


def _empty(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.float64 if like.dtype == torch.float64 else torch.float32)


@cache
def _jobs(process: int) -> SimpleQueue[Job | None]:
    """Where a process puts what its threads shall draw, and at its end None for each: a fork inherits no thread."""
    jobs: SimpleQueue[Job | None] = SimpleQueue()
    threads = [Thread(target=_draw_all, args=(jobs,), daemon=True) for _ in range(min(MOST, _processors()) - 1)]
    for thread in threads:
        thread.start()
    atexit.register(_end, jobs, threads)  # torch does not like to be interrupted
    return jobs


def _processors() -> int:
    """What this process may use; it draws itself, too."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end(jobs: SimpleQueue[Job | None], threads: list[Thread]) -> None:
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join()


def _draw_all(jobs: SimpleQueue[Job | None]) -> None:
    while _draw(jobs.get()):  # nothing of a job is held while the next is waited for: its memory may be large
        pass


def _draw_next(jobs: SimpleQueue[Job | None]) -> bool:
    try:
        return _draw(jobs.get_nowait())
    except Empty:
        return False


def _draw(job: Job | None) -> bool:
    """Whether there was something to draw."""
    if job is None:
        return False
    numbers, deviation, own, drawn = job
    numbers.normal_(0.0, deviation, generator=own)
    del job, numbers  # before anybody hears of it
    drawn.put(None)
    return True


def brought(numbers: NDArray[Any], like: Tensor) -> Tensor:
    """These numbers, where and as precise as `like` is."""
    return torch.from_numpy(numbers).to(like)


def _generator(rng: Rng) -> torch.Generator:
    """A generator whose whole state is drawn: low halves of raw numbers, as some generators of numpy have no high ones."""
    made, state = torch.Generator(), _blank().copy()
    state[_START : _START + 8 * _WORDS].view(np.uint64)[:] = rng.bit_generator.random_raw(_WORDS) & np.uint64(0xFFFFFFFF)
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
