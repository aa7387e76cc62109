"""Output perturbation, RRPSGD (Zhang, Zheng, Mou, Wang) and Bassily et al.'s SGD, against references from the paper's lines.

References know nothing of privopt but the order in which its generator is asked: R first, then rows, then noise.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.mechanisms import gamma_norm, gaussian
from privopt.measure.randomness import generator
from privopt.measure.samplers import fixed_size, full_batch, poisson
from privopt.methods.bassily_sgd import bassily_sgd
from privopt.methods.output_perturbation import output_perturbation
from privopt.methods.rrpsgd import rrpsgd
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Huber, Logistic
from privopt.postprocess.regularizers import nonconvex, ridge
from privopt.postprocess.updates import inverse_sqrt
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from privopt.privacy.ledger import Ledger
from tests.problems import linear_oracle, scaled_rows

X, Y = scaled_rows(noise=0.3, longest=1.0)  # every row is as long as it may be


def gradient(w: Vector, row: Any, huber: float | None = None) -> Vector:
    residual = 1 / (1 + math.exp(-(X[row] @ w))) - Y[row] if huber is None else float(np.clip(X[row] @ w - Y[row], -huber, huber))
    return residual * X[row]


# ---------------------------------------------------------------- Algorithm 1


def algorithm_1(steps: int, eta: float, mu: float, huber: float | None = None) -> Vector:
    """Lines 1 to 3."""
    w = np.zeros(4)
    for _ in range(steps):
        w = w - eta / 60 * np.sum([gradient(w, row, huber) + mu * w for row in range(60)], axis=0)
    return w


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize(("huber", "lipschitz", "smoothness"), [(None, 1.0, 0.25), (0.2, 0.2, 1.0)], ids=["logistic", "huber"])
@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_without_noise_output_perturbation_is_gradient_descent(
    mu: float, huber: float | None, lipschitz: float, smoothness: float, store: Callable[[Vector], Any]
) -> None:
    recipe = output_perturbation(
        steps=25,
        noise_multiplier=0.0,
        lipschitz=lipschitz,
        smoothness=smoothness,
        regularizer=ridge(mu) if mu else None,
    )
    found = run(recipe, linear_oracle(store(X), Y, None if huber is None else Huber(huber), limit=1.0), np.zeros(4)).parameters
    np.testing.assert_allclose(found, algorithm_1(25, 1 / (smoothness + 2 * mu), mu, huber), rtol=1e-10)


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize("sensitivity", ["tight", "paper"])
def test_with_noise_output_perturbation_is_algorithm_1(sensitivity: Any, mu: float, pure: bool) -> None:
    """Lines 4 to 8, with Δ of one example added or removed: half of Lemmas 2 and 3, or of what is tight."""
    steps, eta = 25, 1 / (0.25 + 2 * mu)
    recipe = output_perturbation(
        steps=steps,
        noise_multiplier=1.3,
        lipschitz=1.0,
        smoothness=0.25,
        regularizer=ridge(mu) if mu else None,
        sensitivity=sensitivity,
        pure=pure,
    )
    beta = 0.25 + mu
    delta = {
        ("paper", False): 3 * steps * eta / 60,
        ("tight", False): 2 * steps * eta / 60,
        ("paper", True): 5 * (mu + beta) / (60 * max(mu, 1e-9) * beta),
        ("tight", True): 2 * (1 - (1 - eta * mu) ** steps) / (60 * max(mu, 1e-9)),
    }[sensitivity, mu > 0]
    rng = generator(3)
    if pure:
        direction = rng.standard_normal(4)
        noise = direction / np.linalg.norm(direction) * rng.gamma(4, 1.3 * delta / 2)
    else:
        noise = gaussian(1.3).release(np.zeros(4), delta / 2, rng)
    found = run(recipe, linear_oracle(X, Y, limit=1.0), np.zeros(4), rng=generator(3)).parameters
    np.testing.assert_allclose(found, algorithm_1(steps, eta, mu) - noise, rtol=1e-7)


def test_many_steps_with_a_ridge_end_at_scikit_learn_s_logistic_regression() -> None:
    recipe = output_perturbation(steps=2000, noise_multiplier=0.0, lipschitz=1.0, smoothness=0.25, regularizer=ridge(0.05))
    found = run(recipe, linear_oracle(X, Y, limit=1.0), np.zeros(4)).parameters
    model = LogisticRegression(C=1 / (0.05 * 60), fit_intercept=False, tol=1e-12, max_iter=5000).fit(X, Y)
    np.testing.assert_allclose(found, model.coef_[0], atol=1e-6)


def test_pure_noise_has_the_length_and_the_price_that_the_paper_states() -> None:
    """exp(−ε‖z‖/Δ): E‖z‖² = d(d+1)(Δ/ε)² (Lemma 6); five standard errors of 4000 draws."""
    rng, lengths = generator(0), []
    for _ in range(4000):
        lengths.append(float(np.sum(gamma_norm(1 / 0.5).release(np.zeros(4), 0.3, rng) ** 2)))
    expected = 4 * 5 * (0.3 / 0.5) ** 2
    assert np.mean(lengths) == pytest.approx(expected, abs=5 * float(np.std(lengths)) / math.sqrt(4000))
    recipe = output_perturbation(steps=9, noise_multiplier=2.0, lipschitz=1.0, smoothness=0.25, pure=True)
    assert epsilon(recipe.planned_event(), 0.0) == 0.5
    assert epsilon(recipe.planned_event(), 0.0, "replace-one") == 1.0  # Δ is twice as large there


def test_planned_is_recorded_and_a_budget_without_delta_is_spent_whole() -> None:
    def recipe(z: float) -> Any:
        return output_perturbation(steps=9, noise_multiplier=z, lipschitz=1.0, smoothness=0.25, pure=True)

    for neighbours in ("add-remove", "replace-one"):
        budget = Budget(0.7, 0.0, neighbours)
        ledger = Ledger(budget)
        ready = recipe(calibrate(lambda z: recipe(z).planned_event(), budget))
        result = run(ready, linear_oracle(X, Y, limit=1.0), np.zeros(4), spending=ledger.run())
        assert ledger.event == result.event == ready.planned_event()
        assert 0.99 * 0.7 <= ledger.epsilon() <= 0.7


@pytest.mark.parametrize("penalty", [nonconvex(0.1), ridge(0.1, np.array([1.0, 1.0, 1.0, 0.0]))], ids=["nonconvex", "masked"])
def test_a_penalty_whose_convexity_is_not_known_is_refused(penalty: Any) -> None:
    with pytest.raises(CompositionError, match="convex"):
        output_perturbation(steps=9, noise_multiplier=1.0, lipschitz=1.0, smoothness=0.25, regularizer=penalty)
    with pytest.raises(CompositionError, match="convex"):
        bassily_sgd(rounds=9, noise_multiplier=1.0, clip_bound=1.0, radius=1.0, size=60, dimension=4, regularizer=penalty)


# ---------------------------------------------------------------- Algorithm 2


def algorithm_2(most: int, eta: Callable[[int], float], beta: float, sampler: Any, z: float, clip: float) -> tuple[int, Vector]:
    rng = generator(5)
    weights = np.array([2 * eta(k) - beta * eta(k) ** 2 for k in range(most)])
    if np.allclose(weights, weights[0]):
        chosen = int(rng.integers(1, most + 1))
    else:
        chosen = 1 + int(rng.choice(most, p=weights / weights.sum()))
    w = np.zeros(4)
    for t in range(chosen):
        rows = sampler.draw(60, t, rng)
        rows = np.arange(60) if rows is None else rows
        total = sum((gradient(w, row) * min(1.0, clip / np.linalg.norm(gradient(w, row))) for row in rows), np.zeros(4))
        w = w - eta(t) * gaussian(z).release(total / sampler.expected(60), clip / sampler.expected(60), rng)
    return chosen, w


@pytest.mark.parametrize("sampler", [fixed_size(1, 60), poisson(0.2), full_batch()], ids=str)
@pytest.mark.parametrize("noise", [0.0, 1.3])
def test_rrpsgd_is_algorithm_2(noise: float, sampler: Any) -> None:
    """One example a round, as printed, or a batch."""
    recipe = rrpsgd(max_rounds=40, noise_multiplier=noise, clip_bound=0.4, learning_rate=0.5, sampling=sampler)
    result = run(recipe, linear_oracle(X, Y, limit=1.0), np.zeros(4), rng=generator(5))
    chosen, expected = algorithm_2(40, lambda t: 0.5, 0.25, sampler, noise, 0.4)
    assert result.rounds == chosen
    np.testing.assert_allclose(result.parameters, expected, rtol=1e-8)


def test_without_noise_or_clipping_rrpsgd_is_gradient_descent_for_r_rounds() -> None:
    recipe = rrpsgd(max_rounds=40, noise_multiplier=0.0, clip_bound=1e9, learning_rate=0.5)
    results = [run(recipe, linear_oracle(X, Y, limit=1.0), np.zeros(4), rng=generator(seed)) for seed in range(5)]
    for result in results:
        np.testing.assert_allclose(result.parameters, algorithm_1(result.rounds, 0.5, 0.0), rtol=1e-8)
    assert len({result.rounds for result in results}) == 5


def test_rrpsgd_with_decreasing_steps_draws_r_by_theorem_5() -> None:
    eta = inverse_sqrt(3.0)
    recipe = rrpsgd(max_rounds=40, noise_multiplier=1.3, clip_bound=0.4, learning_rate=eta, smoothness=0.25)
    chosen, expected = algorithm_2(40, eta, 0.25, full_batch(), 1.3, 0.4)
    result = run(recipe, linear_oracle(X, Y, limit=1.0), np.zeros(4), rng=generator(5))
    assert result.rounds == chosen
    np.testing.assert_allclose(result.parameters, expected, rtol=1e-8)
    stops = np.array([recipe.stop(generator(seed)) for seed in range(3000)])
    weights = np.array([2 * eta(k) - 0.25 * eta(k) ** 2 for k in range(40)])
    mean = (np.arange(1, 41) * weights).sum() / weights.sum()
    assert stops.mean() == pytest.approx(mean, abs=5 * stops.std() / math.sqrt(3000))
    assert abs(mean - 20.5) > 1  # it is not uniform
    with pytest.raises(CompositionError, match="below 2/smoothness"):
        rrpsgd(max_rounds=40, noise_multiplier=1.3, clip_bound=0.4, learning_rate=inverse_sqrt(8.1), smoothness=0.25)


def test_noise_for_the_drawn_rounds_spends_the_budget_and_noise_for_all_would_leave_some() -> None:
    """Both are sound, R being drawn without data; the first has less noise."""
    budget = Budget(1.0, 1e-5)

    def recipe(z: float) -> Any:
        return rrpsgd(max_rounds=400, noise_multiplier=z, clip_bound=1.0, learning_rate=0.5)

    cautious = calibrate(lambda z: recipe(z).planned_event(), budget)
    for seed in (0, 1, 2):
        rounds = recipe(1.0).stop(generator(seed))
        noise = calibrate(lambda z: recipe(z).stopped(rounds).planned_event(), budget)  # noqa: B023
        ledger = Ledger(budget)
        result = run(
            recipe(noise).stopped(rounds), linear_oracle(X, Y, limit=1.0), np.zeros(4), spending=ledger.run(), rng=generator(seed)
        )
        assert (result.rounds, result.stopped_early) == (rounds, False)
        assert 0.99 <= ledger.epsilon() <= 1.0
        assert noise == pytest.approx(cautious * math.sqrt(rounds / 400), rel=0.01)
        assert epsilon(SelfComposedDpEvent(GaussianDpEvent(cautious), rounds), 1e-5) < 1.0


def test_noise_for_fewer_rounds_than_are_run_does_not_fit_into_the_budget() -> None:
    budget, recipe = Budget(1.0, 1e-5), rrpsgd(max_rounds=400, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.5)
    rounds = recipe.stop(generator(0))
    noise = calibrate(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), rounds // 2), budget)
    broken = rrpsgd(max_rounds=400, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.5).stopped(rounds)
    assert run(broken, linear_oracle(X, Y, limit=1.0), np.zeros(4), spending=Ledger(budget).run()).stopped_early


# ---------------------------------------------------------------- Bassily et al.


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("radius", [0.3, 4.0])
def test_bassily_sgd_is_projected_descent_with_the_steps_of_the_theory(radius: float, mu: float) -> None:
    z, clip, batch = 1.3, 0.4, 12
    recipe = bassily_sgd(
        rounds=50, noise_multiplier=z, clip_bound=clip, radius=radius, size=60, dimension=4, batch_size=batch,
        regularizer=ridge(mu) if mu else None,
    )  # fmt: skip
    rng, w, longest = generator(6), np.zeros(4), math.sqrt(clip**2 + 4 * (z * clip / batch) ** 2)
    for t in range(1, 51):
        rows: Any = poisson(batch / 60).draw(60, t - 1, rng)
        total = sum((gradient(w, row) * min(1.0, clip / np.linalg.norm(gradient(w, row))) for row in rows), np.zeros(4))
        noisy = gaussian(z).release(total / batch, clip / batch, rng) + mu * w
        w = w - (2 * radius / (longest * math.sqrt(t)) if not mu else 1 / (mu * t)) * noisy
        w = w * min(1.0, radius / float(np.linalg.norm(w)))
    result = run(recipe, linear_oracle(X, Y, limit=1.0), np.zeros(4), rng=generator(6))
    np.testing.assert_allclose(result.parameters, w, rtol=1e-8)
    assert result.event == SelfComposedDpEvent(PoissonSampledDpEvent(batch / 60, GaussianDpEvent(z)), 50)


def test_without_noise_on_all_rows_bassily_sgd_finds_the_optimum_of_a_ridge() -> None:
    recipe = bassily_sgd(
        rounds=3000,
        noise_multiplier=0.0,
        clip_bound=9.0,
        radius=50.0,
        size=60,
        dimension=4,
        batch_size=60,
        regularizer=ridge(0.5),
    )
    model = LogisticRegression(C=1 / (0.5 * 60), fit_intercept=False, tol=1e-12, max_iter=5000).fit(X, Y)
    np.testing.assert_allclose(run(recipe, linear_oracle(X, Y, limit=1.0), np.zeros(4)).parameters, model.coef_[0], atol=1e-3)


# ---------------------------------------------------------------- misprints


def test_misprint_of_the_logistic_loss_a_stray_one_in_the_exponent() -> None:
    """Printed log(1 + exp(1 + y⟨w, x⟩)), which would reward wrong signs; it is log(1 + exp(−y⟨w, x⟩))."""
    scores, signs = np.array([-2.0, 0.7, 3.0, 1.0]), np.array([1.0, -1.0, 1.0, 1.0])
    values = Logistic().values(scores, (signs + 1) / 2)
    np.testing.assert_allclose(values, np.log1p(np.exp(-signs * scores)))
    assert not np.isclose(values, np.log1p(np.exp(1 + signs * scores))).any()


def test_misprint_of_theorem_1_its_gaussian_noise_is_not_private_for_any_epsilon() -> None:
    """σ² = 2 ln(2/δ)Δ²/ε² is proven for ε ≤ 1. Far above it is too little; the noise here is calibrated for every ε."""

    def printed(eps: float) -> float:
        return math.sqrt(2 * math.log(2 / 1e-5)) / eps

    assert epsilon(GaussianDpEvent(printed(1.0)), 1e-5) < 1.0
    assert epsilon(GaussianDpEvent(printed(30.0)), 1e-5) > 30.0
    for eps in (0.1, 1.0, 30.0):
        assert epsilon(GaussianDpEvent(calibrate(GaussianDpEvent, Budget(eps, 1e-5))), 1e-5) <= eps


def test_misprint_of_the_rows_constants_hold_only_for_rows_that_are_cut() -> None:
    """The experiments assume L and β without saying how rows are scaled; here they are enforced, and a long row is cut."""
    long = linear_oracle(100 * X, Y, limit=1.0)
    recipe = output_perturbation(steps=25, noise_multiplier=0.0, lipschitz=1.0, smoothness=0.25)
    unit = X / np.linalg.norm(X, axis=1)[:, None]
    short = linear_oracle(unit, Y, limit=1.0)
    np.testing.assert_allclose(run(recipe, long, np.zeros(4)).parameters, run(recipe, short, np.zeros(4)).parameters, rtol=1e-9)
