"""SAGD (Zhou, Karimi, Yu, Xu, Li) with its three oracles, against references written from the paper's lines.

References know nothing of privopt but the order in which its generator is asked.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.randomness import generator
from privopt.measure.samplers import disjoint_batches, poisson
from privopt.methods.sagd_lap import sagd_lap
from privopt.methods.sagd_minibatch import sagd_minibatch
from privopt.methods.sagd_sparse import sagd_sparse
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Vector
from privopt.perexample.linear_oracle import PublicRows
from privopt.perexample.losses import Logistic
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import LaplaceDpEvent, SelfComposedDpEvent
from privopt.recipe import Recipe
from tests.laws.checks import NOWHERE
from tests.problems import Given, linear_oracle, scaled_rows

X, Y = scaled_rows()
KNOWN = 15  # rows that everybody knows
ROUNDS, RATE, CLIP, NOISE, DECAY, STABILITY = 24, 0.02, 0.8, 1.3, 0.9, 1e-3
COMMON: dict[str, Any] = {"rounds": ROUNDS, "learning_rate": RATE, "decay": DECAY, "stability": STABILITY}
Oracle = Callable[[Vector, int], Vector]


FRAME = Frame(intercept=0.0)
PUBLIC = PublicRows(Design(X[:KNOWN], FRAME), Y[:KNOWN], Logistic(), batch_size=KNOWN)


def trained(recipe: Recipe, seed: int = 5) -> Vector:
    parameters: Vector = run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(seed)).parameters
    return parameters


# ---------------------------------------------------------------- the paper, line by line


def gradient(theta: Vector, row: int) -> Vector:
    result: Vector = (1 / (1 + math.exp(-(X[row] @ theta))) - Y[row]) * X[row]
    return result


def clipped_sum(theta: Vector, rows: Any, clip: float) -> Vector:
    """Every example's gradient has l1 norm at most G₁."""
    total = np.zeros(4)
    for row in rows:
        one = gradient(theta, row)
        total += one * min(1.0, clip / np.abs(one).sum())
    return total


def sagd(oracle: Oracle) -> Vector:
    """Algorithm 1 with φ = g̃ and ψ = (1 − β₂) Σ β₂^(t−i) g̃²."""
    theta, answers = np.zeros(4), list[Vector]()
    for t in range(ROUNDS):
        answers.append(oracle(theta, t))
        v = sum((1 - DECAY) * DECAY ** (t - i) * answers[i] ** 2 for i in range(t + 1))
        theta = theta - RATE * answers[t] / (np.sqrt(v) + STABILITY)
    return theta


def dpg_lap(noise: float, parts: list[Vector], seed: int = 5) -> Oracle:
    """The mean over this round's part (all rows, or a batch of n/parts), plus Laplace(σ) with σ = z G₁/m on each coordinate."""
    rng, expected = generator(seed), 60 / len(parts)

    def answer(theta: Vector, t: int) -> Vector:
        mean = clipped_sum(theta, parts[t % len(parts)], CLIP) / expected
        result: Vector = mean + rng.laplace(0.0, noise * CLIP / expected, 4)
        return result

    return answer


def dpg_sparse(noise: float, budget: int, threshold: float, seed: int = 5) -> Oracle:
    """With σ = z G₁/n: compare under Lap(2σ), which lasts until an answer is paid, and Lap(4σ); answer with Lap(σ)."""
    rng, sigma, paid, hidden = generator(seed), noise * CLIP / 60, 0, math.nan

    def answer(theta: Vector, t: int) -> Vector:
        nonlocal paid, hidden
        public: Vector = np.mean([gradient(theta, row) for row in range(KNOWN)], axis=0)
        if paid == budget:
            return public
        private = clipped_sum(theta, range(60), CLIP) / 60
        if math.isnan(hidden):
            hidden = threshold * math.sqrt(2 * 4 / budget) * sigma + rng.laplace(0.0, 2 * sigma)
        if float(np.linalg.norm(private - public)) + rng.laplace(0.0, 4 * sigma) < hidden:
            return public
        paid, hidden = paid + 1, math.nan
        result: Vector = private + rng.laplace(0.0, sigma, 4)
        return result

    return answer


EVERYBODY = [np.arange(60)]
CUT = disjoint_batches(4, key=11)
PARTS = [np.asarray(CUT.draw(60, part, generator(0))) for part in range(4)]


def test_dpg_lap_is_the_paper_s() -> None:
    parameters = trained(sagd_lap(**COMMON, clip_bound=CLIP, noise_multiplier=NOISE))
    np.testing.assert_allclose(parameters, sagd(dpg_lap(NOISE, EVERYBODY)), rtol=1e-8)


def test_mini_batch_sagd_is_the_paper_s() -> None:
    parameters = trained(sagd_minibatch(**COMMON, clip_bound=CLIP, noise_multiplier=NOISE, sampling=CUT))
    np.testing.assert_allclose(parameters, sagd(dpg_lap(NOISE, PARTS)), rtol=1e-8)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("answers", [1, 6, ROUNDS])
def test_dpg_sparse_is_the_paper_s_with_one_threshold_for_each_paid_answer(answers: int, threshold: float) -> None:
    recipe = sagd_sparse(**COMMON, clip_bound=CLIP, noise_multiplier=NOISE, public=PUBLIC, answers=answers, threshold=threshold)
    np.testing.assert_allclose(trained(recipe), sagd(dpg_sparse(NOISE, answers, threshold)), rtol=1e-8)


# ---------------------------------------------------------------- limits


def plain_rmsprop(batches: list[Vector], *, private: int = ROUNDS) -> Vector:
    """RMSProp as torch.optim has it, on mean losses; after the private rounds, on public rows."""
    theta = square = np.zeros(4)
    for t in range(ROUNDS):
        rows, count = (batches[t % len(batches)], 60 / len(batches)) if t < private else (np.arange(KNOWN), KNOWN)
        mean = X[rows].T @ (1 / (1 + np.exp(-X[rows] @ theta)) - Y[rows]) / count
        square = DECAY * square + (1 - DECAY) * mean**2
        theta = theta - RATE * mean / (np.sqrt(square) + STABILITY)
    return theta


def test_without_noise_and_clipping_sagd_is_rmsprop() -> None:
    free: dict[str, Any] = {**COMMON, "noise_multiplier": 0.0, "clip_bound": 1e9}
    np.testing.assert_allclose(trained(sagd_lap(**free)), plain_rmsprop(EVERYBODY), rtol=1e-8)
    np.testing.assert_allclose(trained(sagd_minibatch(**free, sampling=CUT)), plain_rmsprop(PARTS), rtol=1e-8)
    np.testing.assert_allclose(trained(sagd_sparse(**free, public=PUBLIC, answers=ROUNDS)), plain_rmsprop(EVERYBODY), rtol=1e-8)
    some = sagd_sparse(**free, public=PUBLIC, answers=10)
    np.testing.assert_allclose(trained(some), plain_rmsprop(EVERYBODY, private=10), rtol=1e-8)
    assert np.abs(trained(some) - plain_rmsprop(EVERYBODY)).max() > 0.01


def test_clipping_matters_here() -> None:
    loose, tight = (sagd_lap(**COMMON, noise_multiplier=0.0, clip_bound=bound) for bound in (1e9, CLIP))
    assert np.abs(trained(loose) - trained(tight)).max() > 0.01


# ---------------------------------------------------------------- privacy


@pytest.mark.parametrize("row", [[100.0, -3.0], [0.2, 0.1], [math.inf, 0.0], [0.0, -1e200]])
@pytest.mark.parametrize("recipe", [sagd_lap, sagd_minibatch])
def test_one_example_moves_an_answer_by_at_most_the_bound_over_the_batch(recipe: Any, row: list[float]) -> None:
    own = {"sampling": disjoint_batches(2, key=1)} if recipe is sagd_minibatch else {}
    measurement = recipe(rounds=2, noise_multiplier=0.0, clip_bound=CLIP, learning_rate=0.1, **own).measurement(0)
    others = [[9.0, 9.0], [0.1, 0.0], [-4.0, 4.0]]
    moved = []
    for round_ in range(2):
        one, other = (
            measurement.measure(Given(np.array([first, *others])), NOWHERE, round_, generator(0)).value
            for first in (row, [0.0, 0.0])
        )
        moved.append(np.abs(one - other).sum() * (2 if own else 4))
    assert max(moved) <= CLIP * (1 + 1e-9)
    if own:
        assert min(moved) == 0  # it is in one part only


def test_an_epoch_of_disjoint_batches_costs_one_answer_and_a_part_of_one_costs_as_much() -> None:
    for rounds, epochs in ((4, 1), (5, 2), (8, 2), (24, 6)):
        recipe = sagd_minibatch(rounds=rounds, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, sampling=CUT)
        cost = LaplaceDpEvent(2.0) if epochs == 1 else SelfComposedDpEvent(LaplaceDpEvent(2.0), epochs)
        assert recipe.planned_event() == cost


# ---------------------------------------------------------------- misprints


def test_misprint_the_threshold_s_noise_is_not_drawn_in_every_step() -> None:
    """The listing does; then a step below the threshold is not free: tests/measure/test_sparse_vector.py shows what it costs."""
    rng, counts = generator(5), []
    recipe = sagd_sparse(**COMMON, clip_bound=CLIP, noise_multiplier=NOISE, public=PUBLIC, answers=3, threshold=1e9)
    side, carry, at = recipe.side, dict[str, Any](), np.zeros(4)
    for round_ in range(5):
        known, _ = side.at(at, {}, round_)
        carry = (
            recipe.measurement(round_)
            .measure(linear_oracle(X, Y), NOWHERE._replace(current=at, known=known), round_, rng, carry)
            .carry
        )
        counts.append(carry["hidden"])
    assert len(set(counts)) == 1


def test_misprint_composition_has_the_constants_that_the_paper_drops() -> None:
    """√(T ln(1/δ))·ε₀ is less than T compositions cost; the accountant's answer is more. The factor 2 is the replacement's."""
    rounds, noise, delta = 100, 50.0, 1e-5
    event = sagd_lap(rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.1).planned_event()
    papers = math.sqrt(rounds * math.log(1 / delta)) / noise
    assert papers < epsilon(event, delta) < math.sqrt(2) * papers
    assert epsilon(event, 0.0) == pytest.approx(rounds / noise)
    assert epsilon(event, 0.0, "replace-one") == pytest.approx(2 * rounds / noise)


def test_misprint_public_rows_are_declared_and_private_ones_are_not_cut_silently() -> None:
    """The paper protects S₁ only and calls both halves S; without public data there is no recipe."""
    with pytest.raises(TypeError, match="public"):
        sagd_sparse(rounds=3, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1, answers=1)  # type: ignore[call-arg]


def test_sampling_around_the_sparse_vector_is_refused() -> None:
    with pytest.raises(CompositionError, match="sampling around a sparse vector"):
        sagd_sparse(
            **COMMON,
            clip_bound=CLIP,
            noise_multiplier=NOISE,
            public=PUBLIC,
            answers=1,
            sampling=poisson(0.5),
        )
