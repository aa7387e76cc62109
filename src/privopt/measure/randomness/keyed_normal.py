"""Normal numbers from a key, by compiled loops of vector instructions.

**Words**: ChaCha with 8 rounds (Bernstein 2008; on the number of rounds Aumasson 2019), whose output cannot be distinguished from
random words without the key. A block is 16 words, made of the key, the number of the block and that of a stream, so blocks can be
made in any order. Many are made at a time: word k of block i of them is `words[k, i]`.

**Numbers**: Box and Muller. If u is uniform in (0, 1) and a is a uniform angle, then √(−2 ln u) cos a and √(−2 ln u) sin a are
two independent normal numbers. u has 31 bits, and 31 more wherever they show: where u, or 1 − u, is below 2⁻²³. So numbers reach
out to 9.3 deviations: what a normal distribution has further out, it has with a probability below 2⁻⁶⁰. No pair is 0.

The logarithm is Cephes' logf, sine and cosine are its sinf and cosf between −π/4 and π/4: the numbers are right to single
precision. No operation is reordered, and where a product and a sum are fused, they are so on every processor: a key gives the
same numbers on every machine.

All of it is in one file, because numba's cache is invalidated only when the file of the compiled function itself changes.
"""

import math
from typing import Any

import numpy as np
from numba import float32, int32, njit, uint32
from numba.extending import intrinsic

from privopt.numba_cache import compiled

PIECE = 1 << 11  # numbers per block of words: they fit into the first-level cache

# ---------------------------------------------------------------- words

KEY = 8  # words of a key
BLOCK = 16  # words of a block

C0, C1, C2, C3 = (uint32(int.from_bytes(b"expand 32-byte k"[place : place + 4], "little")) for place in range(0, 16, 4))


@njit(forceinline=True)
def _rotate(x, left):  # type: ignore[no-untyped-def]  # compiled
    return uint32((x << uint32(left)) | (x >> uint32(32 - left)))


@njit(forceinline=True)
def _quarter_round(a, b, c, d):  # type: ignore[no-untyped-def]
    a = uint32(a + b)
    d = _rotate(d ^ a, 16)
    c = uint32(c + d)
    b = _rotate(b ^ c, 12)
    a = uint32(a + b)
    d = _rotate(d ^ a, 8)
    c = uint32(c + d)
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@njit(forceinline=True)
def _double_round(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15):  # type: ignore[no-untyped-def]
    """A column round and a diagonal round on a square of words."""
    x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
    x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
    x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
    x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
    x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
    x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
    x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
    x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@compiled("void(Array(uint32, 1, 'C', readonly=True), uint64, uint32, uint32[:, ::1])")
def keystream(key, first, stream, words):  # type: ignore[no-untyped-def]
    """Fill `words` with consecutive blocks, starting with number `first`; they must not cross a multiple of 2³²."""
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    low, high = uint32(first), uint32(first >> 32)
    for i in range(words.shape[1]):
        n = uint32(low + uint32(i))
        start = C0, C1, C2, C3, k0, k1, k2, k3, k4, k5, k6, k7, n, high, stream, uint32(0)
        x = _double_round(*_double_round(*_double_round(*_double_round(*start))))
        words[0, i], words[1, i], words[2, i], words[3, i] = x[0] + C0, x[1] + C1, x[2] + C2, x[3] + C3
        words[4, i], words[5, i], words[6, i], words[7, i] = x[4] + k0, x[5] + k1, x[6] + k2, x[7] + k3
        words[8, i], words[9, i], words[10, i], words[11, i] = x[8] + k4, x[9] + k5, x[10] + k6, x[11] + k7
        words[12, i], words[13, i], words[14, i], words[15, i] = x[12] + n, x[13] + high, x[14] + stream, x[15]


# ---------------------------------------------------------------- numbers

WORDS = 2  # words for two numbers

HALF, ONE, LN2 = float32(0.5), float32(1.0), float32(math.log(2.0))
UNIT = float32(2.0**-31)
EIGHTH = float32(math.pi / 4 * 2.0**-31)  # of a turn, for a signed word
FAR, MIDDLE, LAST = int32(2**8), int32(2**30), int32(2**31 - 1)
ROOT = int32(round(math.sqrt(0.5) * 2**31))  # √½, of 31 bits
ROOT_BITS = int32(np.float32(math.sqrt(0.5)).view(np.int32))
LOGARITHM = tuple(
    map(
        float32,
        (
            7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
            2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
        ),
    )
)  # fmt: skip
SINE = tuple(map(float32, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)))
COSINE = tuple(map(float32, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)))


def _fused(context, x, y, z):  # type: ignore[no-untyped-def]  # signature and code for the compiler
    """x y + z, rounded once."""
    return float32(float32, float32, float32), lambda context, builder, signature, values: builder.fma(*values)


_fma: Any = intrinsic(_fused)


@njit(inline="always")
def _pair(high, low, turn, deviation):  # type: ignore[no-untyped-def]  # compiled
    """Two numbers; u = (high + (low + ½) 2⁻³¹) 2⁻³¹."""
    # ln u = ln(1 + m) + e ln 2, with √½ ≤ 1 + m < √2; near 1 from 1 − u, which is never 0
    bits = np.float32((float32(high) + (float32(low) + HALF) * UNIT) * UNIT).view(np.int32)
    e = int32(bits - ROOT_BITS) >> int32(23)  # without the cast in 64 bits, which takes longer
    m = np.int32(bits - (e << int32(23))).view(np.float32) - ONE
    if high >= ROOT:
        e = int32(0)
        m = -(float32(high ^ LAST) + (float32(low ^ LAST) + HALF) * UNIT) * UNIT
    p = LOGARITHM[0]
    for k in range(1, 9):
        p = _fma(p, m, LOGARITHM[k])
    logarithm = _fma(float32(e), LN2, _fma(_fma(p, m, -HALF), m * m, m))
    radius = np.sqrt(float32(-2.0) * logarithm) * deviation

    # an angle between −π/4 and π/4, never 0; one more bit reflects it, and one the point
    x = float32(int32((turn << uint32(2)) | uint32(2))) * EIGHTH
    square = x * x
    sine = _fma(_fma(_fma(SINE[0], square, SINE[1]), square, SINE[2]) * square, x, x)
    cosine = _fma(_fma(_fma(_fma(COSINE[0], square, COSINE[1]), square, COSINE[2]), square, -HALF), square, ONE)
    if turn & uint32(0x80000000):
        sine, cosine = cosine, sine
    if turn & uint32(0x40000000):
        radius = -radius
    return radius * cosine, radius * sine


@compiled("int32(uint32[::1], float32[::1], float32)")
def normal_numbers(words, numbers, deviation):  # type: ignore[no-untyped-def]
    """Fill `numbers` (an even number of them) from as many words; return how many pairs need more bits."""
    pairs, incomplete = numbers.size // 2, int32(0)
    for i in range(pairs):
        high = int32(words[i] >> uint32(1))
        numbers[i], numbers[pairs + i] = _pair(high, int32(MIDDLE), words[pairs + i], deviation)
        incomplete += int32(((high + FAR) & LAST) < FAR + FAR)
    return incomplete


@compiled("void(uint32[::1], uint32[::1], float32[::1], float32)")
def give_more_bits(words, more, numbers, deviation):  # type: ignore[no-untyped-def]
    """Redraw the pairs that need more bits, each with one more word."""
    pairs = numbers.size // 2
    for i in range(pairs):
        high = int32(words[i] >> uint32(1))
        if ((high + FAR) & LAST) < FAR + FAR:
            numbers[i], numbers[pairs + i] = _pair(high, int32(more[i] >> uint32(1)), words[pairs + i], deviation)


# ---------------------------------------------------------------- both


@compiled("void(Array(uint32, 1, 'C', readonly=True), int64, float32[::1], float32)")
def fill(key, first, numbers, deviation):  # type: ignore[no-untyped-def]
    """Fill `numbers` (an even number of them) with those of this key from number `first` on, a multiple of `PIECE`."""
    words, more = np.empty((BLOCK, PIECE // BLOCK), np.uint32), np.empty((BLOCK, PIECE // BLOCK), np.uint32)
    for start in range(0, numbers.size, PIECE):
        piece, block = numbers[start : start + PIECE], (first + start) // BLOCK
        keystream(key, block, 0, words)
        used = words.ravel()[: piece.size]
        if normal_numbers(used, piece, deviation):
            keystream(key, block, 1, more)
            give_more_bits(used, more.ravel(), piece, deviation)
