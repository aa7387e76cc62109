"""Noise of the shape, kind and precision of an array: NumPy's is drawn from the generator, torch's under a key from it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from privopt.measure.randomness.generators import Rng

Sum = Callable[[Any], Any]  # of an array to the array with a sum added to it; of None to the sum itself


def normal(like: Any, deviation: float, rng: Rng) -> Callable[[Sum], Any]:
    """Independent normal numbers for a sum of the shape, kind and precision of `like`: a function that adds both.

    Those for torch are drawn while the sum is still being prepared.
    """
    if not isinstance(like, np.ndarray):
        from privopt.measure.randomness import torch_noise

        return torch_noise.normal(like, deviation, rng)

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
    from privopt.measure.randomness.torch_noise import brought

    return brought(numbers, like)
