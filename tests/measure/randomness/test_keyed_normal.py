"""The keystream is ChaCha's, as it was published."""

import numpy as np
import pytest

pytest.importorskip("numba")

from privopt.measure.randomness import from_key
from privopt.measure.randomness.keyed_normal import BLOCK, KEY, keystream
from tests.measure.randomness.chacha import block


def test_the_definition_gives_the_published_words() -> None:
    """RFC 8439, 2.3.2 (20 rounds; its nonce is the upper half of our counter, and the stream) …"""
    key = np.frombuffer(bytes(range(32)), "<u4")
    words = block(key, np.array([1 + (0x09000000 << 32)]), stream=0x4A000000, rounds=20)
    assert words.tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def test_the_compiled_loop_gives_the_published_words_of_eight_rounds() -> None:
    """… and draft-strombergson-chacha-test-vectors, TC1: key, nonce and counter are 0."""
    words = np.empty((BLOCK, 2), np.uint32)
    keystream(np.zeros(KEY, np.uint32), 0, 0, words)
    assert (
        words.T.tobytes()
        .hex()
        .startswith(
            "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
            "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
        )
    )


def test_the_compiled_loop_is_the_cipher_of_our_generators() -> None:
    """So that one name in the statement is true of all noise."""
    key, words = np.arange(KEY, dtype=np.uint32), np.empty((BLOCK, 20), np.uint32)
    keystream(key, 0, 0, words)
    rng = from_key(int.from_bytes(key.tobytes(), "little"))
    np.testing.assert_array_equal(words.T.ravel(), rng.integers(2**32, size=320, dtype=np.uint32))


@pytest.mark.parametrize("first", [0, 64, 2**32 - 64, 2**32, 2**40 + 128])
@pytest.mark.parametrize("count", [1, 7, 64])
@pytest.mark.parametrize("stream", [0, 1])
def test_the_compiled_loop_is_the_definition(first: int, count: int, stream: int) -> None:
    key = np.random.default_rng(first + count).integers(2**32, size=KEY, dtype=np.uint32)
    words = np.empty((BLOCK, count), np.uint32)
    keystream(key, first, stream, words)
    np.testing.assert_array_equal(words, block(key, np.arange(first, first + count), stream=stream))


def test_a_bit_of_the_key_changes_half_of_the_bits() -> None:
    """12,800 × 32 bits; six standard errors."""
    key = np.random.default_rng(0).integers(2**32, size=KEY, dtype=np.uint32)
    one, other = np.empty((BLOCK, 800), np.uint32), np.empty((BLOCK, 800), np.uint32)
    keystream(key, 0, 0, one)
    key[3] ^= 1
    keystream(key, 0, 0, other)
    bits = 32 * one.size
    assert abs(int(np.bitwise_count(one ^ other).sum()) - bits / 2) < 6 * (bits / 4) ** 0.5
