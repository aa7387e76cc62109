"""Randomness for torch: its fast generators, filled with enough of ours.

torch seeds its generators with 32 bits, which can be tried out one by one. Here all 19,968 bits of a generator's state are drawn
from a generator of ours, anew for each call, so that ours is the only state there is to keep.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privopt.errors import PrivoptError
from privopt.measure.randomness import Rng

FEW = 100_000  # numbers that are not worth a thread
THREADS = 2  # always, so that a seed gives the same numbers on every machine
BLOCK = 1 << 15  # numbers that are drawn into a cache, and added from there
_START, _WORDS, _SIZE = 24, 624, 5056  # where torch keeps the Mersenne twister's words, 8 bytes each, in a state of this size


def normal(centre: Tensor, deviation: float, rng: Rng) -> Tensor:
    """Independent normal numbers around those of a tensor, in its place; drawn on the CPU, in single precision at least."""
    parts = centre.view(-1).chunk(1 if centre.numel() < FEW else THREADS)
    generators = [_generator(rng) for _ in parts]
    others = [_threads(os.getpid()).submit(_add, *job, deviation) for job in zip(parts[1:], generators[1:], strict=True)]
    _add(parts[0], generators[0], deviation)
    for other in others:
        other.result()
    return centre


def _add(numbers: Tensor, generator: torch.Generator, deviation: float) -> None:
    """numbers += N(0, deviation²)."""
    room = torch.empty(min(BLOCK, len(numbers)), dtype=torch.float64 if numbers.dtype == torch.float64 else torch.float32)
    for block in torch.split(numbers, BLOCK):
        block.add_(room[: len(block)].normal_(0.0, deviation, generator=generator).to(numbers.device))


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The threads of a process: a fork does not inherit them."""
    return ThreadPoolExecutor(THREADS - 1)


def brought(numbers: NDArray[Any], like: Tensor) -> Tensor:
    """These numbers, where and as precise as `like` is."""
    return torch.from_numpy(numbers).to(like)


def _generator(rng: Rng) -> torch.Generator:
    """A generator whose whole state comes from `rng`."""
    made, state = torch.Generator(), _blank().copy()
    state[_START : _START + 8 * _WORDS].view(np.uint64)[:] = np.frombuffer(rng.bytes(4 * _WORDS), dtype=np.uint32)
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
