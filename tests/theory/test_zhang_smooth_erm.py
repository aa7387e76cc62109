"""Output perturbation and RRPSGD: sensitivities that are reached, noise that is enough, bounds that hold, misprints refuted."""

import math

import numpy as np
import pytest
from scipy import stats

from privopt.errors import InputError
from privopt.perexample.losses import Huber, Logistic
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import GaussianDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent
from privopt.theory import Problem
from privopt.theory import zhang_smooth_erm as paper
from privopt.theory.comparison import Row
from tests.theory.conftest import BUDGET, PROBLEM

Vector = np.ndarray


# ---------------------------------------------------------------- sensitivity


def descended(X: Vector, y: Vector, rounds: int, step: float, ridge: float = 0.0) -> Vector:
    """Gradient descent from 0 on the mean logistic loss and ridge/2 ‖w‖²."""
    w = np.zeros(X.shape[1])
    for _ in range(rounds):
        w = w - step * (X.T @ Logistic().residuals(X @ w, y) / len(y) + ridge * w)
    return w


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_replacing_one_example_moves_descent_by_at_most_the_sensitivity(ridge: float) -> None:
    rng, n, rounds = np.random.default_rng(0), 40, 30
    problem = Problem(n, 3, smoothness=0.25 + ridge)
    step = 1 / (problem.smoothness + ridge)
    if ridge:
        moved = paper.strongly_convex_sensitivity(
            problem, strong_convexity=ridge, rounds=rounds, learning_rate=step, data_lipschitz=1.0
        )
    else:
        moved = paper.convex_sensitivity(problem, rounds=rounds, learning_rate=step)
    assert moved.tight < moved.printed
    farthest = 0.0
    for _ in range(20):
        X, y = rng.standard_normal((n, 3)), rng.integers(0, 2, n).astype(float)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        other, labels = X.copy(), y.copy()
        other[0], labels[0] = -X[0] if y[0] else X[0], 1 - y[0]
        distance = np.linalg.norm(descended(X, y, rounds, step, ridge) - descended(other, labels, rounds, step, ridge))
        farthest = max(farthest, float(distance))
    assert 0.05 * moved.tight < farthest <= moved.tight


@pytest.mark.parametrize("rounds", [1, 5, 100])
def test_the_tight_sensitivities_are_reached(rounds: int) -> None:
    """Losses ±L₀w, with μ/2 w² or without: replacing +L₀w by −L₀w moves descent by exactly this."""
    n, slope, step, ridge = 10, 3.0, 0.2, 0.5
    problem = Problem(n, 1, lipschitz=slope, smoothness=4.0)
    plain, strong = [0.0, 0.0], [0.0, 0.0]
    for _ in range(rounds):
        for which, sign in ((0, 1.0), (1, -1.0)):
            mean = ((n - 1) * slope + sign * slope) / n
            plain[which] -= step * mean
            strong[which] -= step * (mean + ridge * strong[which])
    convex = paper.convex_sensitivity(problem, rounds=rounds, learning_rate=step)
    assert abs(plain[0] - plain[1]) == pytest.approx(convex.tight)
    curved = paper.strongly_convex_sensitivity(problem, strong_convexity=ridge, rounds=rounds, learning_rate=step)
    assert abs(strong[0] - strong[1]) == pytest.approx(curved.tight)


def test_printed_sensitivities_by_hand() -> None:
    problem = Problem(100, 1, lipschitz=2.0, smoothness=4.0)
    assert paper.convex_sensitivity(problem, rounds=10, learning_rate=0.25).printed == pytest.approx(0.15)
    found = paper.strongly_convex_sensitivity(problem, strong_convexity=1.0, rounds=10, learning_rate=0.2)
    assert found.printed == pytest.approx(5 * 2 * 5 / 400)
    assert found.tight == pytest.approx(4 / 100 * (1 - 0.8**10))


def test_steps_that_are_not_known_to_be_stable_are_refused() -> None:
    problem = Problem(100, 1, smoothness=4.0)
    with pytest.raises(InputError, match=r"1/β = 0\.25"):
        paper.convex_sensitivity(problem, rounds=10, learning_rate=0.26)
    with pytest.raises(InputError, match=r"1/\(β\+μ\) = 0\.2"):
        paper.strongly_convex_sensitivity(problem, strong_convexity=1.0, rounds=10, learning_rate=0.21)


# ---------------------------------------------------------------- noise


@pytest.mark.parametrize("target", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
def test_the_gaussian_noise_is_enough_up_to_epsilon_one(target: float, delta: float) -> None:
    noise = paper.gaussian_noise(0.3, epsilon=target, delta=delta)
    assert noise.failing == ()
    assert noise.printed == pytest.approx(0.3 * math.sqrt(2 * math.log(2 / delta)) / target)
    assert epsilon(GaussianDpEvent(noise.printed / 0.3), delta) <= target
    assert 0.99 * target <= epsilon(GaussianDpEvent(noise.needed / 0.3), delta) <= target
    assert epsilon(GaussianDpEvent(noise.needed / 0.6), delta) > target


def test_misprint_the_gaussian_noise_does_not_serve_any_epsilon() -> None:
    noise = paper.gaussian_noise(1.0, epsilon=15.0, delta=1e-5)
    assert noise.failing == ("ε ≤ 1: ε = 15",)
    assert epsilon(GaussianDpEvent(noise.printed), 1e-5) > 16
    assert noise.printed < noise.needed


def test_squares_of_the_noise() -> None:
    """‖z‖ of gamma-norm noise is Gamma(d, Δ/ε)."""
    second = stats.gamma(7, scale=0.2 / 0.5).moment(2)
    assert paper.gamma_square(7, sensitivity=0.2, epsilon=0.5) == pytest.approx(second)
    assert paper.gaussian_square(7, noise=0.3) == pytest.approx(7 * stats.norm(scale=0.3).moment(2))


# ---------------------------------------------------------------- plans and bounds of descent


def test_plans_by_hand() -> None:
    """nε = 1000, βD/L = 1: (10⁶/d²)^{1/3}, and with ln(1/δ) = d the same."""
    problem, delta = Problem(10_000, 8, lipschitz=2.0, smoothness=1.0), math.exp(-8)
    for budget in ({"epsilon": 0.1}, {"epsilon": 0.1, "delta": delta}):
        plan = paper.convex_plan(problem, radius=2.0, **budget)
        assert (plan.rounds, plan.learning_rate, plan.failing) == (25, 1.0, ())
        strong = paper.strongly_convex_plan(problem, strong_convexity=0.5, radius=2.0, **budget)
        assert strong.rounds == math.floor(2.5 * math.log(250_000 / 64))
        assert strong.learning_rate == pytest.approx(1 / 1.5)
        assert strong.sensitivity == paper.strongly_convex_sensitivity(
            problem, strong_convexity=0.5, rounds=strong.rounds, learning_rate=1 / 1.5
        )
    few = paper.strongly_convex_plan(Problem(10, 1000), strong_convexity=0.1, radius=1.0, epsilon=0.1)
    assert few.failing[0].startswith("T ≥ 1")


def excess(curvature: Vector, minimiser: Vector, rounds: int, step: float, noise_square: float) -> float:
    """E F(w_T + z) − min F of ½ Σ h(w − ŵ)², exactly: descent from 0, then isotropic noise."""
    left = (1 - step * curvature) ** rounds * -minimiser
    return float(np.sum(curvature * left**2) / 2 + np.sum(curvature) * noise_square / len(curvature) / 2)


@pytest.mark.parametrize("rounds", [1, 4, 50])
@pytest.mark.parametrize("noise_square", [0.0, 0.02])
def test_the_bounds_of_descent_hold(rounds: int, noise_square: float) -> None:
    minimiser = np.array([0.6, -0.5, 0.6])
    radius = float(np.linalg.norm(minimiser))
    problem = Problem(100, 3, smoothness=2.0)
    flat, strong = np.array([2.0, 0.3, 0.0]), np.array([2.0, 1.0, 0.5])
    convex = paper.convex_bound(problem, radius=radius, rounds=rounds, noise_square=noise_square)
    assert excess(flat, minimiser, rounds, 1 / 2, noise_square) <= convex.number
    curved = paper.strongly_convex_bound(problem, strong_convexity=0.5, radius=radius, rounds=rounds, noise_square=noise_square)
    assert excess(strong, minimiser, rounds, 1 / 2.5, noise_square) <= curved.number
    assert convex.number == pytest.approx(2 * 2 * radius**2 / rounds + noise_square)
    # the noise term is exact if every direction is as steep as β
    steep = excess(np.full(3, 2.0), minimiser, 10_000, 1 / 2.5, 0.02)
    assert steep == pytest.approx(
        paper.strongly_convex_bound(problem, strong_convexity=0.5, radius=radius, rounds=10_000, noise_square=0.02).number
    )


def test_misprint_the_noise_term_of_theorem_2_has_ln_2_over_delta_and_no_d_plus_1() -> None:
    """d = 1, δ = 1e-5: what Gaussian noise adds to ½βw² is above the printed 50(d+1)d L²(μ+β)²/(n²ε²μ²β)."""
    problem, mu, beta, target, delta = Problem(100, 1, smoothness=2.0), 0.5, 2.0, 0.5, 1e-5
    moved = paper.strongly_convex_sensitivity(problem, strong_convexity=mu, rounds=10**6, learning_rate=0.4).printed
    noise = paper.gaussian_noise(moved, epsilon=target, delta=delta).printed
    added = beta / 2 * paper.gaussian_square(1, noise=noise)
    unit = (mu + beta) ** 2 / (100**2 * target**2 * mu**2 * beta)
    assert added == pytest.approx(25 * math.log(2 / delta) * unit)
    assert added > 50 * 2 * 1 * unit
    bound = paper.strongly_convex_bound(problem, strong_convexity=mu, radius=1.0, rounds=10**6, noise_square=noise**2)
    assert bound.number == pytest.approx(added)


def test_a_strong_convexity_above_the_smoothness_is_named() -> None:
    bound = paper.strongly_convex_bound(Problem(10, 1), strong_convexity=1.0, radius=1.0, rounds=5, noise_square=0.1)
    assert bound.value is None
    assert bound.failing == ("μ ≤ β: μ = 1, β = 0.25",)


# ---------------------------------------------------------------- RRPSGD


def test_rrpsgd_by_hand_and_its_noise_is_more_than_enough(compared: tuple[Row, Row, Row, Row]) -> None:
    found, n, delta = compared[0], PROBLEM.n, BUDGET["delta"]
    sigma = math.sqrt(4 * math.log(3 * n / delta) * math.log(2 / delta)) / BUDGET["epsilon"]
    assert found.noise is not None
    assert (found.rounds, found.noise.failing) == (n**2, ())
    assert found.noise.printed == pytest.approx(sigma)
    assert found.learning_rate == pytest.approx(2 / (math.sqrt(4 + 10 * sigma**2) * n))  # D_F = √(2·2/1) = 2
    one = SampledWithoutReplacementDpEvent(n, 1, GaussianDpEvent(sigma))
    cost = epsilon(SelfComposedDpEvent(one, n**2), delta, "replace-one")
    assert cost < 0.5 * BUDGET["epsilon"]
    assert found.noise.needed < 0.6 * sigma


@pytest.mark.parametrize(("noise", "rounds"), [(0.0, 1), (0.0, 50), (0.5, 50), (3.0, 400)])
def test_the_bound_of_rrpsgd_holds_before_a_uniformly_drawn_step(noise: float, rounds: int) -> None:
    """F = mean of ½β‖w − x‖² over x = ±u with ‖u‖ = 1. E‖w‖² of noisy SGD is known exactly: each step multiplies it by (1 − ηβ)²
    and adds η²(β² + dσ²). Gradients of examples differ from F's by β = 2L_v, so L = β/2 keeps the theorem's 4L²."""
    beta, d, square = 2.0, 2, 9.0
    problem = Problem(2, d, lipschitz=beta / 2, smoothness=beta, gap=beta / 2 * square)
    total_noise = math.sqrt(beta**2 + d * noise**2)
    step = min(1 / beta, math.sqrt(square) / (total_noise * math.sqrt(rounds)))
    mean = 0.0
    for _ in range(rounds):
        mean += beta**2 * square / rounds
        square = (1 - step * beta) ** 2 * square + step**2 * total_noise**2
    bound = paper.rrpsgd_bound(problem, rounds=rounds, noise=noise).number
    assert 0.2 * bound < mean <= bound
    assert bound == pytest.approx(beta**2 * 9 / rounds + 2 * beta * 3 * total_noise / math.sqrt(rounds))


def test_misprint_lemma_12_lacks_the_smoothness() -> None:
    """One round without noise, ½βw² with β = 10: ‖∇F(w₀)‖² = β²D_F², and Lemma 12 prints βD_F² + 2D_Fσ."""
    problem = Problem(10, 1, lipschitz=1e-9, smoothness=10.0, gap=5.0)  # D_F = 1; gradients that all agree have no variance
    assert 10.0**2 > 10.0 + 2 * 2e-9
    assert paper.rrpsgd_bound(problem, rounds=1, noise=0.0).number == pytest.approx(100.0)


# ---------------------------------------------------------------- losses


def test_constants_of_the_losses() -> None:
    """Slopes and curvatures of s ↦ loss over a grid; a row of norm R multiplies them by R and R²."""
    scores, targets = np.linspace(-8, 8, 4001), np.zeros(4001)
    for constants, loss in ((paper.logistic(1.0), Logistic()), (paper.huber(1.0, 1.5), Huber(1.5))):
        slopes = loss.residuals(scores, targets)
        assert 0.99 * constants.lipschitz <= np.max(np.abs(slopes)) <= constants.lipschitz
        assert np.max(np.diff(slopes) / np.diff(scores)) == pytest.approx(constants.smoothness, rel=1e-3)
    assert paper.huber(2.0, 1.5) == paper.Constants(3.0, 4.0)


def test_misprint_the_logistic_loss_falls_as_the_margin_grows() -> None:
    """Printed: ln(1 + exp(1 + y⟨w, x⟩)), which rewards being wrong."""
    margins = np.linspace(-5, 5, 11)
    for label in (-1.0, 1.0):
        losses = Logistic().values(label * margins, np.full(11, (label + 1) / 2))
        assert losses == pytest.approx(np.log1p(np.exp(-margins)))
        assert np.all(np.diff(losses) < 0)
    assert np.all(np.diff(np.log1p(np.exp(1 + margins))) > 0)
