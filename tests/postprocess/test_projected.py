"""Steps inside a ball, decreasing steps, and rounds that are drawn in proportion to weights."""

import math

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.measure.randomness import generator
from privopt.methods.dp_sgd import dp_sgd
from privopt.postprocess.regularizers import nonconvex, ridge, strong_convexity
from privopt.postprocess.release import last, random_round
from privopt.postprocess.updates import inverse, momentum, projected, sgd


def test_iterates_stay_in_the_ball_and_go_where_the_rule_goes_inside_it() -> None:
    rng, rule, plain = np.random.default_rng(0), projected(momentum(0.5, 0.5), 2.0), momentum(0.5, 0.5)
    start = np.array([30.0, -0.2, 0.1])
    at, memory, free = start, rule.start(start), plain.start(start)
    cut = 0
    for round_ in range(200):
        direction = rng.standard_normal(3)
        wanted, free = plain.step(direction, free, round_)
        step, memory = rule.step(direction, memory, round_)
        away = at + wanted.displacement - start
        expected = start + away * min(1.0, 2.0 / np.linalg.norm(away))  # the nearest point of the ball
        cut += bool(np.linalg.norm(away) > 2.0)
        at = step.taken(at)
        np.testing.assert_allclose(at, expected, rtol=1e-11)
    assert 10 < cut < 190  # both happen


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_ball_without_a_radius_is_refused(radius: float) -> None:
    with pytest.raises(CompositionError, match="finite radius"):
        projected(sgd(0.1), radius)


def test_inverse_steps_fall_as_one_over_t() -> None:
    assert [inverse(6.0)(round_) for round_ in range(3)] == [6.0, 3.0, 2.0]


def test_rounds_are_drawn_in_proportion_to_weights() -> None:
    """6000 draws; each frequency within five standard errors: false alarm below 1e-5."""
    rule, rng = random_round((1.0, 3.0, 0.0, 4.0)), generator(0)
    drawn = np.array([rule.rounds(rule.start(None, 4, rng), 4) for _ in range(6000)])
    shares = np.array([1, 3, 0, 4]) / 8
    found = np.bincount(drawn, minlength=5)[1:] / 6000
    np.testing.assert_array_less(np.abs(found - shares), 5 * np.sqrt(shares * (1 - shares) / 6000) + 1e-12)


def test_a_recipe_that_stops_at_random_is_told_its_rounds_before_noise_is_calibrated() -> None:
    recipe = dp_sgd(rounds=40, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, release=random_round())
    stops = {recipe.stop(generator(seed)) for seed in range(400)}  # misses one of 40 with probability 40 · (39/40)^400 < 0.002
    assert stops == set(range(1, 41))
    stopped = recipe.stopped(7)
    assert (stopped.rounds, stopped.release) == (7, last())
    assert stopped.stop(generator(0)) == 7
    plain = dp_sgd(rounds=40, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1)
    assert plain.stop(generator(0)) == 40
    assert plain.stopped(40) is plain


def test_only_a_ridge_on_all_parameters_is_known_to_be_strongly_convex() -> None:
    assert strong_convexity(None) == 0.0
    assert strong_convexity(ridge(0.3)) == strong_convexity(ridge(0.3, np.ones(4))) == 0.3
    with pytest.raises(CompositionError, match="not convex"):
        strong_convexity(nonconvex(0.3))
    with pytest.raises(CompositionError, match="does not cover all parameters"):
        strong_convexity(ridge(0.3, np.array([1.0, 0.0])))
