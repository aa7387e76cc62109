"""Random numbers that a replay repeats, such as dropout: each round has its own. They hide nothing."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from privopt.measure.randomness import Rng
from privopt.perexample.torch.draws import Draws, begin

OWN = np.random.MT19937(0)  # seeded before each use; a new one takes longer than the rest of a switch


class Dropout:
    """Seeds of the global generators of torch, NumPy and Python, from which a model or a dataset may draw."""

    def __init__(self, seed: int, *, replayed: bool = True) -> None:
        self.seed, self._replayed = seed, replayed

    @classmethod
    def drawn(cls, rng: Rng, *, replayed: bool = True) -> "Dropout":
        """For a run whose randomness this is. One that is never replayed seeds torch only, which takes less time."""
        return cls(int(rng.integers(2**62)), replayed=replayed)

    def begin(self, *place: int) -> None:
        """Seed the numbers of this round (and piece of it). Call it inside `global_generators`."""
        seed = hash((self.seed, *place)) % 2**63  # of numbers: the same everywhere
        if self._replayed:
            seed_all(seed)
        else:
            begin(seed)


def seed_all(seed: int) -> None:
    """Seed torch's, NumPy's and Python's global generators. Call it inside `global_generators`."""
    begin(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # from which the user's code may draw
    random.seed(seed)


@contextmanager
def global_generators(device: torch.device) -> Iterator[None]:
    """Put the user's global generators back afterwards.

    NumPy's is replaced and not copied, which would take a tenth of a small model's step.
    """
    python, numpy = random.getstate(), get_bit_generator()
    try:
        set_bit_generator(np.random.MT19937(0) if numpy is OWN else OWN)
        with Draws(device).again():
            yield
    finally:
        set_bit_generator(numpy)
        random.setstate(python)
