"""Update rules by hand, and schedules."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.perexample.grads import Vector
from privopt.postprocess.updates import UpdateRule, adam, as_schedule, constant, inverse_sqrt, momentum, rmsprop, sgd, step_decay
from privopt.state import Known
from tests.laws.table import UPDATES

G = np.array([0.5, -2.0])


def steps(rule: UpdateRule, count: int) -> list[Vector]:
    memory, taken = rule.start(G), []
    for round_ in range(count):
        step, memory = rule.step(G, memory, round_, Known(gradient=0 * G))
        taken.append(step.displacement)
    return taken


def test_sgd_steps_against_the_gradient() -> None:
    np.testing.assert_allclose(steps(sgd(0.1), 2), [-0.1 * G, -0.1 * G])


def test_sgd_takes_no_step_longer_than_the_longest() -> None:
    np.testing.assert_allclose(steps(sgd(0.1, longest=1.0), 1)[0], -0.1 * G)
    np.testing.assert_allclose(steps(sgd(0.1, longest=0.01), 1)[0], -0.01 * G / np.linalg.norm(G))
    still, _ = sgd(0.1, longest=0.01).step(0 * G, {}, 0)
    np.testing.assert_array_equal(still.displacement, 0 * G)


def test_momentum_adds_up_what_came_before() -> None:
    np.testing.assert_allclose(steps(momentum(0.1, 0.5), 3), [-0.1 * G, -0.15 * G, -0.175 * G])


def test_rmsprop_s_first_step_has_one_size_in_every_coordinate() -> None:
    """v = (1 − β₂) g², so the step is η/√(1 − β₂), whatever the gradient."""
    np.testing.assert_allclose(steps(rmsprop(0.1, decay=0.99, stability=0.0), 1)[0], -np.sign(G) * 0.1 / math.sqrt(0.01))


def test_adam_with_bias_correction_takes_steps_of_the_learning_rate_on_a_constant_gradient() -> None:
    for step in steps(adam(0.1, stability=0.0), 5):
        np.testing.assert_allclose(step, -0.1 * np.sign(G), rtol=1e-12)


def test_adam_without_bias_correction_starts_at_its_bare_ratio() -> None:
    """(1 − β₁)/√(1 − β₂) times the learning rate."""
    np.testing.assert_allclose(
        steps(adam(0.1, 0.9, 0.999, 0.0, bias_correction=False), 1)[0], -np.sign(G) * 0.1 * 0.1 / math.sqrt(0.001)
    )


def test_a_ceiling_holds_the_square_after_bias_correction_and_only_from_above() -> None:
    step = steps(adam(0.1, stability=0.0, ceiling=1.0), 1)[0]
    np.testing.assert_allclose(step, [-0.1, 0.1 * 2.0])  # √min(0.25, 1) = 0.5, √min(4, 1) = 1


def test_a_ceiling_does_not_change_what_is_remembered() -> None:
    for free, held in ((rmsprop(0.1), rmsprop(0.1, ceiling=1e-3)), (adam(0.1), adam(0.1, ceiling=1e-3))):
        _, one = free.step(G, free.start(G), 0)
        _, other = held.step(G, held.start(G), 0)
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


@pytest.mark.parametrize("name", UPDATES)
def test_a_step_leads_to_an_array_of_its_own_or_moves_the_iterate_and_does_the_same_in_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    rule, here = UPDATES[name], 3 * G
    memory = rule.start(G)
    for round_ in range(3):
        step, memory = rule.step(G, memory, round_, Known(gradient=0 * G))
        there = step.taken(here)
        np.testing.assert_array_equal(there, here + step.displacement)
        arrays = [G, here, step.along, *(value for value in memory.values() if isinstance(value, np.ndarray))]
        assert not any(np.shares_memory(there, array) for array in arrays)
        in_torch = step._replace(towards=torch.tensor(step.along)).taken(torch.tensor(here))
        np.testing.assert_allclose(in_torch.numpy(), there, rtol=1e-15)
        for along, start in ((step.along, here.copy()), (torch.tensor(step.along), torch.tensor(here))):
            assert step._replace(towards=along).taken(start, in_place=True) is start
            np.testing.assert_allclose(start, there, rtol=1e-15)


@given(st.integers(0, 1000))
def test_schedules_are_functions_of_the_round_alone(round_: int) -> None:
    assert constant(0.3)(round_) == 0.3
    assert as_schedule(0.3)(round_) == 0.3
    assert as_schedule(inverse_sqrt(2.0))(round_) == pytest.approx(2.0 / math.sqrt(round_ + 1))
    assert step_decay(1.0, factor=0.5, every=10)(round_) == 0.5 ** (round_ // 10)


@pytest.mark.parametrize("name", [name for name in UPDATES if name not in ("warm_up", "projected")])  # whose own rules do
def test_every_rule_follows_a_schedule(name: str) -> None:
    rule = UPDATES[name]
    scheduled = replace(rule, learning_rate=step_decay(0.1, factor=0.5, every=1))  # type: ignore[type-var]
    for round_, (plain, halved) in enumerate(zip(steps(rule, 4), steps(scheduled, 4), strict=True)):
        np.testing.assert_allclose(halved, plain * 0.5**round_)
