"""Randomness: the operating system's entropy, unless a seed makes a run repeatable for a test.

Whoever knows a generator's state can subtract the noise, so a state is as sensitive as the data.
"""

import hashlib
import json
import secrets
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np

from privopt.errors import InputError

Rng = np.random.Generator
Sum = Callable[[Any], Any]  # of an array to the array with a sum added to it; of None to the sum itself


def generator(seed: int | np.random.Generator | np.random.RandomState | None = None) -> Rng:
    """A generator from 256 bits of the operating system's entropy, or from a seed (then nothing it hides is hidden)."""
    if isinstance(seed, np.random.Generator):
        return seed
    if isinstance(seed, np.random.RandomState):
        seed = int(seed.randint(0, 2**31 - 1))
    if seed is not None and not (isinstance(seed, Integral) and seed >= 0):
        raise InputError(f"the seed is {seed!r}, but it is a whole number ≥ 0, or None for noise that nobody can repeat.")
    return np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256) if seed is None else seed))


def state(rng: Rng) -> str:
    """The generator's state, for a checkpoint: keep it where the data are kept."""
    return json.dumps(rng.bit_generator.state, default=lambda array: array.tolist())


def restored(text: str) -> Rng:
    """The generator as it was when `state` was taken."""
    value: dict[str, Any] = json.loads(text)
    rng = np.random.Generator(getattr(np.random, value["bit_generator"])(0))
    rng.bit_generator.state = value
    return rng


def key(rng: Rng) -> int:
    """A secret number that follows from the generator's state and leaves it as it is: a run that is repeated has the same."""
    return int.from_bytes(hashlib.sha256(state(rng).encode()).digest())


def normal(like: Any, deviation: float, rng: Rng) -> Callable[[Sum], Any]:
    """Independent normal numbers for a sum of the shape, kind and precision of `like`: a function that adds both.

    Those for torch are drawn while the sum is still being prepared.
    """
    if not isinstance(like, np.ndarray):
        from privopt.measure import torch_randomness

        return torch_randomness.normal(like, deviation, rng)

    def added(total: Sum) -> Any:
        centre = total(None)
        numbers: Any = rng.standard_normal(centre.shape)
        numbers *= deviation
        numbers += centre
        return numbers

    return added


def laplace(like: Any, rng: Rng) -> Any:
    """Independent Laplace numbers of scale 1, of the shape, kind and precision of an array."""
    return alike(rng.laplace(size=tuple(like.shape)), like)


def alike(numbers: Any, like: Any) -> Any:
    """These numbers as an array of the kind and precision of another."""
    if isinstance(like, np.ndarray):
        return numbers
    from privopt.measure.torch_randomness import brought

    return brought(numbers, like)
