"""Randomness: one keyed generator a run, and the noise that is drawn from it.

A generator gives NumPy's distributions, on the keystream of ChaCha8 (Bernstein 2008; on the number of rounds Aumasson 2019) under
a key of 256 bits from the operating system; a seed makes a run repeatable for a test. Without the key the stream cannot be
distinguished from random bits, so what is published of it, or follows from it (answers, start values, a draw of rows), reveals
nothing about the rest. Every other secret of the run, such as the keys of `torch_noise`, is the next 256 bits of its stream.
Eight rounds everywhere, so that there is one cipher to trust.

Whoever knows a generator's state can subtract the noise, so a state is as sensitive as the data.

Noise for NumPy arrays is drawn here, from the run's generator. Noise for tensors is drawn by `torch_noise` and the compiled loops
of `keyed_normal`, from a key that the generator gives; torch is imported when a tensor asks for noise, not before.
"""

import json
import secrets
from collections.abc import Callable
from hashlib import sha256
from numbers import Integral
from typing import Any

import numpy as np
from randomgen import ChaCha

from privopt.errors import InputError

Rng = np.random.Generator

ROUNDS = 8
KEY_BITS = 256
CIPHER = f"ChaCha{ROUNDS}"
SOURCE = f"{CIPHER}, keyed with {KEY_BITS} bits of the operating system's entropy"  # for the statement of a run without a seed


def generator(seed: int | np.random.Generator | np.random.RandomState | None = None) -> Rng:
    """Make a generator, keyed by the operating system or by a seed. Whoever knows the seed can remove its noise.

    A generator of NumPy is a seed, too: the key is drawn from it. One that this function made is returned unchanged.
    """
    if seed is None:
        return from_key(secrets.randbits(KEY_BITS))
    if isinstance(seed, np.random.Generator) and _ours(seed):
        return seed
    if isinstance(seed, np.random.Generator | np.random.RandomState):
        material = seed.bytes(KEY_BITS // 8)
    elif isinstance(seed, Integral) and not isinstance(seed, bool) and seed >= 0:
        material = f"{int(seed):x}".encode()
    else:
        raise InputError(f"the seed is {seed!r}, but it is a whole number ≥ 0, or None for noise that nobody can repeat.")
    return from_key(int.from_bytes(sha256(b"privopt seed " + material).digest()))


def _ours(rng: Rng) -> bool:
    return isinstance(rng.bit_generator, ChaCha) and rng.bit_generator.state["state"]["rounds"] == ROUNDS


def from_key(key: int, counter: int = 0) -> Rng:
    """Make the generator of this key; `counter` is the 32-bit word of its stream to begin with."""
    return np.random.Generator(ChaCha(key=key, counter=counter, rounds=ROUNDS))  # a `seed` would be pooled into 128 bits


def key(rng: Rng) -> int:
    """The next 256 bits of the generator's stream, as the key of another."""
    return int.from_bytes(rng.bit_generator.random_raw(KEY_BITS // 64).tobytes(), "little")


def save_state(rng: Rng) -> str:
    """Write the generator's state as text, for a checkpoint. It reveals the noise."""
    inner = rng.bit_generator.state["state"]
    low, high = inner["ctr"].tolist()
    return json.dumps({"cipher": CIPHER, "key": inner["keysetup"].astype("<u4").tobytes().hex(), "counter": low + (high << 64)})


def restore_state(text: str) -> Rng:
    """Make the generator that `save_state` wrote."""
    value = json.loads(text)
    if value.get("cipher") != CIPHER:
        raise InputError(
            f"the noise of this run did not come from {CIPHER}: another version of privopt began it, and this one cannot repeat "
            "it. Resume with that version, or start a new run."
        )
    return from_key(int.from_bytes(bytes.fromhex(value["key"]), "little"), value["counter"])


# ---------------------------------------------------------------- noise


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
