"""DP-AGD (Lee, Kifer) against a reference written from Algorithm 2, and what its guarantee rests on.

The reference knows nothing of privopt but the order in which its generator is asked: gradient noise, then that of the choice.
"""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privopt.errors import BudgetExceeded, CompositionError
from privopt.loop import run
from privopt.measure.clips import l2
from privopt.measure.line_search import LineSearch, _State
from privopt.measure.measurement import Carry, Noisy
from privopt.measure.mechanisms import gaussian_pool, noisy_min
from privopt.measure.randomness import Rng, generator
from privopt.methods.dp_agd import dp_agd
from privopt.methods.dp_gd import dp_gd
from privopt.perexample.grads import Materialized, Oracle, Rows, Vector
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Squared
from privopt.postprocess.regularizers import nonconvex, ridge
from privopt.postprocess.updates import sgd
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import GaussianDpEvent, PureDpEvent, compose
from privopt.recipe import Recipe, always
from privopt.state import PublicState
from tests.laws.checks import FALSE_ALARM
from tests.problems import linear_oracle, scaled_rows

X, Y = scaled_rows()
ROUNDS, SIZE = 40, 60
SETTINGS: dict[str, Any] = {"rounds": ROUNDS, "clip_bound": 0.8, "loss_bound": 1.5, "longest_step": 1.5}


class Watched:
    """A line search that writes down what it carries."""

    def __init__(self, recipe: Recipe) -> None:
        self.inner, self.carried = recipe.measurement(0), list[Carry]()
        self.recipe = Recipe(recipe.rounds, always(self), sgd(1.0))

    def event(self, round_: int) -> Any:
        return self.inner.event(round_)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        noisy = self.inner.measure(oracle, at, round_, rng, carry)
        self.carried.append(noisy.carry)
        return noisy


# ---------------------------------------------------------------- Algorithm 2


def reference(noise: float, part: float, first_share: float, growth: float, strength: float) -> tuple[Vector, int, int]:
    """θ at the end, and how often a step and how often no step was chosen."""
    clip, bound, most = SETTINGS["clip_bound"], SETTINGS["loss_bound"], SETTINGS["longest_step"]
    rho, rho_ng = part / (2 * noise**2), first_share * part / (2 * noise**2)
    scale = bound * noise * math.sqrt(ROUNDS / (1 - part))
    rng, theta, longest = generator(5), np.zeros(4), most
    chosen: list[float] = []
    rho_held, averaged, moves, stays = 0.0, np.zeros(4), 0, 0
    for _ in range(ROUNDS):
        if rho <= 0:
            break
        gradients = (1 / (1 + np.exp(-X @ theta)) - Y)[:, None] * X
        norms = np.linalg.norm(gradients, axis=1)
        total = (gradients / np.maximum(1.0, norms / clip)[:, None]).sum(axis=0)
        if rho_held:  # GradAvg
            rho_ng *= 1 + growth
        asked = rho_ng - rho_held
        asked = asked if rho > (2 - 1e-9) * asked else rho
        answer = total + clip / math.sqrt(2 * asked) * rng.standard_normal(4)
        averaged = (rho_held * averaged + asked * answer) / (rho_held + asked)
        rho, rho_held = rho - asked, rho_held + asked
        if rho < 1e-9 / noise**2:
            rho = 0.0
        direction = averaged / SIZE + strength * theta
        direction = direction / np.linalg.norm(direction)
        scores = []
        for k in range(21):
            point = theta - longest * k / 20 * direction
            losses = np.clip(np.logaddexp(0, X @ point) - Y * (X @ point), 0, bound)
            scores.append(losses.sum() + SIZE * strength / 2 * point @ point)
        best = int(np.argmin(np.array(scores) - rng.exponential(scale, 21)))
        if best == 0:
            stays += 1
            continue
        theta, rho_held, moves = theta - longest * best / 20 * direction, 0.0, moves + 1
        chosen.append(longest * best / 20)
        if moves % 10 == 0:
            longest = min(1.1 * max(chosen[-10:]), most)
    return theta, moves, stays


@pytest.mark.parametrize("strength", [0.0, 0.05], ids=["no regulariser", "ridge"])
@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_dp_agd_is_the_paper_s_algorithm(noise: float, strength: float) -> None:
    """Its misprints aside: noise lowers the scores, and the step that was chosen is taken, not the one before it."""
    expected, moves, stays = reference(noise, 0.02, 0.02, 0.5, strength)
    recipe = dp_agd(
        **SETTINGS,
        noise_multiplier=noise,
        gradient_share=0.02,
        first_share=0.02,
        growth=0.5,
        regularizer=ridge(strength) if strength else None,
    )
    parameters = run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(5)).parameters
    np.testing.assert_allclose(parameters, expected, rtol=1e-7)
    assert moves > 5  # else the test would show less than it says
    assert stays > 0  # for 199 of 200 seeds, or more


def test_without_noise_dp_agd_is_gradient_descent_with_the_best_of_its_steps() -> None:
    theta = np.zeros(4)
    for _ in range(5):
        direction = X.T @ (1 / (1 + np.exp(-X @ theta)) - Y)
        points = [theta - step * direction / np.linalg.norm(direction) for step in np.linspace(0, 1.5, 21)]
        theta = min(points, key=lambda point: float(np.sum(np.logaddexp(0, X @ point) - Y * (X @ point))))
    loose = {**SETTINGS, "clip_bound": 1e6, "loss_bound": 1e6, "rounds": 5}
    parameters = run(dp_agd(**loose, noise_multiplier=0.0), linear_oracle(X, Y), np.zeros(4)).parameters
    np.testing.assert_allclose(parameters, theta, rtol=1e-9)


def test_it_goes_further_than_descent_does_in_as_many_rounds() -> None:
    def loss(recipe: Recipe) -> float:
        parameters = run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(0)).parameters
        return float(linear_oracle(X, Y).losses(parameters, None).mean())

    searched = dp_agd(rounds=10, noise_multiplier=0.0, clip_bound=9.0, loss_bound=9.0)
    assert loss(searched) < loss(dp_gd(rounds=10, noise_multiplier=0.0, clip_bound=9.0, learning_rate=0.3))


# ---------------------------------------------------------------- what is paid, and how the pool is divided


def test_all_gradients_are_one_gaussian_and_every_round_chooses_once() -> None:
    """ρ = 1/(2z²): `gradient_share` of it is the pool's, the rest is divided among choices, of ε²/2 each."""
    recipe = dp_agd(**SETTINGS, noise_multiplier=3.0, gradient_share=0.4)
    pool, each = GaussianDpEvent(3.0 / math.sqrt(0.4)), PureDpEvent(1 / (3.0 * math.sqrt(ROUNDS / 0.6)))
    assert recipe.planned_event() == compose([pool] + [each] * ROUNDS)
    assert recipe.planned_event(1) == compose([pool, each])
    assert 1 / (2 * pool.noise_multiplier**2) + ROUNDS * each.epsilon**2 / 2 == pytest.approx(1 / (2 * 3.0**2))
    assert run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(0)).event == recipe.planned_event()


def test_less_noise_costs_more_whatever_its_division() -> None:
    for part in (0.1, 0.5, 0.9):
        costs = [
            epsilon(dp_agd(**SETTINGS, noise_multiplier=z, gradient_share=part).planned_event(), 1e-5) for z in (2.0, 4.0, 8.0)
        ]
        assert costs == sorted(costs, reverse=True)


def test_the_pool_is_used_up_and_never_exceeded_and_then_nobody_is_asked() -> None:
    watched = Watched(dp_agd(**SETTINGS, noise_multiplier=0.1, first_share=0.2))
    asked: list[int] = []

    class Counted(LinearOracle):
        def __call__(self, parameters: Vector, rows: Rows) -> Any:
            asked.append(1)
            return super().__call__(parameters, rows)

    whole = linear_oracle(X, Y)
    result = run(watched.recipe, Counted(whole._design, whole._targets, whole._loss), np.zeros(4), rng=generator(1))
    spent = [carry["spent"] for carry in watched.carried]
    assert spent == sorted(spent)
    assert spent[-1] == 1.0
    used = spent.index(1.0) + 1
    assert len(asked) == used < ROUNDS
    assert result.event == watched.recipe.planned_event()


def test_where_no_step_helps_the_gradient_is_measured_better_and_averaged_by_precision() -> None:
    """At the optimum of the regulariser alone, with silent losses, 0 is always best; the pool's parts add up to one estimate."""
    watched = Watched(
        dp_agd(rounds=4, noise_multiplier=2.0, clip_bound=1.0, loss_bound=0.0, first_share=0.1, regularizer=ridge(1e6))
    )
    rng = generator(3)
    run(watched.recipe, linear_oracle(X, Y), np.zeros(4), rng=rng)
    shares = [carry["held"] for carry in watched.carried]
    np.testing.assert_allclose(shares, [0.1, 0.11, 0.121, 0.1331])
    again, total, answers = generator(3), linear_oracle(X, Y)(np.zeros(4), None).clipped_sum(l2(1.0)), []
    for share in np.diff([0.0, *shares]):
        answers.append(total + 2.0 / math.sqrt(0.5 * share) * again.standard_normal(4))
        again.exponential(0.0, 21)
    average = np.average(answers, axis=0, weights=np.diff([0.0, *shares])) / SIZE
    np.testing.assert_allclose(watched.carried[-1]["gradient"], average, rtol=1e-9)


class _Greedy(LineSearch):
    """Takes the same share for ever."""

    def _refine_gradient(self, oracle: Oracle, at: PublicState, state: _State, rng: Rng) -> _State:
        answer, spent = self.pool.release(
            oracle(at.current, None).clipped_sum(self.clip), self.clip.bound, 0.15, state.spent, rng
        )
        return _State(spent, state.share, 0.15, answer, state.longest, state.recent, state.moves)


def search(kind: type[LineSearch] = LineSearch, **changes: Any) -> LineSearch:
    settings: dict[str, Any] = {
        "clip": l2(1.0),
        "loss_bound": 1.0,
        "pool": gaussian_pool(1.0),
        "selection": noisy_min(1.0),
        "first_share": 0.1,
        "growth": 0.1,
        "longest": 1.0,
        "candidates": 20,
    }
    return kind(**{**settings, **changes})


def test_a_line_search_that_takes_more_than_the_pool_is_stopped() -> None:
    with pytest.raises(BudgetExceeded, match="pool of noise"):
        run(Recipe(ROUNDS, always(search(_Greedy)), sgd(1.0)), linear_oracle(X, Y), np.zeros(4))


def test_a_line_search_that_would_begin_unpaid_is_refused() -> None:
    with pytest.raises(CompositionError, match="begins there"):
        search().measure(linear_oracle(X, Y), PublicState(np.zeros(4), np.zeros(4)), 3, generator(0))


# ---------------------------------------------------------------- sensitivity


class Losses:
    """Whatever losses somebody thinks of; gradients of norm 1."""

    def __init__(self, table: Vector) -> None:
        self.table, self.size = table, len(table)

    def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
        return Materialized(np.ones((self.size, 1)))

    def losses(self, parameters: Vector, rows: Rows) -> Vector:
        return self.table[:, round(20 * abs(float(parameters[0])))]


@pytest.mark.parametrize("strange", [0.3, -5.0, 1e300, math.inf, -math.inf, math.nan])
def test_adding_an_example_raises_every_score_by_at_most_the_loss_bound(strange: float) -> None:
    table = np.random.default_rng(0).uniform(-1, 3, (5, 21))
    table[4, ::2] = strange
    line = search(loss_bound=0.7)
    for step in range(21):
        point = np.array([step / 20])
        added = line._score(Losses(table), point) - line._score(Losses(table[:4]), point)
        assert -1e-12 <= added <= 0.7 + 1e-12


def test_removing_an_example_moves_the_sum_of_gradients_by_at_most_the_clip_bound() -> None:
    """The pool's own answer, before its noise: `gaussian_pool(0)` adds none."""
    line, at = search(clip=l2(0.3), pool=gaussian_pool(0.0)), PublicState(np.ones(4), np.ones(4))
    start = _State(0.0, 0.1, 0.0, np.zeros(4), 1.0, 0.0, 0)

    def total(keep: Vector) -> Vector:
        return line._refine_gradient(linear_oracle(X[keep], Y[keep]), at, start, generator(0)).gradient * len(keep)

    moved = [np.linalg.norm(total(np.arange(SIZE)) - total(np.delete(np.arange(SIZE), row))) for row in range(SIZE)]
    assert 0.29 < max(moved) <= 0.3 + 1e-12


def told(line: LineSearch, data: Losses, draws: int, seed: int) -> Vector:
    """How often each step is chosen."""
    rng, at = generator(seed), PublicState(np.zeros(1), np.zeros(1))
    steps = [abs(float(line.measure(data, at, 0, rng).value[0])) for _ in range(draws)]
    return np.bincount(np.round(np.array(steps) * 20).astype(int), minlength=21) / draws


class _Unclipped(LineSearch):
    """Compares losses as they are."""

    def _score(self, oracle: Any, parameters: Vector) -> float:
        return float(oracle.losses(parameters, None).sum())


@pytest.mark.parametrize(("kind", "honest"), [(LineSearch, True), (_Unclipped, False)])
def test_choices_on_neighbouring_data_differ_by_no_more_than_claimed(kind: type[LineSearch], honest: bool) -> None:
    """P[step] ≤ e^ε P′[step], both ways, for all 21 steps; Hoeffding's margin makes 42 false alarms as rare as one in 10⁶."""
    draws = 2500
    flat = np.zeros((3, 21))
    flat[:, 0] = 0.6
    extra = np.full((1, 21), 9.0)
    extra[0, 0] = 0.0
    one, other = (told(search(kind), Losses(table), draws, seed) for seed, table in enumerate((flat, np.vstack([flat, extra]))))
    margin = math.sqrt(math.log(42 / FALSE_ALARM) / (2 * draws)) * (1 + math.e)
    worst = max(float((a - math.e * b).max()) for a, b in ((one, other), (other, one)))
    assert (worst <= margin) is honest


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize("kind", [ridge, nonconvex])
def test_a_regulariser_is_part_of_the_objective_that_is_compared(kind: type[ridge] | type[nonconvex]) -> None:
    """Clip bounds of 0 silence the data: what is left is descent on the regulariser, which gets near 0 and stays there."""
    recipe = dp_agd(rounds=60, noise_multiplier=1.0, clip_bound=0.0, loss_bound=0.0, longest_step=0.5, regularizer=kind(0.5))
    end = run(recipe, linear_oracle(X, Y), np.array([3.0, -1.0, 0.1, 0.0]), rng=generator(0)).parameters
    assert np.linalg.norm(end) < 0.05


def test_sparse_rows_give_the_same_model() -> None:
    recipe = dp_agd(**SETTINGS, noise_multiplier=0.1)
    sparse = linear_oracle(sp.csr_array(X), Y)
    dense, same = (run(recipe, model, np.zeros(4), rng=generator(2)).parameters for model in (linear_oracle(X, Y), sparse))
    np.testing.assert_allclose(dense, same, rtol=1e-9)


def test_losses_that_are_not_finite_hide_nothing_and_warn_nobody() -> None:
    targets = np.append(Y[:-2], [math.nan, 1e300])
    model = linear_oracle(X, targets, Squared())
    assert np.isfinite(run(dp_agd(**SETTINGS, noise_multiplier=0.1), model, np.zeros(4), rng=generator(2)).parameters).all()


def test_candidates_follow_the_steps_that_were_chosen() -> None:
    line = search(longest=2.0)
    state = _State(0.5, 0.1, 0.1, np.zeros(1), 2.0, 0.3, 8)
    state = line._after_step(state, 0.4)
    assert (state.longest, state.recent, state.moves, state.held) == (2.0, 0.4, 9, 0.0)
    state = line._after_step(state, 0.1)
    assert state.longest == pytest.approx(0.44)
    assert (state.recent, state.moves) == (0.0, 10)
    assert line._after_step(_State(0.5, 0.1, 0.1, np.zeros(1), 2.0, 1.95, 9), 0.1).longest == 2.0  # never beyond the first
    assert line._after_step(state, 0.0) is state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient_share": 0.0}, "gradient_share"),
        ({"gradient_share": 1.0}, "gradient_share"),
        ({"first_share": 0.0}, "first_share"),
        ({"first_share": 1.5}, "first_share"),
        ({"growth": 0.0}, "growth"),
        ({"longest_step": math.inf}, "longest step"),
        ({"candidates": 0}, "at least one step"),
        ({"loss_bound": math.inf}, "finite number"),
        ({"rounds": 0}, "at least one round"),
    ],
)
def test_settings_that_cannot_hold_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompositionError, match=message):
        dp_agd(**{**SETTINGS, "noise_multiplier": 1.0, **changes})
