"""Release rules by hand, and the odds of the random ones."""

import numpy as np
import pytest
from scipy import stats

from privopt.errors import CompositionError
from privopt.measure.randomness import generator
from privopt.perexample.grads import Vector
from privopt.postprocess.release import ReleaseRule, average, last, moving_average, random_round, uniform_iterate
from tests.laws.checks import FALSE_ALARM

ROUNDS = 7
ITERATES = np.arange(1.0, ROUNDS + 1)[:, None] * np.ones(2)
START = np.zeros(2)


def released(rule: ReleaseRule, rounds: int = ROUNDS, seed: int = 0) -> Vector:
    iterate = START.copy()
    state = rule.start(iterate, rounds, generator(seed))
    for round_ in range(rule.rounds(state, rounds)):
        iterate[:] = ITERATES[round_]  # in place, as the loop moves it
        state = rule.observe(state, round_, rounds, iterate)
    return rule.select(state)


def test_last_is_the_last() -> None:
    np.testing.assert_array_equal(released(last()), [7, 7])


def test_an_average_is_the_mean_of_all_or_of_those_after_the_first_half() -> None:
    np.testing.assert_allclose(released(average()), [4, 4])
    np.testing.assert_allclose(released(average("last half")), [5.5, 5.5])  # rounds 4 to 7 of 7
    np.testing.assert_allclose(released(average("last half"), rounds=6), [5, 5])  # rounds 4 to 6 of 6
    np.testing.assert_allclose(released(average("last half"), rounds=1), [1, 1])


def test_a_moving_average_forgets_the_start_and_then_averages_over_its_horizon() -> None:
    kept = 1.0
    for done, iterate in enumerate(range(2, ROUNDS + 1), start=1):
        decay = min(0.3, done / (done + 9))
        kept = decay * kept + (1 - decay) * iterate
    np.testing.assert_allclose(released(moving_average(0.3)), [kept, kept])
    np.testing.assert_allclose(released(moving_average(0.0)), released(last()))
    np.testing.assert_allclose(released(moving_average(0.9), rounds=1), [1, 1])
    with pytest.raises(CompositionError, match="decay is a number"):
        moving_average(1.0)


@pytest.mark.parametrize("rule", [uniform_iterate(), random_round()], ids=str)
def test_every_round_is_equally_likely_to_be_chosen(rule: ReleaseRule) -> None:
    """7000 seeded draws; false alarm in 1 of 10⁶ choices of the seeds."""
    chosen = [int(released(rule, seed=seed)[0]) for seed in range(7000)]
    counts = np.bincount(chosen, minlength=ROUNDS + 1)[1:]
    assert counts.sum() == 7000
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_a_uniform_iterate_runs_all_rounds_and_a_random_round_runs_no_further_than_it_needs() -> None:
    for seed in range(20):
        everything = uniform_iterate().start(START, ROUNDS, generator(seed))
        assert uniform_iterate().rounds(everything, ROUNDS) == ROUNDS
        some = random_round().start(START, ROUNDS, generator(seed))
        assert random_round().rounds(some, ROUNDS) == some["chosen"]
