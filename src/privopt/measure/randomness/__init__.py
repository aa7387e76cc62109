"""Randomness: one keyed generator a run, and the noise that is drawn from it.

`generators` makes, saves and restores generators; `noise` draws for NumPy arrays and, by `torch_noise` and the compiled loops
of `keyed_normal`, for tensors. torch is imported when a tensor asks for noise, not before.
"""

from privopt.measure.randomness.generators import (
    CIPHER,
    KEY_BITS,
    SOURCE,
    Rng,
    from_key,
    generator,
    key,
    restore_state,
    save_state,
)
from privopt.measure.randomness.noise import Sum, as_array_like, laplace, normal

__all__ = [
    "CIPHER",
    "KEY_BITS",
    "SOURCE",
    "Rng",
    "Sum",
    "as_array_like",
    "from_key",
    "generator",
    "key",
    "laplace",
    "normal",
    "restore_state",
    "save_state",
]
