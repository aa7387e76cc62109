"""Randomness for torch: its fast generators, filled with enough of ours.

torch seeds its generators with 32 bits, which can be tried out one by one. Here all 19,968 bits of a generator's state are drawn
from a generator of ours, anew for each call, so that ours is the only state there is to keep.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from privopt.errors import PrivoptError
from privopt.measure.randomness import Rng

FEW = 100_000  # numbers that are not worth a thread
THREADS = 2  # always, so that a seed gives the same numbers on every machine
_START, _WORDS, _SIZE = 24, 624, 5056  # where torch keeps the Mersenne twister's words, 8 bytes each, in a state of this size


def normal(like: Tensor, rng: Rng) -> Tensor:
    """Independent standard normal numbers, drawn on the CPU and brought to where `like` is."""
    numbers = torch.empty(like.numel(), dtype=like.dtype if like.dtype == torch.float64 else torch.float32)
    if len(numbers) < FEW:
        numbers.normal_(generator=_generator(rng))
    else:
        parts, generators = numbers.chunk(THREADS), [_generator(rng) for _ in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda part, own: part.normal_(generator=own), parts, generators))
    return numbers.view(like.shape).to(like)


def _generator(rng: Rng) -> torch.Generator:
    """A generator whose whole state comes from `rng`."""
    made = torch.Generator()
    state = made.get_state().numpy().copy()
    if len(state) != _SIZE:
        raise PrivoptError(
            f"torch {torch.__version__} keeps its generators in another form than privopt knows. Use torch 2.4 … 2.13."
        )
    words = np.frombuffer(rng.bytes(4 * _WORDS), dtype=np.uint32).astype(np.uint64)
    state[_START : _START + 8 * _WORDS] = words.view(np.uint8)
    made.set_state(torch.from_numpy(state))
    return made
