"""Noise for torch: normal numbers, from a keystream, to the last of single precision's digits."""

import math
import multiprocessing
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kstest

pytest.importorskip("torch")

import torch
from torch import Tensor

from privopt.measure.randomness import generator, key, keyed_normal
from privopt.measure.randomness.keyed_normal import PIECE, WORDS, give_more_bits, normal_numbers
from privopt.measure.randomness.torch_noise import PART, normal
from tests.measure.randomness.chacha import block

EDGES = [0, 1, 2, 3, 511, 512, 2**31 - 1, 2**31, *(int(math.sqrt(0.5) * 2**32) + k for k in range(-4, 5)), 2**32 - 2, 2**32 - 1]

WITH_MORE_BITS = 15  # a seed whose 524,289 numbers include a pair that needs more bits

Words = NDArray[np.uint32]


def by_hand(words: Words, more: Words | None = None) -> NDArray[np.longdouble]:
    """Box and Muller's formula on the same words, with every digit that numpy has."""
    high, turn = words.reshape(WORDS, -1)
    high, low = high >> np.uint32(1), np.full(high.shape, 2**30, np.uint32)
    if more is not None:
        low[wanting(words)] = more[: len(high)][wanting(words)] >> 1
    u = (high.astype(np.longdouble) + (low + np.longdouble(0.5)) / 2**31) / 2**31
    angle = ((turn << np.uint32(2)) | np.uint32(2)).view(np.int32) * (np.longdouble(math.pi) / 4 / 2**31)
    radius = np.sqrt(-2 * np.log1p(-(1 - u))) * np.where(turn & 0x40000000, -1, 1)
    reflected = (turn & 0x80000000) != 0
    across, up = np.cos(angle), np.sin(angle)
    return np.concatenate([radius * np.where(reflected, up, across), radius * np.where(reflected, across, up)])


def wanting(words: Words) -> NDArray[np.bool_]:
    """Where u or 1 − u is below 2⁻²³."""
    high = words[: len(words) // WORDS] >> 1
    return (high < 2**8) | (high >= 2**31 - 2**8)


def compiled(words: Words, deviation: float = 1.0) -> NDArray[np.float32]:
    numbers = np.empty(len(words), np.float32)
    assert normal_numbers(words, numbers, deviation) == wanting(words).sum()
    return numbers


# ---------------------------------------------------------------- Box and Muller


@pytest.mark.parametrize("pairs", [1, 2, 7, 8, 9, 50_000])
def test_words_become_what_the_formula_says(pairs: int) -> None:
    words = np.random.default_rng(pairs).integers(2**32, size=WORDS * pairs, dtype=np.uint32)
    np.testing.assert_allclose(compiled(words), by_hand(words), rtol=5e-7)
    np.testing.assert_allclose(compiled(words, 0.25), 0.25 * by_hand(words), rtol=5e-7)


def test_no_word_gives_a_number_that_hides_nothing_or_everything() -> None:
    """Every combination of the words at which something changes: finite, never 0, and out to where u has no more bits."""
    high, low, turn = (axis.reshape(-1) for axis in np.array(np.meshgrid(EDGES, EDGES, EDGES), dtype=np.uint32))
    words = np.concatenate([high, turn])
    numbers, more = compiled(words), low
    np.testing.assert_allclose(numbers, by_hand(words), rtol=5e-7)
    give_more_bits(words, more, numbers, 1.0)
    np.testing.assert_allclose(numbers, by_hand(words, more), rtol=5e-7)
    assert np.isfinite(numbers).all()
    assert (numbers != 0).all()
    assert np.abs(numbers).max() == pytest.approx(math.sqrt(2 * 63 * math.log(2)), rel=1e-6)


def test_where_nothing_can_be_written_the_loops_are_compiled_each_time(tmp_path: Path) -> None:
    """From an archive, and without a home: the compiler has nowhere to keep what it made."""
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(keyed_normal.__file__, "keyed_normal.py")
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "home")
    code = "import keyed_normal, numpy as np; x = np.zeros(2, np.float32); keyed_normal.fill(np.ones(8, np.uint32), 0, x, 1.0)"
    sources = os.pathsep.join([str(tmp_path / "archive.zip"), *sys.path])
    environment = os.environ | {"PYTHONPATH": sources, "HOME": nowhere, "XDG_CACHE_HOME": nowhere}
    done = subprocess.run([sys.executable, "-c", f"{code}; print(x.all())"], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


# ---------------------------------------------------------------- the keystream


@pytest.mark.parametrize("size", [5_000, 100_001, 2 * PART + 1])
@pytest.mark.parametrize("seed", [5, WITH_MORE_BITS])
def test_numbers_are_those_of_chacha_under_a_key_from_the_generator(size: int, seed: int) -> None:
    """The whole way again: blocks are made by the algorithm's definition, and their words go through the formula."""
    drawn, rng = normal(torch.zeros(size), 2.0, generator(seed))(lambda out: out), generator(seed)
    words_of_key, wanted, rare = np.frombuffer(key(rng).to_bytes(32, "little"), np.uint32), [], 0
    for start in range(0, size, PIECE):
        numbers = min(PIECE, size + size % 2 - start)
        at = np.arange(start // 16, (start + PIECE) // 16)
        words, more = (block(words_of_key, at, stream=stream).ravel()[:numbers] for stream in (0, 1))
        wanted.append(by_hand(words, more))
        rare += int(wanting(words).sum())
    np.testing.assert_allclose(drawn.numpy(), 2.0 * np.concatenate(wanted)[:size], rtol=5e-7)
    assert rare > 0 or size < 2 * PART or seed != WITH_MORE_BITS


def test_a_generator_gives_other_keys_each_time() -> None:
    rng = generator(1)
    first, second = (normal(torch.zeros(5_000), 1.0, rng)(lambda out: out) for _ in range(2))
    assert not torch.isclose(first, second, rtol=1e-4).any()


# ---------------------------------------------------------------- the distribution


def test_numbers_are_normal_and_pairs_are_independent() -> None:
    """A million, one seed. Kolmogorov and Smirnov's p-value above 1e-4; tails and moments within five standard errors."""
    size = 1_000_000
    numbers = normal(torch.zeros(size), 1.0, generator(7))(lambda out: out).double().numpy()
    assert kstest(numbers, "norm").pvalue > 1e-4
    for far in (1.0, 2.0, 3.0, 4.0):
        chance = math.erfc(far / math.sqrt(2))
        assert abs(np.mean(np.abs(numbers) > far) - chance) < 5 * math.sqrt(chance / size)
    for lag in (1, PIECE // 2, PIECE // 2 + 1):  # neighbours; the two numbers of a pair; neither
        one, other = numbers[:-lag], numbers[lag:]
        assert abs(np.mean(one * other)) < 5 / math.sqrt(size)
        assert abs(np.mean((one**2 - 1) * (other**2 - 1))) < 5 * 2 / math.sqrt(size)


@pytest.mark.parametrize("deviation", [0.5, 0.98, 1.02, 2.0])
def test_another_deviation_would_be_found(deviation: float) -> None:
    numbers = normal(torch.zeros(1_000_000), deviation, generator(7))(lambda out: out).numpy()
    assert kstest(numbers, "norm").pvalue < 1e-9


def test_noise_for_torch_uses_all_of_the_generators_entropy() -> None:
    """Seeds that differ anywhere give other numbers, and equal ones the same."""

    def drawn(seed: int) -> Tensor:
        return normal(torch.zeros(300_000), 1.0, generator(seed))(lambda out: out)

    torch.testing.assert_close(drawn(2**200), drawn(2**200), rtol=0, atol=0)
    assert not torch.equal(drawn(1), drawn(1 + 2**32))
    numbers = drawn(0)
    assert abs(float(numbers.mean())) < 5 / 300_000**0.5
    assert float(numbers.std()) == pytest.approx(1.0, abs=0.01)
    assert abs(float((numbers[:150_000] * numbers[150_000:]).mean())) < 5 / 150_000**0.5  # one stream


@pytest.mark.parametrize("size", [1, 9, 1000, 40_001, 250_007, 1_200_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_for_torch_lies_around_the_sum_and_has_the_deviation_asked_for(size: int, dtype: torch.dtype) -> None:
    """Six standard errors; in every part of the vector, whichever thread and generator it came from."""
    draws = max(1, 2000 // size)
    rng = generator(3)
    sums = torch.full((size,), 7.0, dtype=dtype)
    noise = torch.stack([(normal(sums, 0.5, rng)(lambda out: out + sums) - 7.0) / 0.5 for _ in range(draws)])
    for part in noise.flatten().chunk(8):
        assert abs(float(part.mean())) < 6 / len(part) ** 0.5
        assert float(part.square().mean()) == pytest.approx(1.0, abs=6 * (2 / len(part)) ** 0.5)
    assert len(set(noise.flatten().tolist())) > 0.8 * noise.numel()  # some are rounded to the same


@pytest.mark.parametrize("size", [1000, 250_007, 1_200_001])
def test_noise_is_the_same_whether_it_is_drawn_while_torch_works_or_afterwards(size: int) -> None:
    """With one thread of torch's, others draw at once; with more, all draw when the sum is there."""
    before, drawn = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            drawn.append(normal(torch.zeros(size), 0.5, generator(1))(lambda out: out + 1))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*drawn, rtol=0, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [40_001, 2 * PART])
def test_a_part_that_cannot_be_drawn_ends_the_round(monkeypatch: pytest.MonkeyPatch, threads: int, size: int) -> None:
    """Whichever thread it fails in: numbers that were never drawn must not pass for noise."""
    before = torch.get_num_threads()
    monkeypatch.setattr("privopt.measure.randomness.torch_noise.fill", lambda *_: 1 / 0)
    torch.set_num_threads(threads)
    try:
        with pytest.raises(ZeroDivisionError):
            normal(torch.zeros(size), 1.0, generator(0))(lambda out: out)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_noise_is_drawn_in_a_forked_process_too() -> None:
    """Threads are not inherited: a pool of them that was would wait for ever."""

    def drawn() -> None:
        normal(torch.zeros(2 * PART), 1.0, generator(0))(lambda out: out)

    drawn()
    child = multiprocessing.get_context("fork").Process(target=drawn)
    child.start()
    child.join(30)
    assert child.exitcode == 0
