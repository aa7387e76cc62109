"""DP-AdamBC (Tang, Shpilevskiy, Lécuyer) against a reference written from the paper's lines."""

import math
from typing import Any

import numpy as np
import pytest

from privopt.loop import run
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_adam_bc import dp_adam_bc
from privopt.perexample.grads import Vector
from privopt.postprocess.updates import adam
from tests.papers.test_dp_sgd_rmsprop_adam import CLIP, NOISE, ROUNDS, X, Y, descend, reference_adam
from tests.problems import linear_oracle

RATE = 0.02


def reference(rate: float, first: float, second: float, deviation: float, floor: float, stability: float) -> Any:
    """m̂/√max(v̂ − Φ, γ′) with Φ = (σC/B)², m̂ and v̂ from all gradients so far."""
    gradients: list[Vector] = []

    def step(gradient: Vector, round_: int) -> Vector:
        gradients.append(gradient)
        t = len(gradients)
        m = sum((1 - first) * first ** (t - j) * gradients[j - 1] for j in range(1, t + 1)) / (1 - first**t)
        v = sum((1 - second) * second ** (t - j) * gradients[j - 1] ** 2 for j in range(1, t + 1)) / (1 - second**t)
        result: Vector = -rate * m / (np.sqrt(np.maximum(v - deviation**2, floor)) + stability)
        return result

    return step


@pytest.mark.parametrize("sampling", [None, poisson(0.3)], ids=str)
def test_it_is_the_paper_s(sampling: Any) -> None:
    expected = 60.0 if sampling is None else 0.3 * 60
    deviation = NOISE * CLIP / expected
    recipe = dp_adam_bc(
        rounds=ROUNDS,
        noise_multiplier=NOISE,
        clip_bound=CLIP,
        learning_rate=RATE,
        expected_batch_size=expected,
        floor=0.5,
        second_decay=0.9,
        **({} if sampling is None else {"sampling": sampling}),
    )
    parameters = run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(5)).parameters
    step = reference(RATE, 0.9, 0.9, deviation, 0.5 * deviation**2, 1e-8)
    np.testing.assert_allclose(parameters, descend(step, clip=CLIP, noise_multiplier=NOISE, sampling=sampling), rtol=1e-8)


def test_without_noise_it_is_adam() -> None:
    recipe = dp_adam_bc(rounds=ROUNDS, noise_multiplier=0.0, clip_bound=1e9, learning_rate=RATE, expected_batch_size=60)
    parameters = run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(5)).parameters
    plain = descend(reference_adam(RATE, 0.9, 0.999, 1e-8, math.inf, True), clip=1e9, noise_multiplier=0.0)
    np.testing.assert_allclose(parameters, plain, rtol=1e-8)


def test_the_corrected_second_moment_is_that_of_the_gradient_and_adam_s_is_not() -> None:
    """What is divided by, m̂/step, under a constant gradient g and noise s = 2g, in 1000 coordinates.

    Each v̂ errs by s²√(2/1000) or so, four of which are below g²; their mean by less than g²/100: false alarm < 1e-6.
    """
    g, s = 0.5, 1.0
    for rule, expected in ((adam(1.0, noise_variance=s**2, floor=1e-9), g**2), (adam(1.0), g**2 + s**2)):
        rng, state = generator(3), rule.start(np.zeros(1000))
        for round_ in range(1000):
            step, state = rule.step(g + s * rng.standard_normal(1000), state, round_)
        mean = state["first"] / (1 - rule.first_decay**1000)
        assert float(((mean / step.displacement) ** 2).mean()) == pytest.approx(expected, abs=0.03)


def test_under_noise_steps_are_longer_than_adam_s_where_the_gradient_is_small() -> None:
    s = NOISE * CLIP / 60
    direction = np.array([0.1 * s, 3 * s])
    bc, plain = adam(1.0, noise_variance=s**2, floor=0.3 * s**2), adam(1.0)
    (long, _), (short, _) = (rule.step(direction, rule.start(direction), 0) for rule in (bc, plain))
    np.testing.assert_allclose(np.abs(short.displacement), 1.0, rtol=1e-4)
    np.testing.assert_allclose(np.abs(long.displacement), [0.1 / math.sqrt(0.3), 3 / math.sqrt(8)], rtol=1e-4)


def test_it_costs_what_dp_adam_costs_and_measures_the_same() -> None:
    common: dict[str, Any] = {"rounds": 7, "noise_multiplier": 1.0, "clip_bound": 1.0, "learning_rate": 0.1}
    recipe, plain = dp_adam_bc(**common, expected_batch_size=4), dp_adam(**common)
    assert recipe.planned_event() == plain.planned_event()
    assert recipe.measurement(3) == plain.measurement(3)


def test_a_wrong_batch_size_changes_steps_and_not_what_is_charged() -> None:
    right, wrong = (
        dp_adam_bc(rounds=5, noise_multiplier=NOISE, clip_bound=CLIP, learning_rate=RATE, expected_batch_size=size)
        for size in (60, 600)
    )
    assert right.planned_event() == wrong.planned_event()
    one, other = (run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(5)).parameters for recipe in (right, wrong))
    assert np.abs(one - other).max() > 1e-3
