"""Normal numbers from random words, in loops that are compiled into vector instructions.

Box and Muller: if u is uniform in (0, 1) and a is a uniform angle, then √(−2 ln u) cos a and √(−2 ln u) sin a are two independent
normal numbers. u has 31 bits, and 31 more wherever they show: where u, or 1 − u, is below 2⁻²³. So numbers reach out to 9.3
deviations: what a normal distribution has further out, it has with a probability below 2⁻⁶⁰. No pair is 0.

The logarithm is Cephes' logf, sine and cosine are its sinf and cosf between −π/4 and π/4: the numbers are right to single
precision. No operation is reordered, and where a product and a sum are fused, they are so on every processor: words give the same
numbers on every machine.
"""

import math
from typing import Any

import numpy as np
from numba import float32, int32, njit, uint32
from numba.extending import intrinsic

from privopt.compiled import compiled

WORDS = 2  # for two numbers

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


def _fused(context, x, y, z):  # type: ignore[no-untyped-def]  # what the compiler is told
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
    """Fill `numbers`, of which there is an even number, from two words for each two. How many pairs need more bits."""
    pairs, wanting = numbers.size // 2, int32(0)
    for i in range(pairs):
        high = int32(words[i] >> uint32(1))
        numbers[i], numbers[pairs + i] = _pair(high, int32(MIDDLE), words[pairs + i], deviation)
        wanting += int32(((high + FAR) & LAST) < FAR + FAR)
    return wanting


@compiled("void(uint32[::1], uint32[::1], float32[::1], float32)")
def give_more_bits(words, more, numbers, deviation):  # type: ignore[no-untyped-def]
    """Draw the pairs that need more bits again, each with a word more of its own."""
    pairs = numbers.size // 2
    for i in range(pairs):
        high = int32(words[i] >> uint32(1))
        if ((high + FAR) & LAST) < FAR + FAR:
            numbers[i], numbers[pairs + i] = _pair(high, int32(more[i] >> uint32(1)), words[pairs + i], deviation)
