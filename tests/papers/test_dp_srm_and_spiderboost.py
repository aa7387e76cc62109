"""DP-SRM (Wang, Jayaraman, Evans, Gu) and Private SpiderBoost (Arora et al.) against references written from the papers' lines.

References know nothing of privopt but its samplers and the order in which its generator is asked: rows first, then noise.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.measurement import Carry, Measurement, Noisy
from privopt.measure.randomness import Rng, Sum, generator
from privopt.measure.samplers import Sampler, disjoint_batches, full_batch, poisson
from privopt.methods.dp_sgd import dp_sgd
from privopt.methods.dp_srm import dp_srm
from privopt.methods.spiderboost import spiderboost
from privopt.perexample.grads import Materialized, Vector
from privopt.postprocess.regularizers import nonconvex, ridge
from privopt.postprocess.release import uniform_iterate
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, compose
from privopt.recipe import Recipe
from privopt.state import PublicState
from tests.laws.checks import check_indistinguishable
from tests.laws.test_measurements import neighbouring
from tests.problems import Given, linear_oracle, scaled_rows

X, Y = scaled_rows()
ROUNDS, SIZE = 25, 60
SRM: dict[str, Any] = {"rounds": ROUNDS, "clip_bound": 0.8, "change_bound": 0.05, "refresh": 0.1, "learning_rate": 0.3}
SPIDER: dict[str, Any] = {"rounds": ROUNDS, "clip_bound": 0.8, "smoothness": 0.4, "period": 5, "learning_rate": 0.3}


def trained(recipe: Recipe, seed: int = 5) -> Vector:
    return run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(seed)).parameters


def gradient(row: Any, theta: Vector) -> Vector:
    return (1 / (1 + math.exp(-(X[row] @ theta))) - Y[row]) * X[row]


def clipped(vector: Vector, bound: float) -> Vector:
    return vector * min(1.0, bound / math.sqrt(vector @ vector)) if vector.any() else vector


# ---------------------------------------------------------------- DP-SRM


def reference_srm(
    sampling: Sampler, anchor: Sampler, noise: float, anchor_noise: float, longest: float, pull: Callable[[Vector], Vector]
) -> Vector:
    """Algorithm 1 with the clipping of section 5: v⁰, then v ← (1 − γ)v + γ·clip(g, C₁) + (1 − γ)·clip(g − g′, C₂) + noise."""
    c1, c2, gamma, rate = SRM["clip_bound"], SRM["change_bound"], SRM["refresh"], SRM["learning_rate"]
    rng, theta, before, v = generator(5), np.zeros(4), np.zeros(4), np.zeros(4)
    for t in range(ROUNDS):
        who, bound, z = (anchor, c1, anchor_noise * noise) if t == 0 else (sampling, gamma * c1 + (1 - gamma) * c2, noise)
        rows = who.draw(SIZE, t, rng)
        total = np.zeros(4)
        for row in np.arange(SIZE) if rows is None else rows:
            g = gradient(row, theta)
            if t == 0:
                total += clipped(g, c1)
            else:
                total += gamma * clipped(g, c1) + (1 - gamma) * clipped(g - gradient(row, before), c2)
        answer = (total + z * bound * rng.standard_normal(4)) / who.expected(SIZE)
        v = answer if t == 0 else (1 - gamma) * v + answer
        direction = v + pull(theta)
        step = min(rate, longest / float(np.linalg.norm(direction)))
        theta, before = theta - step * direction, theta
    return theta


@pytest.mark.parametrize(
    ("regularizer", "pull"),
    [(None, lambda w: 0 * w), (ridge(0.1), lambda w: 0.1 * w), (nonconvex(0.1), lambda w: 0.2 * w / (1 + w**2) ** 2)],
    ids=["no regulariser", "ridge", "nonconvex"],
)
@pytest.mark.parametrize("longest", [math.inf, 0.05])
@pytest.mark.parametrize("sampling", [full_batch(), poisson(0.2)], ids=str)
def test_dp_srm_is_the_paper_s_algorithm(
    sampling: full_batch | poisson, longest: float, regularizer: Any, pull: Callable[[Vector], Vector]
) -> None:
    recipe = dp_srm(
        **SRM,
        noise_multiplier=1.3,
        sampling=sampling,
        anchor_sampling=poisson(0.5),
        anchor_noise=2.0,
        longest_step=longest,
        regularizer=regularizer,
    )
    expected = reference_srm(sampling, poisson(0.5), 1.3, 2.0, longest, pull)
    np.testing.assert_allclose(trained(recipe), expected, rtol=1e-8)


def test_clips_and_longest_steps_matter_here() -> None:
    """Else the test above would show less than it says."""
    plain = {**SRM, "noise_multiplier": 0.0}
    models = [{}, {"clip_bound": 8.0}, {"change_bound": 0.5}, {"longest_step": 0.05}]
    ends = [trained(dp_srm(**{**plain, **model})) for model in models]
    assert min(np.abs(one - other).max() for i, one in enumerate(ends) for other in ends[:i]) > 1e-3


def test_without_noise_and_clipping_dp_srm_is_storm() -> None:
    """d ← ∇f(x; ξ) + (1 − a)(d − ∇f(x′; ξ)), Cutkosky and Orabona, with the same batches ξ."""
    sampling, rng = poisson(0.3), generator(5)
    x, before, d = np.zeros(4), np.zeros(4), np.zeros(4)
    for t in range(ROUNDS):
        rows = sampling.draw(SIZE, t, rng)
        assert rows is not None
        rng.standard_normal(4)
        here, there = (sum((gradient(row, at) for row in rows), np.zeros(4)) / 18 for at in (x, before))
        d = here if t == 0 else here + 0.9 * (d - there)
        x, before = x - 0.3 * d, x
    loose = {**SRM, "clip_bound": 1e6, "change_bound": 1e6}
    np.testing.assert_allclose(trained(dp_srm(**loose, noise_multiplier=0.0, sampling=sampling)), x, rtol=1e-9)


def test_with_all_its_weight_on_new_gradients_dp_srm_is_dp_sgd() -> None:
    ours = dp_srm(**{**SRM, "refresh": 1.0}, noise_multiplier=1.3, sampling=poisson(0.2))
    other = dp_sgd(rounds=ROUNDS, noise_multiplier=1.3, clip_bound=0.8, learning_rate=0.3, sampling=poisson(0.2))
    np.testing.assert_allclose(trained(ours), trained(other), rtol=1e-9)
    assert ours.planned_event() == other.planned_event()


def bound_of(recipe: Recipe, round_: int) -> float:
    measurement = recipe.measurement(round_)
    assert isinstance(measurement, Measurement)
    return measurement.bound


def test_misprint_the_bound_weighs_gradients_by_gamma_and_changes_by_the_rest() -> None:
    """Section 7 prints 2((1 − γ)C₁ + γC₂); equation (6.1) has γC₁ + (1 − γ)C₂ (and twice it for a replacement)."""
    recipe = dp_srm(rounds=9, noise_multiplier=1.0, clip_bound=1.0, change_bound=0.01, refresh=0.01, learning_rate=0.1)
    assert bound_of(recipe, 0) == 1.0
    assert bound_of(recipe, 1) == pytest.approx(0.01 * 1.0 + 0.99 * 0.01)
    printed = 2 * (0.99 * 1.0 + 0.01 * 0.01)
    assert printed / (2 * bound_of(recipe, 1)) == pytest.approx(50, rel=0.01)  # so much too much noise


# ---------------------------------------------------------------- Private SpiderBoost


def reference_spiderboost(sampling: Sampler, noise: float, anchor_noise: float) -> Vector:
    """Anchors every q rounds; else ∇ ← ∇ + (g − g′) + noise by min{L₁‖w − w′‖, 2L₀}."""
    most, smoothness, period, rate = SPIDER["clip_bound"], SPIDER["smoothness"], SPIDER["period"], SPIDER["learning_rate"]
    rng, theta, before, v = generator(5), np.zeros(4), np.zeros(4), np.zeros(4)
    for t in range(ROUNDS):
        if t % period == 0:
            total = sum((clipped(gradient(row, theta), most) for row in range(SIZE)), np.zeros(4))
            v = (total + anchor_noise * noise * most * rng.standard_normal(4)) / SIZE
        else:
            rows = sampling.draw(SIZE, t, rng)
            bound = min(smoothness * float(np.linalg.norm(theta - before)), 2 * most)
            total = np.zeros(4)
            for row in np.arange(SIZE) if rows is None else rows:
                total += clipped(gradient(row, theta) - gradient(row, before), bound)
            v = v + (total + noise * bound * rng.standard_normal(4)) / sampling.expected(SIZE)
        theta, before = theta - rate * v, theta
    return theta


@pytest.mark.parametrize("sampling", [full_batch(), poisson(0.2)], ids=str)
def test_spiderboost_is_the_paper_s_algorithm(sampling: full_batch | poisson) -> None:
    recipe = spiderboost(**SPIDER, noise_multiplier=1.3, anchor_noise=2.0, sampling=sampling)
    np.testing.assert_allclose(trained(recipe), reference_spiderboost(sampling, 1.3, 2.0), rtol=1e-8)


def test_without_noise_and_clipping_spiderboost_on_all_rows_is_gradient_descent() -> None:
    theta = np.zeros(4)
    for _ in range(ROUNDS):
        theta = theta - 0.3 * np.mean([gradient(row, theta) for row in range(SIZE)], axis=0)
    loose = {**SPIDER, "clip_bound": 1e6, "smoothness": 1e6}
    np.testing.assert_allclose(trained(spiderboost(**loose, noise_multiplier=0.0)), theta, rtol=1e-9)


def test_spiderboost_with_anchors_only_is_dp_sgd() -> None:
    ours = spiderboost(**{**SPIDER, "period": 1}, noise_multiplier=1.3)
    np.testing.assert_allclose(
        trained(ours), trained(dp_sgd(rounds=ROUNDS, noise_multiplier=1.3, clip_bound=0.8, learning_rate=0.3)), rtol=1e-9
    )


# ---------------------------------------------------------------- both

BOTH = {
    "dp-srm": dp_srm(**SRM, noise_multiplier=1.3, sampling=poisson(0.2), anchor_sampling=full_batch(), anchor_noise=3.0),
    "spiderboost": spiderboost(**SPIDER, noise_multiplier=1.3, sampling=poisson(0.2), anchor_noise=3.0),
}


@pytest.mark.parametrize("name", BOTH)
def test_anchors_and_changes_are_paid_as_they_are_drawn(name: str) -> None:
    anchor, change = GaussianDpEvent(3.0 * 1.3), PoissonSampledDpEvent(0.2, GaussianDpEvent(1.3))
    anchors = {0} if name == "dp-srm" else {0, 5, 10, 15, 20}
    expected = compose(anchor if t in anchors else change for t in range(ROUNDS))
    assert BOTH[name].planned_event() == expected
    assert run(BOTH[name], linear_oracle(X, Y), np.zeros(4), rng=generator(0)).event == expected


@pytest.mark.parametrize("name", BOTH)
def test_removing_one_example_moves_the_sum_of_a_round_by_at_most_its_bound(name: str) -> None:
    """Also where the clips cut, which they do here: a row may be long, and points far apart."""
    silent = dp_srm(**SRM, noise_multiplier=0.0) if name == "dp-srm" else spiderboost(**SPIDER, noise_multiplier=0.0)
    largest = 0.0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        here = rng.standard_normal(4)
        at = PublicState(here, here + rng.choice([0.01, 1.0, 10.0]) * rng.standard_normal(4))
        measurement = silent.measurement(1)
        assert isinstance(measurement, Measurement)
        bound = sum(term.at(at).bound for term in measurement.terms)
        whole = measurement.measure(linear_oracle(X, Y), at, 1, generator(0)).value * SIZE
        for row in range(0, SIZE, 7):
            kept = np.delete(np.arange(SIZE), row)
            moved = np.linalg.norm(
                whole - measurement.measure(linear_oracle(X[kept], Y[kept]), at, 1, generator(0)).value * (SIZE - 1)
            )
            assert moved <= bound * (1 + 1e-9)
            largest = max(largest, float(moved / bound))
    assert largest > 0.9  # the bound is not idle


def test_one_example_can_use_up_both_parts_of_the_bound() -> None:
    """A gradient and a change in the same direction: less noise than γC₁ + (1 − γ)C₂ asks for would not do."""
    measurement = dp_srm(**SRM, noise_multiplier=0.0).measurement(1)
    assert isinstance(measurement, Measurement)
    at = PublicState(np.zeros(1), np.array([math.inf]))  # where `Given` answers 0
    alone = measurement.measure(Given(np.array([[100.0]])), at, 1, generator(0)).value
    np.testing.assert_allclose(alone, [measurement.bound])
    assert measurement.bound == pytest.approx(0.1 * 0.8 + 0.9 * 0.05)


def change_measurement(noise: float) -> Measurement:
    recipe = dp_srm(
        rounds=3, noise_multiplier=noise, clip_bound=1.0, change_bound=0.5, refresh=0.4, learning_rate=0.1, anchor_noise=1.0
    )
    measurement = recipe.measurement(1)
    assert isinstance(measurement, Measurement)
    return measurement


def test_answers_of_a_change_on_neighbouring_data_differ_by_no_more_than_claimed() -> None:
    check_indistinguishable(change_measurement(1.0), *neighbouring("full_batch"), "add-remove", delta=0.05)


class _ForChangesAlone(Measurement):
    """Noise relative to C₂, as if γC₁ were not there."""

    def begin(self, like: Vector, bound: float, round_: int, rng: Rng, carry: Carry = {}) -> Callable[[Sum], Noisy]:  # noqa: B006
        return super().begin(like, bound * 0.3 / 0.7, round_, rng, carry)


def test_noise_for_the_change_alone_is_found_from_outside() -> None:
    honest = change_measurement(1.0)
    broken = _ForChangesAlone(honest.sampler, honest.terms, honest.mechanism)
    with pytest.raises(AssertionError):
        check_indistinguishable(broken, *neighbouring("full_batch"), "add-remove", delta=0.05)


@pytest.mark.parametrize("name", BOTH)
def test_a_regulariser_enters_each_step_once_and_is_not_carried_along(name: str) -> None:
    """Clip bounds of 0 silence the examples: what is left is descent on the regulariser."""
    silent: dict[str, Any] = {"clip_bound": 0.0, "noise_multiplier": 2.0, "regularizer": nonconvex(0.5)}
    recipe = dp_srm(**{**SRM, "change_bound": 0.0, **silent}) if name == "dp-srm" else spiderboost(**{**SPIDER, **silent})
    start = np.array([3.0, -100.0, 0.1, 0.0])
    theta = start.copy()
    for _ in range(ROUNDS):
        theta = theta - 0.3 * theta / (1 + theta**2) ** 2
    np.testing.assert_allclose(run(recipe, linear_oracle(X, Y), start).parameters, theta, rtol=1e-12)


def test_an_iterate_drawn_uniformly_may_be_released() -> None:
    ends = {
        tuple(run(dp_srm(**SRM, noise_multiplier=0.0, release=uniform_iterate()), linear_oracle(X, Y), np.zeros(4)).parameters)
    }
    path = [tuple(trained(dp_srm(**{**SRM, "rounds": count}, noise_multiplier=0.0))) for count in range(1, ROUNDS + 1)]
    assert ends <= set(path)


@pytest.mark.parametrize("refresh", [0.0, -0.1, 1.1, math.nan])
def test_a_refresh_that_is_no_weight_is_refused(refresh: float) -> None:
    with pytest.raises(CompositionError, match="refresh is"):
        dp_srm(**{**SRM, "refresh": refresh}, noise_multiplier=1.0)


def test_anchors_that_never_come_are_refused() -> None:
    with pytest.raises(CompositionError, match="period is 0"):
        spiderboost(**{**SPIDER, "period": 0}, noise_multiplier=1.0)


def test_disjoint_batches_with_other_anchors_are_refused() -> None:
    """An epoch is paid by its first round: the anchor's event would stand for the changes of that epoch."""
    cut = disjoint_batches(3, key=0)
    with pytest.raises(CompositionError, match="pays for an epoch in its first round"):
        dp_srm(**SRM, noise_multiplier=1.0, sampling=cut, anchor_noise=0.5)
    assert dp_srm(**SRM, noise_multiplier=1.0, sampling=cut).planned_event() == compose([GaussianDpEvent(1.0)] * 9)


def test_materialized_vectors_do_as_well_as_closed_forms() -> None:
    """An oracle that forms its vectors, through the whole loop."""

    class Formed:
        size = SIZE

        def __call__(self, parameters: Vector, rows: Any) -> Materialized:
            return Materialized(np.array([gradient(row, parameters) for row in (range(SIZE) if rows is None else rows)]))

    for recipe in (dp_srm(**SRM, noise_multiplier=1.3), spiderboost(**SPIDER, noise_multiplier=1.3)):
        formed = run(recipe, Formed(), np.zeros(4), rng=generator(5)).parameters
        np.testing.assert_allclose(formed, trained(recipe), rtol=1e-8)
