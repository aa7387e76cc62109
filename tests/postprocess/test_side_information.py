"""Side information by hand: what is known of public gradients, of words, and of nothing."""

import numpy as np
import pytest
import scipy.sparse as sp

from privopt.errors import CompositionError, InputError
from privopt.perexample.grads import Vector
from privopt.postprocess.side_information import (
    SideInformation,
    fixed_scale,
    least_seen,
    nothing,
    public_gradient,
    public_moments,
    public_rms,
    public_sum,
    seen_sizes,
    tf_idf,
    token_frequency,
)
from privopt.postprocess.updates import mirror_mix, public_adam, public_rmsprop, rmsprop, sgd, warm_up
from privopt.state import Known

G = np.array([3.0, -4.0])


class Growing:
    """ĝ = (round + 1) × G, wherever it is asked for."""

    epoch = 4

    def __call__(self, parameters: Vector, round_: int) -> Vector:
        return (round_ + 1) * G + 0 * parameters


def after(side: SideInformation, rounds: int) -> Known:
    state = side.start(G)
    for round_ in range(rounds):
        known, state = side.at(G, state, round_)
        state = side.observe(100 * G, state, round_)  # a private answer teaches public data nothing
    return known


def test_nothing_is_known_of_nothing() -> None:
    assert after(nothing(), 2) == Known()


def test_a_public_gradient_is_known_as_it_is() -> None:
    known = after(public_gradient(Growing()), 3)
    np.testing.assert_array_equal(known.gradient, 3 * G)
    assert known.scale is None
    assert known.momentum is None


def test_rmsprop_s_scale_is_a_running_root_mean_square() -> None:
    known = after(public_rms(Growing(), decay=0.5, stability=0.25), 2)
    np.testing.assert_allclose(known.scale, np.sqrt(0.25 * G**2 + 0.5 * (2 * G) ** 2) + 0.25)
    assert known.momentum is None


def test_adagrad_s_scale_is_the_root_of_a_sum() -> None:
    known = after(public_sum(Growing(), stability=0.25), 3)
    np.testing.assert_allclose(known.scale, np.sqrt(1 + 4 + 9) * np.abs(G) + 0.25)
    assert known.momentum is None


def test_adam_s_momentum_is_a_running_mean() -> None:
    known = after(public_moments(Growing(), first_decay=0.5, decay=0.9, stability=0.25), 2)
    np.testing.assert_allclose(known.momentum, 0.25 * G + 0.5 * 2 * G)
    np.testing.assert_allclose(known.scale, np.sqrt(0.09 * G**2 + 0.1 * (2 * G) ** 2) + 0.25)


def test_a_fixed_scale_is_positive() -> None:
    np.testing.assert_array_equal(after(fixed_scale(np.array([1.0, 0.01])), 3).scale, [1.0, 0.01])
    with pytest.raises(CompositionError, match="not 0"):
        fixed_scale(np.array([1.0, 0.0]))


def test_sizes_are_those_of_one_pass_and_the_least_one_is_not_zero() -> None:
    np.testing.assert_allclose(seen_sizes(Growing(), np.zeros(2)), np.sqrt((1 + 4 + 9 + 16) / 4) * np.abs(G))
    assert least_seen(np.array([0.0] * 50 + [2.0] * 5 + [3.0] * 5)) == 2.0
    assert least_seen(np.array([0.0] + [float(size) for size in range(1, 21)])) == 3.0  # a tenth of twenty lies below
    assert least_seen(np.zeros(3)) == 1.0


# ---------------------------------------------------------------- updates by public gradients

KNOWN = Known(gradient=np.array([2.0, 0.5]))


def test_public_rmsprop_divides_by_the_public_gradient_and_not_by_its_own() -> None:
    step, _ = public_rmsprop(0.1, decay=0.75, stability=0.0).step(G, {"second": np.zeros(2)}, 0, KNOWN)
    np.testing.assert_allclose(step.displacement, -0.1 * G / (0.5 * np.array([2.0, 0.5])))


def test_public_adam_s_first_step_is_corrected_for_its_start() -> None:
    rule = public_adam(0.1, weight=0.25, stability=0.0)
    step, _ = rule.step(G, rule.start(G), 0, KNOWN)
    np.testing.assert_allclose(step.displacement, -0.1 * (0.25 * G + 0.75 * np.array([2.0, 0.5])) / np.array([2.0, 0.5]))


def test_a_mirror_mix_goes_from_the_private_to_the_public_gradient_and_stays_there() -> None:
    rule = mirror_mix(0.1, horizon=4)
    steps = [rule.step(G, {}, round_, KNOWN)[0].displacement for round_ in (0, 2, 4, 9)]
    np.testing.assert_allclose(steps[0], -0.1 * G)
    np.testing.assert_allclose(steps[1], -0.1 * (np.sqrt(0.5) * G + (1 - np.sqrt(0.5)) * np.array([2.0, 0.5])))
    for late in steps[2:]:
        np.testing.assert_allclose(late, -0.1 * np.array([2.0, 0.5]), atol=1e-15)


def test_a_warm_up_hands_over_with_a_round_and_a_memory_of_its_own() -> None:
    rule = warm_up(2, rmsprop(0.1), then=sgd(lambda round_: 1.0 / (1 + round_)))
    memory = rule.start(G)
    for round_ in range(2):
        _, memory = rule.step(0 * G, memory, round_, KNOWN)
    np.testing.assert_allclose(memory["first second"], (1 - 0.99**2) * np.array([4.0, 0.25]))
    step, _ = rule.step(G, memory, 2, KNOWN)
    np.testing.assert_allclose(step.displacement, -G)  # the schedule begins when the private rounds do


# ---------------------------------------------------------------- words

COUNTS = np.array([[2, 1, 0, 0], [1, 0, 0, 0], [4, 1, 1, 0]])


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array, sp.csr_matrix], ids=["dense", "csr", "csr_matrix"])
def test_a_rare_word_has_a_small_frequency_and_an_unseen_one_a_smaller_one(store: type) -> None:
    np.testing.assert_allclose(token_frequency(store(COUNTS)), [1.0, 0.75, 0.5, 0.25])
    np.testing.assert_allclose(tf_idf(store(COUNTS)), tf_idf(COUNTS))
    assert (tf_idf(store(COUNTS)) >= 1.0).all()
    assert np.isfinite(tf_idf(store(COUNTS))).all()


def test_what_is_not_a_corpus_is_refused() -> None:
    for wrong in (np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0))):
        with pytest.raises(InputError, match="documents × words"):
            token_frequency(wrong)
