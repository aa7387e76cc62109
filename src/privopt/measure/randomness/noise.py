"""Noise shaped like an array: for NumPy from the run's generator, for torch under a key drawn from it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from privopt.measure.randomness.generators import Rng

Sum = Callable[[Any], Any]  # f(array) adds a sum to the array and returns it; f(None) returns the sum


def normal(like: Any, deviation: float, rng: Rng) -> Callable[[Sum], Any]:
    """Start drawing normal noise shaped like `like`; the function that is returned adds a sum to it.

    For torch it is drawn in other threads while the sum is computed.
    """
    if not isinstance(like, np.ndarray):
        from privopt.measure.randomness import torch_noise

        return torch_noise.normal(like, deviation, rng)

    def add(total: Sum) -> Any:
        centre = total(None)
        numbers: Any = rng.standard_normal(centre.shape)
        numbers *= deviation
        numbers += centre
        return numbers

    return add


def laplace(like: Any, rng: Rng) -> Any:
    """Draw Laplace noise of scale 1, shaped like `like`."""
    return as_array_like(rng.laplace(size=tuple(like.shape)), like)


def as_array_like(numbers: Any, like: Any) -> Any:
    """Convert numbers to an array of the same library, precision and device as `like`."""
    if isinstance(like, np.ndarray):
        return numbers
    from privopt.measure.randomness.torch_noise import as_tensor_like

    return as_tensor_like(numbers, like)
