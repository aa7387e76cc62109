"""The noisy minimum, priced by its exact likelihood ratios on neighbouring data."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privopt.errors import CompositionError
from privopt.measure.mechanisms import noisy_min
from privopt.measure.randomness import generator
from privopt.perexample.grads import Vector
from privopt.privacy.events import NonPrivateDpEvent, PureDpEvent
from tests.laws.checks import FALSE_ALARM


def probabilities(scores: Vector, scale: float, *, raised: bool = False) -> Vector:
    """How often each place is told; `raised` is noise of the wrong sign.

    For the noise x of its own score and y = e^(−x), uniform on [0, 1], another score at a distance d stays above with probability
    (1 − y e^(−d))₊, or min(1, y e^d) if noise raises: polynomials between known edges, which Gauss's rule integrates exactly.
    """
    nodes, weights = np.polynomial.legendre.leggauss(len(scores))

    def told(place: int) -> float:
        factors = np.exp(np.delete(scores - scores[place], place) / scale)
        edges = np.unique(np.clip([0.0, *(1 / factors if raised else factors), 1.0], 0.0, 1.0))
        total = 0.0
        for low, high in itertools.pairwise(edges.tolist()):
            y = (low + high) / 2 + (high - low) / 2 * nodes[:, None]
            above = np.minimum(1.0, y * factors) if raised else np.maximum(0.0, 1 - y / factors)
            total += (high - low) / 2 * float(weights @ above.prod(axis=1))
        return total

    return np.array([told(place) for place in range(len(scores))])


def cost(before: Vector, after: Vector) -> float:
    """ε: the largest log-likelihood ratio of a place."""
    return float(np.abs(np.log(before) - np.log(after)).max())


@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.0], [1.0, 1.5, 3.0, 1.2], [-4.0, 0.0]], ids=str)
def test_places_are_told_as_often_as_the_stated_noise_says(scores: list[float]) -> None:
    mechanism, rng = noisy_min(0.5), generator(3)
    told = np.bincount([mechanism.choose(np.array(scores), 2.0, rng) for _ in range(6000)], minlength=len(scores))
    expected = probabilities(np.array(scores), 0.5 * 2.0)
    assert expected.sum() == pytest.approx(1.0)
    assert stats.chisquare(told, 6000 * expected / expected.sum()).pvalue > FALSE_ALARM


CHANGES = st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([0.0, 0.3, 1.0])), min_size=2, max_size=6)


@given(CHANGES, st.sampled_from([0.5, 1.0, 4.0]))
def test_an_added_example_changes_no_likelihood_by_more_than_the_stated_factor(
    changes: list[tuple[float, float]], multiplier: float
) -> None:
    scores, moved = np.array(changes).T
    before, after = (probabilities(each, multiplier) for each in (scores, scores + moved))
    assert cost(before, after) <= 1 / multiplier + 1e-9


def test_the_stated_factor_is_reached() -> None:
    """The worst score among many is told with probability e^(−score/z): raising it by the bound costs all of ε."""
    scores = np.array([0.0] * 20 + [6.0])
    raised = scores + np.eye(21)[20]
    assert cost(probabilities(scores, 1.0), probabilities(raised, 1.0)) == pytest.approx(1.0, abs=0.02)


def test_half_the_noise_costs_twice_as_much_and_is_found() -> None:
    scores = np.array([0.0] * 20 + [3.0])
    raised = scores + np.eye(21)[20]
    assert cost(probabilities(scores, 0.5), probabilities(raised, 0.5)) > 1.9


def test_noise_of_the_wrong_sign_costs_as_many_times_more_as_there_are_other_candidates() -> None:
    """As published with the method: all others have to be raised past the worst score."""
    scores = np.array([0.0] * 20 + [0.5])
    raised = scores + np.eye(21)[20]
    wrong = cost(probabilities(scores, 1.0, raised=True), probabilities(raised, 1.0, raised=True))
    assert wrong == pytest.approx(20.0, rel=0.01)
    assert cost(probabilities(scores, 1.0), probabilities(raised, 1.0)) <= 1.0 + 1e-9


def test_scores_that_move_in_opposite_directions_would_cost_more_than_is_stated() -> None:
    """The proof needs scores that all move the same way; sums of losses ≥ 0 do."""
    scores = np.array([0.0] * 5 + [5.0])
    apart = scores + np.array([-1.0] * 5 + [1.0])
    assert cost(probabilities(scores, 1.0), probabilities(apart, 1.0)) == pytest.approx(2.0)


def test_without_noise_the_least_score_is_told() -> None:
    assert noisy_min(0.0).choose(np.array([3.0, 1.0, 2.0]), 5.0, generator(0)) == 1
    assert noisy_min(2.0).choose(np.array([3.0, 1.0, 2.0]), 0.0, generator(0)) == 1


def test_it_names_its_event_and_refuses_what_is_no_noise() -> None:
    assert noisy_min(4.0).event == PureDpEvent(0.25)
    assert noisy_min(0.0).event == NonPrivateDpEvent()
    for value in (-1.0, math.nan):
        with pytest.raises(CompositionError, match="noise multiplier"):
            noisy_min(value)
