"""Stable solutions: no neighbouring data move the end further than the bound, some move it that far, and lies are found."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from privopt.errors import CompositionError
from privopt.measure.mechanisms import gamma_norm, gaussian, laplace
from privopt.measure.randomness import Rng, generator
from privopt.measure.solutions import Sensitivity, stable_solution
from privopt.perexample.design import Design, Frame, LimitedDesign
from privopt.perexample.grads import Vector
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial, Squared
from privopt.state import PublicState
from tests.laws.checks import FALSE_ALARM, check_indistinguishable
from tests.problems import Unreadable, linear_oracle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # runs silence them: laws/test_silence.py

LIMIT, SIZE, WIDTH = 1.5, 12, 3
LOSSES: dict[str, Loss] = {"logistic": Logistic(), "huber": Huber(0.3), "multinomial": Multinomial(3)}


def oracle(matrix: Vector, targets: Vector, loss: Loss) -> LinearOracle:
    return linear_oracle(matrix, targets, loss, intercept=0.5, limit=LIMIT)


def descent(loss: Loss, *, steps: int = 40, convexity: float = 0.0, share: float = 1.0, **options: Any) -> stable_solution:
    """Without noise, at the given share of the longest stable step."""
    lipschitz, smoothness = loss.steepness * LIMIT, loss.curvature * LIMIT**2
    step = share * 2 / (smoothness + 2 * convexity) / (2 if options.get("sensitivity") == "paper" else 1)
    return stable_solution(steps, step, lipschitz, smoothness, gaussian(0.0), convexity, **options)


def end(solution: stable_solution, data: LinearOracle, start: Vector) -> Vector:
    return start - solution.measure(data, PublicState(start, start), 0, generator(0)).value


def without(matrix: Vector, row: int) -> Vector:
    """The data without a row, n staying what it is publicly: a row that is not finite is absent."""
    less = matrix.copy()
    less[row] = math.nan
    return less


# ---------------------------------------------------------------- the bound holds


@pytest.mark.parametrize("sensitivity", ["tight", "paper"])
@pytest.mark.parametrize("convexity", [0.0, 0.05, 2.0])
@pytest.mark.parametrize("name", LOSSES)
def test_adding_or_removing_a_row_moves_the_end_by_at_most_the_bound(
    name: str, convexity: float, sensitivity: Sensitivity
) -> None:
    """Rows of any length, labels of any kind, any public start, few steps and many."""
    loss, rng = LOSSES[name], np.random.default_rng(4)
    closest = 0.0
    for _ in range(15):
        matrix = rng.standard_normal((SIZE, WIDTH)) * rng.choice([1e-3, 1.0, 1e3, 1e150], (SIZE, 1))
        targets = rng.integers(3, size=SIZE).astype(float) if loss.outputs > 1 else rng.choice([0.0, 1.0, 1e6], SIZE)
        solution = descent(loss, steps=int(rng.integers(1, 60)), convexity=convexity, sensitivity=sensitivity)
        start = rng.standard_normal(loss.outputs * (WIDTH + 1)) * rng.choice([0.0, 1.0, 50.0])
        whole = end(solution, oracle(matrix, targets, loss), start)
        assert np.isfinite(whole).all()
        for row in range(3):
            moved = np.linalg.norm(whole - end(solution, oracle(without(matrix, row), targets, loss), start))
            assert moved <= solution.bound(SIZE) * (1 + 1e-12)
            closest = max(closest, float(moved / solution.bound(SIZE)))
    assert closest > 0.05  # else the test would show little


@pytest.mark.parametrize("name", LOSSES)
def test_replacing_a_row_moves_the_end_by_at_most_twice_the_bound(name: str) -> None:
    loss, rng = LOSSES[name], np.random.default_rng(5)
    for _ in range(30):
        matrix, targets = rng.standard_normal((SIZE, WIDTH)) * 5, rng.integers(2, size=SIZE).astype(float)
        solution, start = descent(loss, convexity=0.1), np.zeros(loss.outputs * (WIDTH + 1))
        other, labels = matrix.copy(), targets.copy()
        other[0], labels[0] = -matrix[0], 1 - labels[0]
        moved = end(solution, oracle(matrix, targets, loss), start) - end(solution, oracle(other, labels, loss), start)
        assert np.linalg.norm(moved) <= 2 * solution.bound(SIZE)


@pytest.mark.parametrize("steps", [1, 7, 300])
@pytest.mark.parametrize("convexity", [0.0, 0.02, 1.0])
def test_the_tight_bound_is_attained(convexity: float, steps: int) -> None:
    """Everybody else is indifferent (a row of zeros), and one row pulls with all its might: its target is out of reach."""
    matrix, targets = np.zeros((SIZE, 1)), np.full(SIZE, 1e9)
    matrix[0] = LIMIT
    data, less = (linear_oracle(m, targets, Huber(0.3), limit=LIMIT) for m in (matrix, 0 * matrix))
    solution = descent(Huber(0.3), steps=steps, convexity=convexity)
    moved = np.linalg.norm(end(solution, data, np.zeros(1)) - end(solution, less, np.zeros(1)))
    assert moved == pytest.approx(solution.bound(SIZE), rel=1e-6)
    exact = (
        steps * solution.learning_rate if not convexity else (1 - (1 - solution.learning_rate * convexity) ** steps) / convexity
    )
    assert solution.bound(SIZE) == pytest.approx(0.3 * LIMIT * exact / SIZE, rel=1e-9)


def test_the_paper_s_figures_are_for_a_replaced_example_and_exceed_the_tight_ones() -> None:
    """Lemma 2: 3LTη/n. Lemma 3: 5L(μ+β)/(nμβ), β with the ridge. The events here are for add or remove: half of each."""
    convex = stable_solution(50, 0.8, 2.0, 1.25, gaussian(1.0), sensitivity="paper")
    assert 2 * convex.bound(1000) == pytest.approx(3 * 2.0 * 50 * 0.8 / 1000, rel=1e-8)
    strong = stable_solution(50, 0.5, 2.0, 1.25, gaussian(1.0), 0.1, "paper")
    assert 2 * strong.bound(1000) == pytest.approx(5 * 2.0 * (0.1 + 1.35) / (1000 * 0.1 * 1.35), rel=1e-8)
    assert stable_solution(50, 0.8, 2.0, 1.25, gaussian(1.0)).bound(1000) == pytest.approx(convex.bound(1000) / 1.5)
    assert stable_solution(50, 0.5, 2.0, 1.25, gaussian(1.0), 0.1).bound(1000) < strong.bound(1000) / 2.5


def test_a_ridge_of_vanishing_strength_has_the_bound_of_none() -> None:
    plain = stable_solution(100, 0.8, 2.0, 1.25, gaussian(1.0)).bound(1000)
    for strength in (1e-6, 1e-12, 1e-300):
        assert stable_solution(100, 0.8, 2.0, 1.25, gaussian(1.0), strength).bound(1000) == pytest.approx(plain, rel=1e-3)
    assert stable_solution(100, 1e-9, 2.0, 1.25, gaussian(1.0), 1e9).bound(1000) == pytest.approx(2.0 / 1e12, rel=1e-6)


# ---------------------------------------------------------------- violations are found


class Promises(LinearOracle):
    """An oracle that promises half of the smoothness that it has."""

    @property
    def smoothness(self) -> float:
        return super().smoothness / 2


def test_a_step_that_is_too_long_for_the_loss_breaks_the_bound_so_the_oracle_s_promise_matters() -> None:
    size, loss = 200, Huber(0.3)
    matrix, targets = np.full((size, 1), LIMIT), np.where(np.arange(size) == 0, 0.3, 0.0)  # all but one are content at 0
    made = [Promises(LimitedDesign(m, Frame(intercept=0.0), LIMIT), targets, loss) for m in (matrix, without(matrix, 0))]
    lying = stable_solution(12, 4 / LIMIT**2, 0.3 * LIMIT, LIMIT**2 / 2, gaussian(0.0))
    assert np.linalg.norm(end(lying, made[0], np.zeros(1)) - end(lying, made[1], np.zeros(1))) > 2 * lying.bound(size)


def pair(far: float = 1e9) -> tuple[LinearOracle, LinearOracle]:
    """Four rows, the first absent in the other, which it moves as far as the bound allows."""
    matrix, targets = np.array([[LIMIT], [0.0], [0.0], [0.0]]), np.full(4, far)
    one, other = (linear_oracle(m, targets, Huber(0.3), limit=LIMIT) for m in (matrix, 0 * matrix))
    return one, other


def noisy(mechanism: Any) -> stable_solution:
    return stable_solution(2, 0.4, 0.3 * LIMIT, LIMIT**2, mechanism)


@pytest.mark.parametrize("mechanism", [gaussian(1.0), gamma_norm(1.0)], ids=str)
def test_ends_on_neighbouring_data_differ_by_no_more_than_the_accountant_claims(mechanism: Any) -> None:
    check_indistinguishable(noisy(mechanism), *pair(), "add-remove", delta=0.05)


def test_half_the_noise_is_found() -> None:
    class Halved(stable_solution):
        def bound(self, size: int) -> float:
            return super().bound(size) / 2

    broken = Halved(2, 0.4, 0.3 * LIMIT, LIMIT**2, gaussian(1.0))
    with pytest.raises(AssertionError):
        check_indistinguishable(broken, *pair(), "add-remove", delta=0.05)


def test_a_wrong_divisor_is_found() -> None:
    class Summed(stable_solution):
        def bound(self, size: int) -> float:
            return super().bound(2 * size)

    broken = Summed(2, 0.4, 0.3 * LIMIT, LIMIT**2, gamma_norm(1.0))
    with pytest.raises(AssertionError):
        check_indistinguishable(
            broken,
            *pair(),
            "add-remove",
            delta=0.0,
        )


@pytest.mark.parametrize("mechanism", [gaussian(1.5), gamma_norm(0.7)], ids=str)
def test_the_noise_is_the_mechanism_s_relative_to_the_bound(mechanism: Any) -> None:
    solution, data = noisy(mechanism), pair()[0]
    exact = end(noisy(gaussian(0.0)), data, np.zeros(1))
    rng = generator(3)
    here = PublicState(np.zeros(1), np.zeros(1))
    noise = np.array([solution.measure(data, here, 0, rng).value + exact for _ in range(800)])[:, 0]
    unit = mechanism.noise_multiplier * solution.bound(4)
    expected = stats.norm(scale=unit) if isinstance(mechanism, gaussian) else stats.laplace(scale=unit)  # Gamma(1) with a sign
    assert stats.kstest(noise, expected.cdf).pvalue > FALSE_ALARM


# ---------------------------------------------------------------- refusals, before data are read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "at least one step"),
        ({"learning_rate": 8.1}, "stable up to 8 only"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": 4.1, "sensitivity": "paper"}, "stable up to 4 only"),
        ({"learning_rate": 4.5, "strong_convexity": 0.1}, "stable up to 4.44444 only"),
        ({"lipschitz": math.inf}, "lipschitz is inf"),
        ({"smoothness": math.nan}, "smoothness is nan"),
        ({"strong_convexity": -1.0}, "strong_convexity is -1.0"),
        ({"sensitivity": "loose"}, "'tight' or 'paper'"),
        ({"mechanism": laplace(1.0)}, "Use gaussian, or gamma_norm"),
    ],
)
def test_what_is_not_known_to_be_stable_is_refused(arguments: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"steps": 9, "learning_rate": 4.0, "lipschitz": 1.0, "smoothness": 0.25, "mechanism": gaussian(1.0)}
    with pytest.raises(CompositionError, match=message):
        stable_solution(**{**usual, **arguments})


class UnreadableMatrix(LinearOracle):
    def __call__(self, parameters: Vector, rows: Any) -> Any:
        raise AssertionError("the data were read")


def test_an_oracle_that_does_not_promise_the_constants_is_refused_before_data_are_read() -> None:
    matrix, targets, here = np.ones((4, 2)), np.zeros(4), PublicState(np.zeros(2), np.zeros(2))
    plan = stable_solution(9, 4.0, 1.0, 0.25, gaussian(1.0))
    plain, limited = Frame(intercept=0.0), LimitedDesign(matrix, Frame(intercept=0.0), 1.0)
    refused: dict[str, list[Any]] = {
        "lipschitz 1, but this oracle promises inf": [
            Unreadable(),
            UnreadableMatrix(Design(matrix, plain), targets, Logistic()),
            UnreadableMatrix(limited, targets, Squared()),
        ],
        "lipschitz 1, but this oracle promises 1.41421": [UnreadableMatrix(limited, targets, Multinomial(2))],
        "smoothness 0.25, but this oracle promises 1": [UnreadableMatrix(limited, targets, Huber(0.5))],
        "lipschitz 1, but this oracle promises 2": [
            UnreadableMatrix(LimitedDesign(matrix, plain, 2.0), targets, Logistic()),
        ],
    }
    for message, oracles in refused.items():
        for one in oracles:
            with pytest.raises(CompositionError, match=message):
                plan.measure(one, here, 0, generator(0))


def test_labels_outside_their_range_are_cut_and_the_cut_loss_is_still_convex() -> None:
    """A cut residual of one score is a residual that rises with the score, no faster than before: the bound holds."""
    matrix, targets = np.array([[LIMIT], [LIMIT], [-LIMIT]]), np.array([7.0, -3.0, 0.5])
    solution, start = descent(Logistic(), steps=80), np.zeros(2)
    whole = end(solution, oracle(matrix, targets, Logistic()), start)
    for row in range(3):
        assert np.linalg.norm(whole - end(solution, oracle(without(matrix, row), targets, Logistic()), start)) <= solution.bound(
            3
        )


def test_nothing_of_the_descent_but_its_noisy_end_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism is told the way and the bound, once; the answer is what it returns."""
    told: list[tuple[Vector, float]] = []

    def release(self: gaussian, total: Vector, bound: float, rng: Rng) -> Vector:
        told.append((total, bound))
        return total * 0 + 5.0

    monkeypatch.setattr(gaussian, "release", release)
    solution = noisy(gaussian(1.0))
    answer = solution.measure(pair()[0], PublicState(np.zeros(1), np.zeros(1)), 0, generator(0))
    assert len(told) == 1
    assert told[0][1] == solution.bound(4)
    assert answer.value == 5.0
    assert answer.carry == {}
