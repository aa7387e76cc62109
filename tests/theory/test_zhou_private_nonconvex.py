"""DPAGD's theorems: their constants derived, run against adversarial and random errors, and the misprints refuted."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from privopt.errors import InputError
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent
from privopt.theory import Bound, Problem
from privopt.theory import zhou_private_nonconvex as paper

Vector = np.ndarray
Update = Callable[[Vector], Vector]


def within(alpha: float) -> Bound:
    """‖g̃ − g‖ ≤ α for certain."""
    return Bound("the error of a gradient", alpha, "the test")


# ---------------------------------------------------------------- losses whose gradients and gap are known


class Quadratic:
    """½ Σ h w², h from L down to L/10, or as far as it is told."""

    def __init__(self, smoothness: float, d: int, flattest: float = 0.1) -> None:
        self.curvature = smoothness * np.linspace(1.0, flattest, d)

    def value(self, w: Vector) -> float:
        return float(np.sum(self.curvature * w**2) / 2)

    def gradient(self, w: Vector) -> Vector:
        return self.curvature * w


class Waves:
    """L Σ (1 − cos w): not convex, its curvature from −L to L."""

    def __init__(self, smoothness: float, d: int) -> None:
        self.smoothness = smoothness

    def value(self, w: Vector) -> float:
        return float(self.smoothness * np.sum(1 - np.cos(w)))

    def gradient(self, w: Vector) -> Vector:
        return self.smoothness * np.sin(w)


ERRORS: dict[str, Callable[[Vector, np.random.Generator], Vector]] = {
    "against": lambda g, rng: -g,  # what slows descent most
    "along": lambda g, rng: g,
    "random": lambda g, rng: rng.standard_normal(len(g)),
    "steady": lambda g, rng: np.ones(len(g)),
}


def gd(step: float) -> Update:
    return lambda g: step * g


def rmsprop(step: float, stability: float, ceiling: float, second_decay: float) -> Update:
    second = np.zeros(1)

    def update(g: Vector) -> Vector:
        nonlocal second
        second = second_decay * second + (1 - second_decay) * g**2
        return step * g / (np.sqrt(np.minimum(second, ceiling)) + stability)

    return update


def adam(step: float, stability: float, ceiling: float, first_decay: float, second_decay: float) -> Update:
    first = second = np.zeros(1)

    def update(g: Vector) -> Vector:
        nonlocal first, second
        first = first_decay * first + (1 - first_decay) * g
        second = second_decay * second + (1 - second_decay) * g**2
        return step * first / (np.sqrt(np.minimum(second, ceiling)) + stability)

    return update


def mean_square(loss: Quadratic | Waves, start: Vector, update: Update, rounds: int, error: Callable[[Vector], Vector]) -> float:
    """The mean of ‖∇f(w_t)‖² over the rounds."""
    w, total = start, 0.0
    for _ in range(rounds):
        g = loss.gradient(w)
        total += float(g @ g)
        w = w - update(g + error(g))
    return total / rounds


def error_of(kind: str, alpha: float, rng: np.random.Generator) -> Callable[[Vector], Vector]:
    def error(g: Vector) -> Vector:
        direction = ERRORS[kind](g, rng)
        size = float(np.linalg.norm(direction))
        return alpha * direction / size if size else direction

    return error


@pytest.mark.parametrize("rounds", [1, 60])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("make", [Quadratic, Waves])
@pytest.mark.parametrize("smoothness", [0.1, 3.0])
def test_bounds_hold_for_every_kind_of_error(
    make: type[Quadratic] | type[Waves], kind: str, alpha: float, rounds: int, smoothness: float
) -> None:
    rng = np.random.default_rng(0)
    loss, start = make(smoothness, 3), np.array([1.5, -1.0, 0.3])
    problem = Problem(100, 3, smoothness=smoothness, gap=loss.value(start))
    deviation, error = within(alpha), error_of(kind, alpha, rng)

    bound = paper.gd_bound(problem, rounds=rounds, deviation=deviation)
    assert bound.value is not None
    assert mean_square(loss, start, gd(1 / (4 * smoothness)), rounds, error) <= bound.value

    for stability, ceiling in ((1.0, 1e-4), (0.1, 4.0)):
        step = stability / (4 * smoothness)
        bound = paper.rmsprop_bound(
            problem, rounds=rounds, learning_rate=step, stability=stability, ceiling=ceiling, deviation=deviation
        )
        assert bound.value is not None
        assert mean_square(loss, start, rmsprop(step, stability, ceiling, 0.9), rounds, error) <= bound.value

        step = paper.adam_step(smoothness, stability=stability, first_decay=0.5)
        bound = paper.adam_bound(
            problem,
            rounds=rounds,
            learning_rate=step,
            stability=stability,
            ceiling=ceiling,
            first_decay=0.5,
            deviation=deviation,
        )
        assert bound.value is not None
        assert mean_square(loss, start, adam(step, stability, ceiling, 0.5, 0.9), rounds, error) <= bound.value


# ---------------------------------------------------------------- misprints


def no_error(g: Vector) -> Vector:
    return np.zeros_like(g)


def test_misprint_the_step_of_gd_is_one_over_4l_not_l_over_4() -> None:
    """With L = 12, L/4 = 3 is far above 2/L, and descent diverges."""
    loss, start = Quadratic(12.0, 1), np.array([1.0])
    bound = paper.gd_bound(Problem(100, 1, smoothness=12.0, gap=6.0), rounds=10, deviation=within(0.0))
    assert mean_square(loss, start, gd(12 / 4), 10, no_error) > 1e6 * bound.number
    assert mean_square(loss, start, gd(1 / 48), 10, no_error) <= bound.number


def test_misprint_the_rmsprop_bound_is_four_times_eq_35() -> None:
    """With η = ν/(4L) and λ ≪ ν², a step on ½Lw² gains 7/8 of what (32) claims: eq. (35) is below what a run does."""
    loss, start, rounds = Quadratic(1.0, 1), np.array([1.0]), 100
    found = mean_square(loss, start, rmsprop(0.25, 1.0, 1e-6, 0.5), rounds, no_error)
    printed = (1e-3 + 1.0) * (0.5 / (0.25 * rounds))  # (√λ + ν) gap/(ηT)
    assert found > 1.1 * printed
    bound = paper.rmsprop_bound(
        Problem(100, 1, smoothness=1.0, gap=0.5),
        rounds=rounds,
        learning_rate=0.25,
        stability=1.0,
        ceiling=1e-6,
        deviation=within(0.0),
    )
    assert bound.number == pytest.approx(4 * printed)
    assert found <= bound.number


def test_misprint_the_noise_term_of_rmsprop_has_the_factor_four_too() -> None:
    bound = paper.rmsprop_bound(
        Problem(100, 1, smoothness=1.0, gap=0.5),
        rounds=100,
        learning_rate=0.25,
        stability=2.0,
        ceiling=9.0,
        deviation=within(0.1),
    )
    assert bound.number == pytest.approx(4 * (3 + 2) * (0.5 / 25 + 3 * 0.01 / 8))
    assert "(32)" in bound.source


@pytest.mark.parametrize("first_decay", [0.0, 0.01, 0.5, 0.9])
def test_misprint_adams_step_has_a_quarter_under_its_root(first_decay: float) -> None:
    """x = ηL/ν is where η³(2L²/ν²)k + η²L/(2ν) − η/2, below eq. (47), is 0."""
    x = paper.adam_step(3.0, stability=0.2, first_decay=first_decay) * 3.0 / 0.2
    k = first_decay / (1 - first_decay) ** 2
    assert 2 * k * x**2 + x / 2 == pytest.approx(1 / 2)


def test_misprint_adams_printed_step_diverges() -> None:
    k = 0.01 / 0.99**2
    printed = (math.sqrt(1 / 2 + 4 * k) - 1 / 2) / (4 * k)  # · ν/L, both 1 here
    loss, start = Quadratic(1.0, 1), np.array([1.0])
    problem = Problem(100, 1, smoothness=1.0, gap=0.5)

    def bound(step: float) -> Bound:
        return paper.adam_bound(
            problem, rounds=30, learning_rate=step, stability=1.0, ceiling=1e-6, first_decay=0.01, deviation=within(0.0)
        )

    refused = bound(printed)
    assert refused.value is None
    assert refused.failing[0].startswith("η ≤ (√(1/4 + 4k) − 1/2)/(4k) · ν/L")
    assert mean_square(loss, start, adam(printed, 1.0, 1e-6, 0.01, 0.9), 30, no_error) > 1e6
    step = paper.adam_step(1.0, stability=1.0, first_decay=0.01)
    assert mean_square(loss, start, adam(step, 1.0, 1e-6, 0.01, 0.9), 30, no_error) <= bound(step).number


def test_misprint_adams_noise_term_is_twice_eq_49() -> None:
    """(43) bounds ‖x + y‖² by 2‖x‖² + ‖y‖², which fails for x = y."""
    x = np.array([1.0, 2.0])
    assert np.sum((x + x) ** 2) > 2 * np.sum(x**2) + np.sum(x**2)
    bound = paper.adam_bound(
        Problem(100, 1, smoothness=1.0, gap=0.5),
        rounds=100,
        learning_rate=0.01,
        stability=1.0,
        ceiling=4.0,
        first_decay=0.9,
        deviation=within(0.1),
    )
    assert bound.number == pytest.approx(3 / 0.1 * (2 * 0.5 / 1 + 2 * 0.01 / 0.1))
    assert "(43)" in bound.source


def test_misprint_the_first_term_of_eq_56_is_2l_gap_over_t() -> None:
    """One round, no noise: ‖∇f(w₁)‖² = L²w² is twice L·gap."""
    problem = Problem(100, 1, smoothness=3.0, gap=1.5)
    found = mean_square(Quadratic(3.0, 1), np.array([1.0]), gd(1 / 3), 1, no_error)
    assert found > 3.0 * 1.5
    assert found <= paper.gd_expected_bound(problem, rounds=1, noise=1e-9).number


def test_the_expected_bound_of_gd_holds_and_has_little_to_spare() -> None:
    """Many rounds on ½L‖w‖² with η = 1/L leave nothing but noise: E‖∇f‖² = dσ². The mean of 8·10⁴ squares misses by 5 %
    with probability < 1e-20."""
    problem, rng = Problem(100, 4, smoothness=2.0, gap=4.0), np.random.default_rng(0)
    loss = Quadratic(2.0, 4, flattest=1.0)
    found = mean_square(loss, np.ones(4), gd(0.5), 20_000, lambda g: 0.3 * rng.standard_normal(4))
    bound = paper.gd_expected_bound(problem, rounds=20_000, noise=0.3).number
    assert 0.95 * bound <= found <= 1.05 * bound
    assert found > 1.05 * paper.gd_expected_bound(problem, rounds=20_000, noise=0.15).number  # half the noise would be seen


def test_misprint_the_noise_term_of_eq_63_is_divided_by_the_stability() -> None:
    """SGD with step 1/(2L) at the minimum of ½Lw² has E‖∇f‖² = σ²/3, above the printed bound when ν is small.
    2·10⁴ correlated rounds miss a third by half of it with probability < 1e-9."""
    stability, ceiling, noise, rounds, second_decay = 0.01, 1e-8, 0.05, 20_000, 1 - 6e-6
    rng, loss = np.random.default_rng(0), Quadratic(1.0, 1)
    update = rmsprop(stability / 2, stability, ceiling, second_decay)
    found = mean_square(loss, np.array([1e-3]), update, rounds, lambda g: noise * rng.standard_normal(1))
    gap = loss.value(np.array([1e-3]))
    printed = 4 * (math.sqrt(second_decay * ceiling) + stability) * (gap / (stability / 2 * rounds) + 2 * noise**2)
    assert found > 2 * printed
    bound = paper.rmsprop_expected_bound(
        Problem(100, 1, smoothness=1.0, gap=gap),
        rounds=rounds,
        learning_rate=stability / 2,
        stability=stability,
        ceiling=ceiling,
        second_decay=second_decay,
        noise=noise,
    )
    assert bound.holds
    assert found <= bound.number


def test_bounds_of_the_remaining_by_hand() -> None:
    problem = Problem(100, 4, lipschitz=2.0, smoothness=0.5, gap=3.0)
    assert paper.gd_bound(problem, rounds=50, deviation=within(0.1)).value == pytest.approx(16 * 0.5 * 3 / 50 + 3 * 0.01)
    settings = {"rounds": 50, "learning_rate": 0.4, "stability": 0.8, "ceiling": 0.04, "noise": 0.3}
    held = paper.rmsprop_expected_bound(problem, **settings, second_decay=0.991)  # type: ignore[arg-type]
    assert held.value == pytest.approx(2 * (0.2 + 0.8) * (3 / 20 + 4 * 0.09 / 1.6))
    refused = paper.rmsprop_expected_bound(problem, **settings, second_decay=0.989)  # type: ignore[arg-type]
    assert refused.value is None
    assert refused.failing == ("1 − β₂ ≤ ν²/(16G²): 1 − β₂ = 0.011, which is above 0.01",)


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_no_bound_depends_on_the_unit_of_the_loss(scale: float) -> None:
    """s·f has s times the gradients, so mean ‖∇f‖² grows by s²."""
    settings = {"rounds": 50, "learning_rate": 0.01}

    def bounds(s: float) -> list[float]:
        problem = Problem(100, 5, smoothness=2.0 * s, gap=3.0 * s, lipschitz=1.5 * s)
        adaptive = {"stability": 0.5 * s, "ceiling": 4.0 * s**2}
        deviation = paper.noise_deviation(5, noise=0.1 * s, deviations=6.0)
        found = [
            paper.gd_bound(problem, rounds=50, deviation=deviation),
            paper.rmsprop_bound(problem, **settings, **adaptive, deviation=deviation),  # type: ignore[arg-type]
            paper.adam_bound(problem, **settings, **adaptive, first_decay=0.9, deviation=deviation),  # type: ignore[arg-type]
            paper.gd_expected_bound(problem, rounds=50, noise=0.1 * s),
            paper.rmsprop_expected_bound(problem, **settings, **adaptive, second_decay=0.999, noise=0.1 * s),  # type: ignore[arg-type]
        ]
        assert all(bound.holds for bound in found)
        return [bound.number for bound in found]

    assert bounds(scale) == pytest.approx([scale**2 * value for value in bounds(1.0)])


# ---------------------------------------------------------------- noise


@pytest.mark.parametrize("target", [0.05, 0.2, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_the_printed_noise_with_our_constant_is_private_and_half_of_it_is_not(target: float, delta: float) -> None:
    problem, rounds = Problem(1000, 10, lipschitz=2.0), 50
    noise = paper.noise(problem, rounds=rounds, epsilon=target, delta=delta)

    def cost(sigma: float) -> float:
        return epsilon(SelfComposedDpEvent(GaussianDpEvent(sigma * 1000 / 2.0), rounds), delta, "replace-one")

    assert cost(noise.printed) <= target
    assert 0.99 * target <= cost(noise.needed) <= target
    assert noise.needed <= noise.printed
    assert cost(noise.needed / 2) > target
    if delta <= 1e-5:
        assert cost(noise.printed / 2) > target


def test_the_noise_constant_tends_to_eight_and_none_below_eight_would_do() -> None:
    assert paper.noise_constant(1.0, 1e-300) == pytest.approx(8, rel=1e-3)
    assert paper.noise_constant(4.0, math.exp(-4 / 3)) == pytest.approx(2 * (1 + 2) ** 2)  # ε/ln(1/δ) = 3
    for target in (0.2, 1.0, 5.0):  # with c₂ = 7.5, δ = 1e-100 is already too much to ask
        multiplier = 2 * math.sqrt(7.5 / 4 * math.log(1e100)) / target
        assert epsilon(GaussianDpEvent(multiplier), 1e-100, "replace-one") > target


# ---------------------------------------------------------------- deviations

FEASIBLE = {"noise": 1.0, "epsilon": 0.05, "delta": 1e-8, "deviations": 5.0}


def test_the_deviation_from_the_population_holds_under_its_conditions() -> None:
    bound = paper.population_deviation(Problem(20_000, 9, lipschitz=0.5), **FEASIBLE)
    assert bound.value == pytest.approx(3 * 1.0 * (2 * 0.5 + 5))
    assert bound.failure == pytest.approx(36 * math.exp(-12.5))


@pytest.mark.parametrize(
    ("changed", "n", "says"),
    [
        ({"epsilon": 0.08}, 20_000, "ε ≤ σ/13"),
        ({"delta": 1e-7}, 20_000, "δ ≤ σ exp(−μ²/2)/(13 ln(26/σ))"),
        ({}, 16_000, "n ≥ 2 ln(8/δ)/ε²"),
        ({"noise": 27.0}, 20_000, "σ < 26"),
        ({"deviations": 2.5}, 20_000, "a probability left"),  # 36 e^{−3.125} = 1.6
    ],
)
def test_a_failing_condition_is_named_and_leaves_no_number(changed: dict[str, float], n: int, says: str) -> None:
    problem = Problem(n, 9)
    bound = paper.population_deviation(problem, **(FEASIBLE | changed))
    assert bound.value is None
    assert [condition.startswith(says) for condition in bound.failing] == [True]
    after = paper.gd_bound(problem, rounds=10, deviation=bound)
    assert after.value is None
    assert set(bound.failing) <= set(after.failing)


def test_misprint_the_error_grows_with_the_range_of_gradients() -> None:
    """Gradients ±G, one round from a fixed start, every printed condition met: ‖g̃ − g‖ exceeds √p σ(1 + μ) three times in four,
    not in 4.4 % of runs. P(fewer than half of 2000 do) < 1e-100."""
    n, target, delta, sigma, deviations = 10_000, 1.0, 1e-3, 20.0, 3.0
    lipschitz = sigma * n * target / math.sqrt(paper.noise_constant(target, delta) * math.log(1 / delta))
    tail = math.exp(-(deviations**2) / 2)
    assert target <= sigma / 13
    assert delta <= sigma * tail / (13 * math.log(26 / sigma))
    assert n >= 2 * math.log(8 / delta) / target**2
    rng = np.random.default_rng(0)
    means = lipschitz * (2 * rng.binomial(n, 0.5, 2000) / n - 1)  # the population's is 0
    errors = np.abs(means + sigma * rng.standard_normal(2000))
    assert np.mean(errors >= sigma * (1 + deviations)) > 0.5 > 4 * tail
    bound = paper.population_deviation(
        Problem(n, 1, lipschitz=lipschitz), noise=sigma, epsilon=target, delta=delta, deviations=deviations
    )
    assert np.mean(errors >= bound.number) <= bound.failure


def test_the_noise_deviates_as_rarely_as_lemma_3_says() -> None:
    """|N(0,1)| ≥ 2 has probability 0.0455, the bound is 0.27: 2·10⁴ draws exceed it with probability < 1e-300; with twice the
    noise (0.317) they fall below it with probability < 1e-40."""
    bound = paper.noise_deviation(1, noise=0.5, deviations=2.0)
    draws = np.random.default_rng(0).standard_normal(20_000)
    assert np.mean(np.abs(0.5 * draws) >= bound.number) <= bound.failure
    assert np.mean(np.abs(1.0 * draws) >= bound.number) > bound.failure


def test_deviations_leave_the_failure_that_was_asked_for() -> None:
    deviations = paper.deviations_for(50, 200, 0.05)
    assert 4 * 50 * 200 * math.exp(-(deviations**2) / 2) == pytest.approx(0.05)


# ---------------------------------------------------------------- plans


def test_plans_by_hand() -> None:
    """n = 10⁴, d = 100, ln(1/δ) = 4: √(d ln(1/δ)) = 20."""
    problem, delta = Problem(10_000, 100, smoothness=4.0), math.exp(-4)
    plan = paper.gd_plan(problem, epsilon=1.0, delta=delta)
    assert (plan.rounds, plan.learning_rate, plan.failing) == (1000, 1 / 16, ())
    assert plan.noise == paper.noise(problem, rounds=1000, epsilon=1.0, delta=delta)
    assert paper.gd_expected_plan(problem, epsilon=1.0, delta=delta).learning_rate == 1 / 4
    assert paper.rmsprop_plan(problem, epsilon=1.0, delta=delta, stability=0.8).learning_rate == pytest.approx(0.05)
    adam = paper.adam_plan(problem, epsilon=1.0, delta=delta, stability=0.8, first_decay=0.9)
    assert adam.rounds == 500
    assert adam.learning_rate == paper.adam_step(4.0, stability=0.8, first_decay=0.9)


def test_a_plan_of_less_than_one_round_says_so() -> None:
    plan = paper.gd_plan(Problem(10, 1000), epsilon=0.1, delta=1e-6)
    assert plan.rounds == 1
    assert plan.failing[0].startswith("T ≥ 1")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Problem(0, 1), "n is 0"),
        (lambda: Problem(1, 1, lipschitz=math.nan), "lipschitz is nan"),
        (lambda: Problem(1, 1, gap=-1.0), "gap is -1.0"),
        (lambda: paper.noise_constant(1.0, 0.0), "delta is 0.0"),
        (lambda: paper.noise_constant(math.inf, 0.1), "epsilon is inf"),
        (lambda: paper.adam_step(1.0, stability=1.0, first_decay=1.0), "first_decay is 1.0"),
        (lambda: paper.gd_bound(Problem(1, 1), rounds=0, deviation=within(1.0)), "rounds is 0"),
    ],
)
def test_numbers_that_cannot_be(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        wrong()
