"""ChaCha with 8 rounds: words that nobody can tell from random ones without the key. (Bernstein 2008; Aumasson 2019 on rounds.)

A block is 16 words, made of the key, the number of the block and a number of the stream, so blocks can be made in any order. Many
are made at a time, in a loop that is compiled into vector instructions: word k of block i of them is `words[k, i]`.
"""

from numba import njit, uint32

from privopt.compiled import compiled

KEY = 8  # words of a key
BLOCK = 16  # words of a block

C0, C1, C2, C3 = (uint32(int.from_bytes(b"expand 32-byte k"[place : place + 4], "little")) for place in range(0, 16, 4))


@njit(forceinline=True)
def _turned(x, left):  # type: ignore[no-untyped-def]  # compiled
    return uint32((x << uint32(left)) | (x >> uint32(32 - left)))


@njit(forceinline=True)
def _quarter(a, b, c, d):  # type: ignore[no-untyped-def]
    a = uint32(a + b)
    d = _turned(d ^ a, 16)
    c = uint32(c + d)
    b = _turned(b ^ c, 12)
    a = uint32(a + b)
    d = _turned(d ^ a, 8)
    c = uint32(c + d)
    b = _turned(b ^ c, 7)
    return a, b, c, d


@njit(forceinline=True)
def _twice(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15):  # type: ignore[no-untyped-def]
    """Two rounds: the columns of a square of words, and its diagonals."""
    x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
    x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
    x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
    x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
    x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
    x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
    x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
    x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@compiled("void(Array(uint32, 1, 'C', readonly=True), uint64, uint32, uint32[:, ::1])")
def keystream(key, first, stream, words):  # type: ignore[no-untyped-def]
    """The blocks from the first on, as many as there is room for: up to a multiple of 2³², and not across it."""
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    low, high = uint32(first), uint32(first >> 32)
    for i in range(words.shape[1]):
        n = uint32(low + uint32(i))
        start = C0, C1, C2, C3, k0, k1, k2, k3, k4, k5, k6, k7, n, high, stream, uint32(0)
        x = _twice(*_twice(*_twice(*_twice(*start))))
        words[0, i], words[1, i], words[2, i], words[3, i] = x[0] + C0, x[1] + C1, x[2] + C2, x[3] + C3
        words[4, i], words[5, i], words[6, i], words[7, i] = x[4] + k0, x[5] + k1, x[6] + k2, x[7] + k3
        words[8, i], words[9, i], words[10, i], words[11, i] = x[8] + k4, x[9] + k5, x[10] + k6, x[11] + k7
        words[12, i], words[13, i], words[14, i], words[15, i] = x[12] + n, x[13] + high, x[14] + stream, x[15]
