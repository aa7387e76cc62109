"""DP²-RMSProp (Li, Zaheer, Liu, Reddi, McMahan, Smith) against a reference written from the paper's lines."""

import math
from typing import Any

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.dp2_rmsprop import dp2_rmsprop
from privopt.perexample.grads import Vector
from privopt.postprocess.side_information import delayed_preconditioner
from privopt.postprocess.updates import step_decay
from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent
from privopt.state import Known, PublicState
from tests.problems import Given, linear_oracle, scaled_rows

X, Y = scaled_rows()
ROUNDS, NOISE, C1, C2, RATE1, RATE2, DECAY, STABILITY = 23, 1.3, 0.8, 5.0, 0.3, 0.05, 0.7, 0.1


def gradients(theta: Vector, rows: Any) -> Vector:
    result: Vector = (1 / (1 + np.exp(-X[rows] @ theta)) - Y[rows])[:, None] * X[rows]
    return result


def delayed(phase: int, noise: float, *, clips: tuple[float, float] = (C1, C2), sampling: Any = None) -> Vector:
    """Algorithm 1: accumulate in SGD steps, estimate v when they end, then precondition before clipping."""
    theta, v, total, rng = np.zeros(4), np.zeros(4), np.zeros(4), generator(5)
    for t in range(ROUNDS):
        adaptive = t % (2 * phase) >= phase
        rows, expected = (np.arange(60), 60.0) if sampling is None else (sampling.draw(60, t, rng), sampling.expected(60))
        each = gradients(theta, rows) / (np.sqrt(v) + STABILITY if adaptive else 1.0)
        clip = clips[adaptive]
        each *= np.minimum(1.0, clip / np.linalg.norm(each, axis=1))[:, None]
        answer = (each.sum(axis=0) + noise * clip * rng.standard_normal(4)) / expected
        theta = theta - (RATE2 if adaptive else RATE1) * answer
        if not adaptive:
            total = total + answer
            if (t + 1) % (2 * phase) == phase:
                v, total = DECAY * v + (1 - DECAY) * (total / phase) ** 2, np.zeros(4)
    return theta


def recipe(phase: int, noise: float, clips: tuple[float, float] = (C1, C2), **options: Any) -> Any:
    return dp2_rmsprop(
        rounds=ROUNDS,
        noise_multiplier=noise,
        clip_bound=clips[0],
        learning_rate=RATE1,
        phase=phase,
        preconditioned_clip_bound=clips[1],
        preconditioned_learning_rate=RATE2,
        decay=DECAY,
        stability=STABILITY,
        **options,
    )


@pytest.mark.parametrize("sampling", [None, poisson(0.3)], ids=str)
@pytest.mark.parametrize("phase", [1, 4, 10])
def test_it_is_the_paper_s(phase: int, sampling: Any) -> None:
    options = {} if sampling is None else {"sampling": sampling}
    parameters = run(recipe(phase, NOISE, **options), linear_oracle(X, Y), np.zeros(4), rng=generator(5)).parameters
    np.testing.assert_allclose(parameters, delayed(phase, NOISE, sampling=sampling), rtol=1e-8)


@pytest.mark.parametrize("phase", [3, 99])
def test_without_noise_and_clipping_it_is_delayed_rmsprop_and_in_its_first_phase_gradient_descent(phase: int) -> None:
    parameters = run(recipe(phase, 0.0, (1e9, 1e9)), linear_oracle(X, Y), np.zeros(4), rng=generator(5)).parameters
    theta, v, total = np.zeros(4), np.zeros(4), np.zeros(4)
    for t in range(ROUNDS):
        mean = gradients(theta, slice(None)).mean(axis=0)
        if t // phase % 2:
            theta = theta - RATE2 * mean / (np.sqrt(v) + STABILITY)  # preconditioning commutes with the mean
        else:
            theta, total = theta - RATE1 * mean, total + mean
            if (t + 1) % phase == 0:
                v, total = DECAY * v + (1 - DECAY) * (total / phase) ** 2, np.zeros(4)
    np.testing.assert_allclose(parameters, theta, rtol=1e-8)


def test_bound_and_rate_of_even_phases_are_those_of_odd_ones_unless_given() -> None:
    plain = dp2_rmsprop(rounds=8, noise_multiplier=1.0, clip_bound=2.0, learning_rate=0.1, phase=2)
    bounds = [plain.measurement(round_).bound for round_ in range(6)]  # type: ignore[attr-defined]
    assert bounds == [2.0] * 6
    other = recipe(2, 1.0)
    assert [other.measurement(round_).bound for round_ in range(6)] == [C1, C1, C2, C2, C1, C1]
    steps = [float(other.update.step(np.ones(1), {}, round_)[0].displacement[0]) for round_ in range(6)]
    assert steps == [-RATE1, -RATE1, -RATE2, -RATE2, -RATE1, -RATE1]


def test_rates_may_be_schedules() -> None:
    decaying = dp2_rmsprop(
        rounds=8,
        noise_multiplier=1.0,
        clip_bound=1.0,
        learning_rate=step_decay(1.0, factor=0.1, every=4),
        phase=2,
        preconditioned_learning_rate=0.5,
    )
    steps = [float(decaying.update.step(np.ones(1), {}, round_)[0].displacement[0]) for round_ in range(8)]
    np.testing.assert_allclose(steps, [-1, -1, -0.5, -0.5, -0.1, -0.1, -0.5, -0.5])


# ---------------------------------------------------------------- what it divides by


def test_the_preconditioner_is_made_of_answers_of_odd_phases_alone() -> None:
    side = delayed_preconditioner(2, decay=0.5, stability=0.1)
    state = side.start(np.zeros(1))
    scales = []
    for round_, answer in enumerate([1.0, 3.0, 1e6, -1e6, -4.0, 0.0, 7.0]):
        known, state = side.at(np.zeros(1), state, round_)
        scales.append(None if known.scale is None else float(known.scale[0]))
        state = side.observe(np.array([answer]), state, round_)
    first = math.sqrt(0.5 * 2.0**2)
    second = math.sqrt(0.5 * first**2 + 0.5 * 2.0**2)
    assert scales == [None, None, pytest.approx(first + 0.1), pytest.approx(first + 0.1), None, None, pytest.approx(second + 0.1)]


def test_its_noise_is_smaller_than_that_of_an_answer_by_the_root_of_the_phase() -> None:
    """400 coordinates of nothing but noise: v/(1 − β) is ḡ², whose mean is s²/phase, within 4.5 standard errors (1e-5)."""
    side, rng, phase = delayed_preconditioner(25, stability=0.0), generator(1), 25
    state = side.start(np.zeros(400))
    for round_ in range(phase):
        state = side.observe(rng.standard_normal(400), state, round_)
    known, _ = side.at(np.zeros(400), state, phase)
    assert float((known.scale**2).mean()) / 0.1 == pytest.approx(1 / phase, rel=4.5 * math.sqrt(2 / 400))


def test_a_phase_without_rounds_is_refused() -> None:
    with pytest.raises(CompositionError, match="at least one round"):
        recipe(0, 1.0)


# ---------------------------------------------------------------- privacy

SCALE = np.array([0.01, 3.0])
EVEN = PublicState(np.zeros(2), np.zeros(2), Known(scale=SCALE))


def check_moved(measurement: Measurement, row: list[float]) -> None:
    """One example moves a preconditioned answer by at most C₂/n."""
    others = [[9.0, 9.0], [0.1, 0.0], [-4.0, 4.0]]
    one, other = (
        measurement.measure(Given(np.array([first, *others])), EVEN, 2, generator(0)).value for first in (row, [0.0, 0.0])
    )
    assert np.linalg.norm(one - other) * 4 <= C2 * (1 + 1e-9)


ROWS = [[100.0, -3.0], [0.2, 0.1], [math.inf, 0.0], [0.0, -1e200], [1.0, 0.0]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # runs silence them: laws/test_silence.py
@pytest.mark.parametrize("row", ROWS)
def test_one_example_moves_a_preconditioned_answer_by_at_most_the_bound(row: list[float]) -> None:
    check_moved(recipe(2, 0.0).measurement(2), row)


class ClippedFirst(Measurement):
    """Divides the answer instead of each gradient: the noise would have to be divided by the smallest scale."""

    def measure(self, *arguments: Any) -> Any:
        noisy = super().measure(*arguments)
        return noisy._replace(value=noisy.value / SCALE)


def test_preconditioning_after_the_clip_is_found() -> None:
    honest = recipe(2, 0.0).measurement(2)
    with pytest.raises(AssertionError):
        check_moved(ClippedFirst(honest.sampler, [gradient() @ l2(C2)], honest.mechanism), ROWS[0])


def test_every_round_costs_one_gaussian_whatever_its_phase() -> None:
    assert recipe(4, NOISE).planned_event() == SelfComposedDpEvent(GaussianDpEvent(NOISE), ROUNDS)
