"""ChaCha by its definition."""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def block(key: Words, number: NDArray[np.int64], *, stream: int = 0, rounds: int = 8) -> Words:
    """The definition, on a square of words for each number: column rounds and diagonal rounds in turn."""
    shape = number.shape
    words = [np.full(shape, word, np.uint32) for word in (*np.frombuffer(b"expand 32-byte k", "<u4"), *key)]
    words += [np.asarray(number & 0xFFFFFFFF, np.uint32), np.asarray(number >> 32, np.uint32)]
    words += [np.full(shape, stream, np.uint32), np.zeros(shape, np.uint32)]
    x = [word.copy() for word in words]
    for round_ in range(rounds):
        for column in range(4):
            places = [4 * row + (column + row * (round_ % 2)) % 4 for row in range(4)]
            a, b, c, d = places
            for one, other, turned, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[one] = x[one] + x[other]
                mixed = x[turned] ^ x[one]
                x[turned] = (mixed << np.uint32(left)) | (mixed >> np.uint32(32 - left))
    return np.array([one + other for one, other in zip(x, words, strict=True)])
