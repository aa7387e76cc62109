"""SAGD's theorems: composition with its constants, conditions that can be met, and the misprints refuted."""

import math

import numpy as np
import pytest

from privopt.privacy.accountants import epsilon
from privopt.privacy.events import LaplaceDpEvent, PureDpEvent, SelfComposedDpEvent
from privopt.theory import Bound, Problem, zhou_private_nonconvex
from privopt.theory import zhou_adaptive_generalization as paper

LARGE = Problem(10**14, 10)  # what the theorems take to say anything


# ---------------------------------------------------------------- privacy


def test_misprint_lemma_2_understates_epsilon() -> None:
    """T = 100 answers of ε₀ = 0.1 each: the printed formula gives 3.39; the accountant says more, even if an example is only
    added or removed."""
    found = paper.lap_privacy(Problem(1000, 5), rounds=100, noise=0.01, lipschitz_l1=1.0, delta=1e-5)
    assert found.printed == pytest.approx(math.sqrt(100 * math.log(1e5)) * 0.1)
    assert epsilon(SelfComposedDpEvent(LaplaceDpEvent(10.0), 100), 1e-5) > 1.2 * found.printed
    assert found.tight == epsilon(SelfComposedDpEvent(LaplaceDpEvent(10.0), 100), 1e-5, "replace-one")
    assert found.printed < found.tight < found.advanced


def test_misprint_lemma_3_understates_epsilon() -> None:
    found = paper.sparse_privacy(Problem(1000, 5), rounds=100, noise=0.02, lipschitz_l1=1.0, delta=1e-5)
    assert found.printed == pytest.approx(math.sqrt(100 * math.log(2e5)) * 0.1)
    assert found.tight == epsilon(SelfComposedDpEvent(PureDpEvent(0.1), 100), 1e-5, "replace-one")
    assert found.printed < found.tight < found.advanced


def test_advanced_composition_by_hand() -> None:
    assert paper.advanced_composition(0.5, 10_000, math.exp(-8)) == pytest.approx(200 + 5000 * (math.exp(0.5) - 1))
    assert paper.advanced_composition(0.5, 2, math.exp(-8)) == 1.0  # adding up is better for few
    assert paper.advanced_composition(1e6, 1, 1e-5) == 1e6


# ---------------------------------------------------------------- plans


def test_plans_by_hand() -> None:
    """n = 1000: σ = 0.1, n^{2/3} = 100, n^{5/3} = 10⁵."""
    problem, logs = Problem(1000, 20), math.log(20) + 7 * math.log(1000) / 3
    plan = paper.lap_plan(problem, lipschitz_l1=0.5)
    assert plan.noise == pytest.approx(0.1)
    assert plan.coordinate_failure == pytest.approx(1 / 2e6)
    assert plan.deviations == pytest.approx(math.log(2e6))
    assert plan.printed_rounds == pytest.approx(100 / (169 * 0.25 * logs))
    assert paper.sparse_plan(problem, lipschitz_l1=0.5).printed_rounds == pytest.approx(100 / (676 * 0.25 * logs))
    mini = paper.minibatch_plan(problem, batch=64, lipschitz_l1=0.5)
    assert mini.noise == pytest.approx(64000 ** (-1 / 6))
    assert mini.printed_rounds == pytest.approx(256 / (100 * 169 * 0.25 * logs))


def deviation(rounds: int, sparse: bool = False, **changed: float) -> Bound:
    plan = paper.lap_plan(LARGE, lipschitz_l1=1.0)
    settings = {"noise": plan.noise, "coordinate_failure": plan.coordinate_failure, "deviations": plan.deviations} | changed
    which = paper.sparse_deviation if sparse else paper.lap_deviation
    return which(LARGE, rounds=rounds, lipschitz_l1=1.0, **settings)


@pytest.mark.parametrize("sparse", [False, True])
def test_misprint_the_printed_rounds_are_too_many_and_ours_are_the_most(sparse: bool) -> None:
    plan = (paper.sparse_plan if sparse else paper.lap_plan)(LARGE, lipschitz_l1=1.0)
    assert plan.rounds > 1000
    assert deviation(plan.rounds, sparse).holds
    assert deviation(plan.rounds + 1, sparse).failing[0].startswith("ε ≤ σ/13")
    assert deviation(math.floor(plan.printed_rounds), sparse).value is None


def test_theorem_2_speaks_of_trillions_of_examples() -> None:
    assert paper.lap_plan(Problem(10**12, 10), lipschitz_l1=1.0).rounds == 0
    assert paper.lap_plan(Problem(32561, 123), lipschitz_l1=1.0).printed_rounds < 1


# ---------------------------------------------------------------- deviations


def test_misprint_the_deviation_has_the_whole_range_2g_of_a_coordinate() -> None:
    found = deviation(10, noise=1e-4, coordinate_failure=1e-9, deviations=20.0)
    assert found.value == pytest.approx(math.sqrt(10) * 1e-4 * (2 + 20))
    assert found.failure == pytest.approx(1e-8 + 10 * math.exp(-20))


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"noise": 1e-8}, "n ≥ 338 ln(8/δ)/σ²"), ({"noise": 30.0}, "σ < 26"), ({"deviations": 1.0}, "a probability left")],
)
def test_a_failing_condition_is_named(changed: dict[str, float], says: str) -> None:
    found = deviation(1, sparse=False, **changed)
    assert found.value is None
    assert any(condition.startswith(says) for condition in found.failing)


def test_the_least_number_of_examples_by_hand() -> None:
    """σ = 1, β = 1e-6: δ = 1e-6/(26 ln 26), and the run may be (1/13, δ)-DP."""
    delta = 1e-6 / (26 * math.log(26))
    least = math.ceil(2 * math.log(8 / delta) * 169)
    for n, holds in ((least, True), (least - 1, False)):
        found = paper.lap_deviation(
            Problem(n, 1), rounds=1, noise=1.0, lipschitz_l1=0.01, coordinate_failure=1e-6, deviations=20.0
        )
        assert found.holds is holds


def test_misprint_the_tail_of_a_free_answer_is_not_below_that_of_a_paid_one() -> None:
    """d = 1, μ = 6: Lap(2σ) and Lap(4σ) reach μσ together in 30 % of draws, where d e^{−μ} = 0.25 % is printed.
    P(fewer than 20 % of 10⁴) < 1e-100."""
    rng = np.random.default_rng(0)
    reached = np.abs(rng.laplace(0, 2.0, 10_000)) + np.abs(rng.laplace(0, 4.0, 10_000)) >= 6.0
    assert np.mean(reached) > 0.2 > math.exp(-6)
    assert np.mean(reached) <= 2 * math.exp(-6 / 6)
    problem = Problem(10**14, 1)
    found = paper.sparse_deviation(problem, rounds=1, noise=1e-4, lipschitz_l1=1.0, coordinate_failure=1e-12, deviations=6.0)
    assert found.failure == pytest.approx(1e-12 + math.exp(-6) + 2 * math.exp(-1))


# ---------------------------------------------------------------- bound


def test_the_bound_is_four_times_the_printed_one_and_g_makes_room_for_noise() -> None:
    error = Bound("the error", 0.5, "the test", failure=1e-3)
    problem = Problem(100, 4, lipschitz=2.0, smoothness=1.0, gap=3.0)
    found = paper.bound(problem, rounds=50, learning_rate=0.1, stability=0.4, deviation=error)
    assert found.value == pytest.approx(4 * (2 + 0.5 + 0.4) * (3 / 5 + 3 * 0.25 / 1.6))
    assert found.failure == pytest.approx(0.05)


def test_misprint_a_step_gains_a_quarter_of_what_is_printed() -> None:
    """On ½Lw² with η = ν/(4L) and G ≪ ν, f falls by 7/8 of η‖g‖²/ν, less than the printed η‖g‖²/(G + ν)."""
    w, smoothness, stability = 0.01, 1.0, 1.0  # so G = 0.01
    g, step = smoothness * w, stability / (4 * smoothness)
    second = 0.1 * g**2
    after = w - step * g / (math.sqrt(second) + stability)
    gained = smoothness * (w**2 - after**2) / 2
    assert gained < step * g**2 / (g + stability)
    assert gained >= step * g**2 / (4 * (g + stability))


def test_misprint_the_step_is_at_most_nu_over_4l() -> None:
    """With η = ν/(2L) the gain η/2 − Lη²/ν of a step is 0, and no bound follows."""
    error, problem = Bound("the error", 0.1, "the test"), Problem(100, 4, smoothness=2.0)
    refused = paper.bound(problem, rounds=10, learning_rate=0.4 / (2 * 2.0), stability=0.4, deviation=error)
    assert refused.value is None
    assert refused.failing[0].startswith("η ≤ ν/(4L)")
    assert paper.bound(problem, rounds=10, learning_rate=0.4 / (4 * 2.0), stability=0.4, deviation=error).holds


def test_misprint_second_moments_of_noisy_gradients_exceed_g_squared() -> None:
    """Gradients of size G with errors of size α along them: v → (G + α)²."""
    lipschitz, alpha, second = 1.0, 0.5, 0.0
    for _ in range(200):
        second = 0.9 * second + 0.1 * (lipschitz + alpha) ** 2
    assert second > lipschitz**2
    assert second <= (lipschitz + alpha) ** 2


def test_what_does_not_hold_for_the_error_does_not_hold_for_the_run() -> None:
    error = zhou_private_nonconvex.population_deviation(Problem(10, 4), noise=1.0, epsilon=1.0, delta=1e-5, deviations=5.0)
    found = paper.bound(Problem(10, 4), rounds=10, learning_rate=0.1, stability=0.4, deviation=error)
    assert found.value is None
    assert set(error.failing) <= set(found.failing)
