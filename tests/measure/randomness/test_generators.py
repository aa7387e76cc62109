"""Randomness: a keystream whose key is the system's unless a seed says otherwise, and states that can be kept."""

import json
import pickle
import secrets
import subprocess
import sys
from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import ChaCha

from privopt.errors import InputError
from privopt.measure import randomness
from privopt.measure.randomness import (
    KEY_BITS,
    SOURCE,
    Rng,
    from_key,
    generator,
    key,
    laplace,
    restore_state,
    save_state,
)
from tests.measure.randomness.chacha import block

RFC_KEY = int.from_bytes(bytes(range(32)), "little")
RFC_BLOCK = 1 + (0x09000000 << 32) + (0x4A000000 << 64)  # its counter, and its nonce in the upper words

# the kinds that NumPy has: none is cryptographic
KINDS = [np.random.PCG64, np.random.PCG64DXSM, np.random.SFC64, np.random.Philox, np.random.MT19937]


def words(rng: Rng, count: int) -> NDArray[np.uint32]:
    return rng.integers(2**32, size=count, dtype=np.uint32)


# ---------------------------------------------------------------- the stream


def test_the_stream_is_chacha_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """draft-strombergson-chacha-test-vectors, TC1, 8 rounds; with 20 rounds RFC 8439, 2.3.2."""
    assert words(from_key(0), 16).tobytes().hex() == (
        "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
        "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
    )
    monkeypatch.setattr(randomness, "ROUNDS", 20)
    assert words(from_key(RFC_KEY, 16 * RFC_BLOCK), 16).tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def test_the_key_is_256_bits_of_the_operating_systems_entropy_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is that of the cipher's definition under these bits: nothing hashes or pools them on the way."""
    taken = np.random.default_rng(0).integers(2**32, size=8, dtype=np.uint32)
    monkeypatch.setattr(secrets, "randbits", lambda bits: {256: int.from_bytes(taken.tobytes(), "little")}[bits])
    stream = words(generator(), 160)
    np.testing.assert_array_equal(stream, block(taken, np.arange(10)).T.ravel())


def test_each_bit_of_the_key_changes_half_of_the_stream() -> None:
    """512 bits of it, for each; each within 13 standard deviations and their mean within six: false alarm below 1e-8."""
    one = key(generator(0))
    changed = [
        int(np.bitwise_count(words(from_key(one), 16) ^ words(from_key(one ^ (1 << bit)), 16)).sum()) for bit in range(KEY_BITS)
    ]
    assert max(abs(count - 256) for count in changed) < 13 * (512 / 4) ** 0.5
    assert abs(np.mean(changed) - 256) < 6 * (512 / 4) ** 0.5 / KEY_BITS**0.5


def test_the_source_that_statements_name_is_the_one_in_use() -> None:
    bits = generator().bit_generator
    assert isinstance(bits, ChaCha)
    rounds, size = bits.state["state"]["rounds"], 8 * bits.state["state"]["keysetup"].nbytes
    assert f"ChaCha{rounds}, keyed with {size} bits of the operating system's entropy" == SOURCE


def test_threads_that_share_a_generator_never_draw_the_same() -> None:
    rng, drawn = generator(0), list[NDArray[np.uint64]]()
    threads = [Thread(target=lambda: drawn.extend(rng.bit_generator.random_raw(100) for _ in range(100))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.sort(np.concatenate(drawn)), np.sort(generator(0).bit_generator.random_raw(40_000)))


# ---------------------------------------------------------------- entropy, or a seed


def test_without_a_seed_no_two_generators_are_alike() -> None:
    firsts = {int(generator().integers(2**62)) for _ in range(200)}
    assert len(firsts) == 200


def test_without_a_seed_no_two_processes_are_alike() -> None:
    """In processes of their own, where no fixture sets the entropy."""
    draw = "from privopt.measure.randomness import generator; print(generator().integers(2**62))"
    drawn = {subprocess.run([sys.executable, "-c", draw], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(drawn) == 2


def test_a_seed_repeats_and_another_does_not() -> None:
    one, same, other = (generator(seed).standard_normal(8) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()


@pytest.mark.parametrize("seed", [2**64, 2**200, 2**256, 2**20_000], ids=["2^64", "2^200", "2^256", "2^20000"])
def test_a_seed_may_have_any_size_and_all_of_it_counts(seed: int) -> None:
    assert len({save_state(generator(other)) for other in (seed, seed + 1, seed // 2, 0)}) == 4
    assert save_state(generator(np.uint64(2**63))) == save_state(generator(2**63))  # type: ignore[arg-type]  # a whole number all the same


@pytest.mark.parametrize(
    "given",
    [*(lambda kind=kind: np.random.Generator(kind(3)) for kind in KINDS), lambda: np.random.RandomState(3)],
    ids=[*(kind.__name__ for kind in KINDS), "RandomState"],
)
def test_a_generator_of_the_users_gives_a_key_and_never_a_number(given: Callable[[], Rng]) -> None:
    one, same = generator(given()), generator(given())
    assert isinstance(one.bit_generator, ChaCha)
    assert save_state(one) == save_state(same)
    users = given()
    assert save_state(generator(users)) != save_state(generator(users))  # it goes on, so that the next fit has other noise
    assert save_state(generator(users)) != save_state(generator(3))


def test_a_generator_of_ours_is_used_as_it_is() -> None:
    ours = generator(0)
    assert generator(ours) is ours
    other = np.random.Generator(ChaCha(key=1, rounds=20))  # a checkpoint would not give it back
    assert generator(other).bit_generator.state["state"]["rounds"] == randomness.ROUNDS


@pytest.mark.parametrize("seed", [-1, 0.5, "1", b"1", [1]])
def test_what_is_no_seed_is_refused(seed: object) -> None:
    with pytest.raises(InputError, match="a whole number ≥ 0, or None"):
        generator(seed)  # type: ignore[arg-type]


def test_the_numpy_seed_that_everybody_can_set_changes_nothing() -> None:
    """`np.random.seed(0)` in a notebook must not make noise predictable."""
    values = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        values.append(generator().standard_normal(4))
    assert (values[0] != values[1]).all()


# ---------------------------------------------------------------- states


@pytest.mark.parametrize("used", [0, 1, 7, 16, 40])
def test_a_restored_generator_goes_on_where_the_state_was_taken(used: int) -> None:
    rng = generator(4)
    rng.standard_normal(used)
    rng.integers(7, size=used, dtype="uint32")
    again = restore_state(save_state(rng))
    for draw in ("standard_normal", "random", "standard_exponential"):
        np.testing.assert_array_equal(getattr(again, draw)(5), getattr(rng, draw)(5))
    np.testing.assert_array_equal(again.choice(50, 9, replace=False), rng.choice(50, 9, replace=False))


def test_a_state_holds_its_place_however_far_the_stream_has_run() -> None:
    for counter in (2**32 - 3, 2**64 - 3, 2**100 + 5):
        rng = from_key(7, counter)
        rng.integers(2**32, size=9, dtype=np.uint32)
        again = restore_state(save_state(rng))
        np.testing.assert_array_equal(words(again, 50), words(rng, 50))


def test_a_copy_by_pickle_goes_on_in_the_same_place() -> None:
    rng = generator(4)
    rng.standard_normal(7)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rng)).standard_normal(5), rng.standard_normal(5))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_another_kind_is_refused_with_the_reason(kind: type[np.random.BitGenerator]) -> None:
    """As earlier versions saved them."""
    saved = json.dumps(kind(3).state, default=lambda array: array.tolist())
    with pytest.raises(InputError, match=r"another version of privopt began it.*or start a new run"):
        restore_state(saved)


def test_a_key_is_the_next_256_bits_of_the_stream() -> None:
    rng = generator(3)
    first, second = key(rng), key(rng)
    np.testing.assert_array_equal(
        np.frombuffer((first + (second << 256)).to_bytes(64, "little"), np.uint32), words(generator(3), 16)
    )
    assert len({key(generator()) for _ in range(20)}) == 20


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_laplace_numbers_for_torch_are_those_for_numpy(precision: str) -> None:
    torch = pytest.importorskip("torch")
    like = torch.zeros(3, 5, dtype=getattr(torch, precision))
    drawn = laplace(like, generator(1))
    assert drawn.dtype == like.dtype
    np.testing.assert_allclose(drawn.numpy(), laplace(np.zeros((3, 5)), generator(1)), rtol=1e-6)
