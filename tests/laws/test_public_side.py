"""What every rule of the public side and all side information keep to, so that one loop can run and resume them all."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privopt.state
from privopt.measure.randomness import generator
from privopt.perexample.grads import Vector
from privopt.postprocess.updates import adam, rmsprop
from privopt.state import Known
from tests.laws.table import ESTIMATES, REGULARIZERS, RELEASES, SIDES, UPDATES

ITERATES = np.cumsum(np.random.default_rng(4).standard_normal((9, 3)), axis=0)
START = np.array([1.0, -2.0, 3.0])
REMEMBERING: dict[str, Any] = {**UPDATES, **SIDES}
KNOWN = Known(gradient=0 * START)  # for the rules that ask for a public gradient


def copied(memory: dict[str, Any]) -> dict[str, Any]:
    """A memory as it is after it was saved."""
    return {key: np.array(value) for key, value in memory.items()}


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_first_memory_depends_on_the_shape_of_the_start_only(name: str) -> None:
    one, other = REMEMBERING[name].start(START), REMEMBERING[name].start(10 * START)
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])
        assert np.shape(one[key]) == START.shape


@pytest.mark.parametrize("name", UPDATES)
def test_a_rule_answers_alike_when_its_memory_was_saved_in_between(name: str) -> None:
    rule = UPDATES[name]
    memory, saved = rule.start(START), rule.start(START)
    for round_, direction in enumerate(ITERATES):
        step, memory = rule.step(direction, memory, round_, KNOWN)
        again, saved = rule.step(direction, copied(saved), round_, KNOWN)
        np.testing.assert_array_equal(step.displacement, again.displacement)


@pytest.mark.parametrize("name", UPDATES)
def test_a_rule_leaves_the_direction_and_what_is_public_as_they_are(name: str) -> None:
    rule, direction, known = UPDATES[name], START.copy(), Known(gradient=2 * START)
    memory = rule.start(START)
    for round_ in range(3):
        step, memory = rule.step(direction, memory, round_, known)
        step.taken(START.copy(), in_place=True)
        np.testing.assert_array_equal(direction, [1.0, -2.0, 3.0])
        np.testing.assert_array_equal(known.gradient, 2 * START)
        assert not any(np.shares_memory(value, direction) for value in memory.values())


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("part", [1, 2, 3, 4])
def test_a_large_vector_moves_part_by_part_as_it_does_whole(name: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def trajectory() -> list[Vector]:
        rule, here, found = UPDATES[name], START.copy(), list[Vector]()
        memory = rule.start(here)
        for round_, direction in enumerate(ITERATES):
            step, memory = rule.step(direction, memory, round_, KNOWN)
            here = step.taken(here, in_place=bool(round_ % 2))
            found.append(here.copy())
        return found

    whole = trajectory()
    monkeypatch.setattr(privopt.state, "PART", part)
    np.testing.assert_array_equal(trajectory(), whole)


@pytest.mark.parametrize("name", UPDATES)
def test_a_first_step_goes_against_the_direction_and_a_zero_direction_moves_nothing(name: str) -> None:
    rule = UPDATES[name]
    step, _ = rule.step(START, rule.start(START), 0, KNOWN)
    assert (np.sign(step.displacement) == -np.sign(START)).all()
    still, _ = rule.step(0 * START, rule.start(START), 0, KNOWN)
    np.testing.assert_array_equal(still.displacement, 0 * START)


@pytest.mark.parametrize("rule", [rmsprop(0.1, ceiling=0.04), adam(0.1, ceiling=0.04, bias_correction=False)], ids=str)
@given(st.floats(1.0, 1e6))
def test_under_a_ceiling_large_noise_does_not_make_steps_vanish(rule: rmsprop | adam, size: float) -> None:
    """η |g|/(√λ + ν) at least, for the part of g that enters: the point of the DPAGD paper."""
    direction = np.array([size, -size])
    step, _ = rule.step(direction, rule.start(direction), 200)
    entering = size * (1 - rule.first_decay if isinstance(rule, adam) else 1)
    np.testing.assert_array_less(0.1 * entering / (math.sqrt(0.04) + rule.stability) * (1 - 1e-9), np.abs(step.displacement))


# ---------------------------------------------------------------- estimates


@pytest.mark.parametrize("name", ESTIMATES)
def test_an_estimate_remembers_by_shape_answers_alike_when_saved_and_changes_nothing_that_it_is_given(name: str) -> None:
    rule = ESTIMATES[name]
    memory, saved = rule.start(START), rule.start(10 * START)
    for round_, answer in enumerate(ITERATES):
        before = copied(memory)
        estimate, after = rule.of(answer, memory, round_)
        again, saved = rule.of(answer.copy(), copied(saved), round_)
        np.testing.assert_array_equal(estimate, again)
        np.testing.assert_array_equal(answer, ITERATES[round_])
        for key in before:
            np.testing.assert_array_equal(memory[key], before[key])
        memory = after


@pytest.mark.parametrize("name", ESTIMATES)
def test_the_first_estimate_is_the_first_answer(name: str) -> None:
    np.testing.assert_array_equal(ESTIMATES[name].of(ITERATES[0], ESTIMATES[name].start(START), 0)[0], ITERATES[0])


# ---------------------------------------------------------------- side information


ANSWERS = ITERATES[::-1]


@pytest.mark.parametrize("name", SIDES)
def test_side_information_is_the_same_when_its_memory_was_saved_in_between(name: str) -> None:
    side = SIDES[name]
    memory = saved = side.start(START)
    for round_, (iterate, answer) in enumerate(zip(ITERATES, ANSWERS, strict=True)):
        known, memory = side.at(iterate, memory, round_)
        again, saved = side.at(iterate, copied(saved), round_)
        for one, other in zip(known, again, strict=True):
            np.testing.assert_array_equal(one, other)
        memory, saved = side.observe(answer, memory, round_), side.observe(answer, copied(saved), round_)


@pytest.mark.parametrize("name", SIDES)
def test_side_information_leaves_the_iterate_the_answer_and_its_old_memory_as_they_were(name: str) -> None:
    side = SIDES[name]
    memory = side.start(START)
    for round_ in range(len(ITERATES)):
        iterate, answer, before = ITERATES[round_].copy(), ANSWERS[round_].copy(), copied(memory)
        _, at_iterate = side.at(iterate, memory, round_)
        kept = copied(at_iterate)
        after = side.observe(answer, at_iterate, round_)
        np.testing.assert_array_equal(iterate, ITERATES[round_])
        np.testing.assert_array_equal(answer, ANSWERS[round_])
        for key in before:
            np.testing.assert_array_equal(memory[key], before[key])
            np.testing.assert_array_equal(at_iterate[key], kept[key])
            assert not np.shares_memory(after[key], iterate)  # which the loop moves in place
        memory = after


# ---------------------------------------------------------------- release rules


def released(name: str, rounds: int, seed: int, iterates: Vector) -> tuple[Vector, int]:
    rule = RELEASES[name]
    state = rule.start(START, rounds, generator(seed))
    planned = rule.rounds(state, rounds)
    for round_ in range(planned):
        state = rule.observe(state, round_, planned, iterates[round_])
    return rule.select(state), planned


@pytest.mark.parametrize("name", RELEASES)
def test_what_leaves_is_an_iterate_or_a_mean_of_iterates(name: str) -> None:
    for seed in range(20):
        answer, rounds = released(name, len(ITERATES), seed, ITERATES)
        weighted = ITERATES[0]
        for done, iterate in enumerate(ITERATES[1:], start=1):
            weighted = iterate + done / (done + 9) * (weighted - iterate)  # the weights of a short moving average
        choices = [*ITERATES, ITERATES.mean(axis=0), weighted]
        assert any(np.allclose(answer, choice) for choice in choices)
        assert 1 <= rounds <= len(ITERATES)


@pytest.mark.parametrize("name", RELEASES)
def test_which_iterate_leaves_does_not_depend_on_the_iterates(name: str) -> None:
    """The choice is made before any answer: with other iterates the same places are chosen."""
    for seed in range(20):
        places = np.arange(9.0)[:, None] * np.ones(3)
        one, rounds = released(name, 9, seed, places)
        other, rounds_too = released(name, 9, seed, 1000 - 7 * places)
        np.testing.assert_allclose(other, 1000 - 7 * one)
        assert rounds == rounds_too


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_rule_answers_after_any_number_of_rounds(name: str) -> None:
    rule = RELEASES[name]
    state = rule.start(START, 9, generator(1))
    np.testing.assert_array_equal(rule.select(state), START)
    for round_ in range(4):
        state = rule.observe(state, round_, 9, ITERATES[round_])
        assert np.isfinite(rule.select(state)).all()


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("part", [1, 2])
def test_a_large_iterate_is_kept_part_by_part_as_it_is_whole(name: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = released(name, 9, 1, ITERATES)
    monkeypatch.setattr(privopt.state, "PART", part)
    np.testing.assert_array_equal(released(name, 9, 1, ITERATES)[0], whole)


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_rule_leaves_the_iterates_as_they_are(name: str) -> None:
    rule, iterates = RELEASES[name], ITERATES.copy()
    state = rule.start(START, 9, generator(1))
    for round_ in range(9):
        state = rule.observe(state, round_, 9, iterates[round_])
    np.testing.assert_array_equal(iterates, ITERATES)


# ---------------------------------------------------------------- regularisers


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_regulariser_pulls_towards_zero_and_leaves_masked_parameters_alone(name: str) -> None:
    kind = type(REGULARIZERS[name])
    gradient = kind(0.3, np.array([1.0, 1.0, 0.0])).gradient(START)  # type: ignore[call-arg]
    assert (np.sign(gradient) == np.sign(START) * [1, 1, 0]).all()
    np.testing.assert_array_equal(REGULARIZERS[name].gradient(0 * START), 0 * START)


VALUES: dict[str, Callable[[Vector], Vector]] = {  # of each parameter
    "ridge": lambda w: 0.3 / 2 * w**2,
    "nonconvex": lambda w: 0.3 * w**2 / (1 + w**2),
}


@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("mask", [1.0, np.array([1.0, 0.0, 2.0])], ids=["all", "masked"])
def test_a_regulariser_s_gradient_is_the_derivative_of_its_value(name: str, mask: Any) -> None:
    made, value = type(REGULARIZERS[name])(0.3, mask), VALUES[name]  # type: ignore[call-arg]
    for here in ITERATES:
        assert made.value(here) == pytest.approx(float((mask * value(here)).sum()))
        slopes = mask * (value(here + 1e-6) - value(here - 1e-6)) / 2e-6
        np.testing.assert_allclose(made.gradient(here), slopes, atol=1e-8)
