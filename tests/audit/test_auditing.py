"""The bound itself, where the truth is known."""

import math

import numpy as np
import pytest

from privopt.perexample.grads import Vector
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import GaussianDpEvent
from tests.audit.auditing import FALSE_ALARM, lower_bound


def normal(shift: float, count: int, seed: int) -> Vector:
    return np.random.default_rng(seed).normal(shift, 1.0, count)


@pytest.mark.parametrize("delta", [0.01, 0.1])
def test_the_bound_comes_close_to_the_truth_of_a_gaussian_and_stays_below_it(delta: float) -> None:
    true = epsilon(GaussianDpEvent(0.8), delta)
    bound = lower_bound(normal(1 / 0.8, 200_000, 0), normal(0.0, 200_000, 1), delta)
    assert 0.8 * true < bound < true


def test_either_order_of_the_two_is_tried() -> None:
    """A canary that is never seen to be absent: only "it is not there" is sure."""
    rng = np.random.default_rng(2)
    here, gone = np.ones(5000), (rng.random(5000) < 0.5).astype(float)
    assert lower_bound(here, gone, 0.0) > 3
    assert lower_bound(1 - gone, 1 - here, 0.0) > 3


def test_scores_that_tell_nothing_give_no_bound() -> None:
    assert lower_bound(normal(0.0, 4000, 3), normal(0.0, 4000, 4), 0.0) == 0.0
    assert lower_bound(np.zeros(4000), np.zeros(4000), 0.0) == 0.0


def test_what_happens_with_probability_delta_is_not_held_against_a_claim() -> None:
    rng = np.random.default_rng(5)
    assert lower_bound((rng.random(20_000) < 0.05).astype(float), np.zeros(20_000), 0.1) == 0.0
    assert lower_bound((rng.random(20_000) < 0.05).astype(float), np.zeros(20_000), 0.01) > 1.0


def test_the_bound_is_wrong_no_more_often_than_it_says() -> None:
    """At a false alarm of 5 %, 2000 audits of a randomised response of ε = 1.

    If each was wrong with probability 5 %, more than 160 were with probability below `FALSE_ALARM`.
    """
    rng, likely = np.random.default_rng(6), math.e / (1 + math.e)
    ones = (rng.random((2, 2000, 400)) < np.array([likely, 1 - likely])[:, None, None]).astype(float)
    wrong = sum(lower_bound(here, gone, 0.0, 0.05) > 1.0 for here, gone in zip(*ones, strict=True))
    assert wrong <= 160
    assert FALSE_ALARM < 1e-3 / 100
