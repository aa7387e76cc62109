"""Estimates by hand."""

import numpy as np

from privopt.postprocess.estimates import newest_answer, recursive_momentum

ANSWERS = np.array([[4.0, 1.0], [2.0, 0.0], [1.0, -1.0]])


def test_the_newest_answer_forgets_the_others() -> None:
    state = newest_answer().start(np.zeros(2))
    for round_, answer in enumerate(ANSWERS):
        estimate, state = newest_answer().of(answer, state, round_)
    np.testing.assert_array_equal(estimate, ANSWERS[2])


def test_recursive_momentum_carries_a_part_of_what_it_knew() -> None:
    rule = recursive_momentum(0.5)
    state = rule.start(np.zeros(2))
    for round_, answer in enumerate(ANSWERS):
        estimate, state = rule.of(answer, state, round_)
    np.testing.assert_array_equal(estimate, 0.25 * ANSWERS[0] + 0.5 * ANSWERS[1] + ANSWERS[2])


def test_recursive_momentum_starts_anew_where_it_carries_nothing() -> None:
    rule = recursive_momentum(lambda round_: float(round_ % 2 > 0))
    state = rule.start(np.zeros(2))
    estimates = []
    for round_, answer in enumerate(ANSWERS):
        estimate, state = rule.of(answer, state, round_)
        estimates.append(estimate)
    np.testing.assert_array_equal(estimates, [ANSWERS[0], ANSWERS[0] + ANSWERS[1], ANSWERS[2]])
