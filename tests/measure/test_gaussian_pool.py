"""A pool of Gaussian noise: however it is divided, and whatever decides that, it is one Gaussian release."""

import math

import numpy as np
import pytest
from scipy import stats

from privopt.errors import BudgetExceeded, CompositionError
from privopt.measure.mechanisms import gaussian_pool
from privopt.measure.randomness import Rng, generator
from privopt.perexample.grads import Vector
from privopt.privacy.events import GaussianDpEvent
from tests.laws.checks import FALSE_ALARM

Z, RUNS = 1.5, 3000


@pytest.mark.parametrize("share", [1.0, 0.25, 0.01])
def test_an_answer_has_the_noise_of_its_share(share: float) -> None:
    answers, spent = gaussian_pool(Z).release(np.full(4000, 7.0), 2.0, share, 0.0, generator(0))
    assert spent == share
    assert stats.kstest((answers - 7.0) / (2.0 * Z / math.sqrt(share)), stats.norm.cdf).pvalue > FALSE_ALARM


def test_it_costs_one_gaussian() -> None:
    assert gaussian_pool(Z).event == GaussianDpEvent(Z)
    with pytest.raises(CompositionError, match="noise multiplier"):
        gaussian_pool(-1.0)


@pytest.mark.parametrize(("share", "spent"), [(0.0, 0.0), (-0.1, 0.5), (1.1, 0.0), (0.3, 0.71), (0.1, -0.5), (math.nan, 0.0)])
def test_more_than_there_is_cannot_be_taken(share: float, spent: float) -> None:
    with pytest.raises(BudgetExceeded, match="pool of noise"):
        gaussian_pool(Z).release(np.zeros(2), 1.0, share, spent, generator(0))


@pytest.mark.parametrize("spent", [0.1, 1 / 3, 0.7, 1 - 1e-12])
def test_all_that_is_left_can_be_taken_and_nothing_after_that(spent: float) -> None:
    _, after = gaussian_pool(Z).release(np.zeros(2), 1.0, 1 - spent, spent, generator(0))
    assert after == 1.0
    with pytest.raises(BudgetExceeded):
        gaussian_pool(Z).release(np.zeros(2), 1.0, 1e-9, after, generator(0))


def losses(truth: float, *, twice: bool) -> Vector:
    """What an adversary who divides the pool by what he sees learns: log-likelihood ratios of "1" against "0".

    He asks on while answers look like 1, in small shares, and takes all that is left in one as soon as they do not.
    """
    pool, rng = gaussian_pool(Z), generator(int(truth) + 2)
    return np.array([_loss(pool, truth, rng) + (_loss(pool, truth, rng) if twice else 0.0) for _ in range(RUNS)])


def _loss(pool: gaussian_pool, truth: float, rng: Rng) -> float:
    spent, total = 0.0, 0.0
    while spent < 1:
        share = min(0.2, 1 - spent) if total >= 0 else 1 - spent
        answer, spent = pool.release(np.array([truth]), 1.0, share, spent, rng)
        total += float((answer[0] - 0.5) * share / Z**2)
    return total


@pytest.mark.parametrize("truth", [0.0, 1.0])
def test_an_adversary_who_divides_it_by_the_answers_learns_what_one_gaussian_tells(truth: float) -> None:
    """The ratio of one Gaussian(z) is N(±1/2z², 1/z²), whichever data are there."""
    centred = (losses(truth, twice=False) - (truth - 0.5) / Z**2) * Z
    assert stats.kstest(centred, stats.norm.cdf).pvalue > FALSE_ALARM


def test_a_pool_that_is_emptied_twice_is_found() -> None:
    centred = (losses(1.0, twice=True) - 0.5 / Z**2) * Z
    assert stats.kstest(centred, stats.norm.cdf).pvalue < FALSE_ALARM
