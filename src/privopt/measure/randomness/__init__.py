"""Randomness: one keyed generator a run, and the noise that is drawn from it.

`generators` makes, saves and restores generators and draws noise for NumPy arrays and, by `torch_noise` and the compiled loops
of `keyed_normal`, for tensors. torch is imported when a tensor asks for noise, not before.
"""

from privopt.measure.randomness.generators import (
    CIPHER,
    KEY_BITS,
    SOURCE,
    Rng,
    Sum,
    as_array_like,
    from_key,
    generator,
    key,
    laplace,
    normal,
    restore_state,
    save_state,
)

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
