"""Samplers: who takes part, and how often. Seeds are fixed; each test would raise a false alarm in at most 1 of 10⁶ seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from privopt.errors import CompositionError
from privopt.measure.randomness import generator
from privopt.measure.samplers import Sampler, disjoint_batches, fixed_size, full_batch, poisson
from privopt.perexample.grads import Vector
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from tests.laws.checks import FALSE_ALARM

SIZE, DRAWS = 6, 6000


def taken(sampler: Sampler, seed: int = 0) -> Vector:
    """Who took part in each of many rounds, as 0 and 1."""
    rng, who = generator(seed), np.zeros((DRAWS, SIZE))
    for round_ in range(DRAWS):
        who[round_, sampler.draw(SIZE, round_, rng)] = 1
    return who


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9, 1.0])
def test_under_poisson_each_row_tosses_its_own_coin(probability: float) -> None:
    """All 2⁶ sets of rows occur as often as six independent coins say."""
    who = taken(poisson(probability))
    sets = np.bincount((who @ 2 ** np.arange(SIZE)).astype(int), minlength=2**SIZE)
    heads = np.array([bin(number).count("1") for number in range(2**SIZE)])
    expected = DRAWS * probability**heads * (1 - probability) ** (SIZE - heads)
    likely = expected > 5  # chi-square needs that; the others are counted together
    if likely.all() or not expected[~likely].sum():
        assert (sets[~likely] == 0).all()
        sets, expected = sets[likely], expected[likely]
    else:
        sets = np.append(sets[likely], sets[~likely].sum())
        expected = np.append(expected[likely], expected[~likely].sum())
    assert len(sets) == 1 or stats.chisquare(sets, expected).pvalue > FALSE_ALARM


def test_under_a_fixed_size_every_set_of_that_size_is_equally_likely() -> None:
    who = taken(fixed_size(3, SIZE))
    assert (who.sum(axis=1) == 3).all()
    sets = np.unique(who @ 2 ** np.arange(SIZE), return_counts=True)[1]
    assert len(sets) == math.comb(SIZE, 3)
    assert stats.chisquare(sets).pvalue > FALSE_ALARM


def test_rounds_are_drawn_independently() -> None:
    """How many take part now says nothing of how many take part next: 5 standard errors of a correlation."""
    sizes = taken(poisson(0.4)).sum(axis=1)
    assert abs(np.corrcoef(sizes[:-1], sizes[1:])[0, 1]) < 5 / math.sqrt(DRAWS)


def test_an_empty_draw_is_a_draw() -> None:
    sizes = taken(poisson(0.05)).sum(axis=1)
    assert (sizes == 0).mean() == pytest.approx(0.95**SIZE, abs=0.035)  # 5 standard errors


def test_a_draw_of_few_of_many_rows_takes_time_by_the_few() -> None:
    """A billion rows: an array of a coin for each would be 8 GB."""
    rows = poisson(1e-8).draw(10**9, 0, generator(0))
    assert rows is not None
    assert len(rows) < 60
    assert len(np.unique(rows)) == len(rows)


def test_a_full_batch_is_everybody() -> None:
    assert full_batch().draw(SIZE, 0, generator(0)) is None
    assert full_batch().expected(SIZE) == SIZE


@pytest.mark.parametrize(("size", "batches"), [(12, 3), (100, 7), (5, 8)])
def test_disjoint_batches_cut_the_rows_into_parts(size: int, batches: int) -> None:
    sampler, rng = disjoint_batches(batches, key=1), generator(0)
    parts = [sampler.draw(size, round_, rng) for round_ in range(batches)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [-1, 2**256])
def test_a_key_that_the_cipher_does_not_have_is_refused(key: int) -> None:
    with pytest.raises(CompositionError, match=r"256 bits, such as secrets\.randbits\(256\)"):
        disjoint_batches(3, key=key)


def test_expected_sizes_are_exact() -> None:
    assert poisson(0.1).expected(25) == 2.5
    assert fixed_size(3, 25).expected(25) == 3.0
    assert disjoint_batches(4, key=0).expected(25) == 6.25


def test_samplers_say_what_they_do_to_an_event() -> None:
    event = GaussianDpEvent(2.0)
    assert poisson(0.1).amplify(event, 5) == PoissonSampledDpEvent(0.1, event)
    assert fixed_size(3, 25).amplify(event, 5) == SampledWithoutReplacementDpEvent(25, 3, event)
    assert full_batch().amplify(event, 5) == event


def test_a_fixed_size_is_for_the_size_that_it_was_planned_for() -> None:
    with pytest.raises(CompositionError, match="planned for 25 rows, but there are 24"):
        fixed_size(3, 25).draw(24, 0, generator(0))


def test_the_part_of_a_row_is_drawn_and_not_its_place() -> None:
    """Over 400 keys: each part equally often, and as often the next row's as chance would have it. (Five deviations: 2e-6.)"""
    parts = np.empty((400, 6), dtype=int)
    for key in range(len(parts)):
        for round_ in range(4):
            parts[key, disjoint_batches(4, key).draw(6, round_, generator(0))] = round_
    spread = 5 * np.sqrt(400 * 0.25 * 0.75)
    counts = [np.bincount(parts[:, row], minlength=4) for row in range(6)]
    assert (np.abs(np.array(counts) - 100) < spread).all()
    assert all(abs(int((parts[:, row] == parts[:, row + 1]).sum()) - 100) < spread for row in range(5))
