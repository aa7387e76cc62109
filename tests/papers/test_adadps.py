"""AdaDPS and its baselines (Li, Zaheer, Reddi, Smith) against references written from the paper's lines.

References know nothing of privopt but the order in which its generator is asked (rows first, then noise) and the public batches.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privopt.loop
from privopt.checkpoint import Checkpoint
from privopt.errors import BudgetExceeded, CompositionError
from privopt.loop import run
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import preconditioned_gradient
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import disjoint_batches, full_batch, poisson
from privopt.methods.adadps import adadps
from privopt.methods.adas import adas
from privopt.methods.dp_adam_pub import dp_adam_pub
from privopt.methods.dp_r_pub import dp_r_pub
from privopt.methods.dp_sgd import dp_sgd
from privopt.methods.ideal import ideal
from privopt.methods.pda_dpmd import pda_dpmd
from privopt.methods.warm_start import warm_start
from privopt.needs import offers_of
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import ClipFactors, Materialized, Vector
from privopt.perexample.linear_oracle import PublicRows, public_batches
from privopt.perexample.losses import Logistic
from privopt.postprocess.side_information import SideInformation, State, tf_idf
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe
from privopt.state import Known, PublicState
from tests.laws.checks import check_bounded
from tests.problems import linear_oracle, scaled_rows
from tests.stopped import StopAt, Stopped

COLUMN_SCALES = (1.0, 2.0, 0.5, 0.02)
X, Y = scaled_rows(60, COLUMN_SCALES)
P, Q = scaled_rows(30, COLUMN_SCALES, seed=9)
ROUNDS, RATE, CLIP, NOISE, BATCH = 25, 0.05, 2.0, 1.3, 10
FRAME = Frame(intercept=0.0)
PUBLIC = PublicRows(Design(P, FRAME), Q, Logistic(), BATCH)


# ---------------------------------------------------------------- the paper, in loops


def gradient(row: Vector, target: float, theta: Vector) -> Vector:
    return (1 / (1 + math.exp(-(row @ theta))) - target) * row


def public_gradient(theta: Vector, round_: int) -> Vector:
    """ĝ: the mean gradient of the round's public batch."""
    batches = public_batches(30, BATCH)
    rows = batches[round_ % len(batches)]
    return np.mean([gradient(P[row], Q[row], theta) for row in rows], axis=0)


def hidden(vectors: list[Vector], clip: float, noise: Vector, expected: float) -> Vector:
    """Line 7: clip each, sum, add noise, over the batch."""
    total = np.zeros(4)
    for vector in vectors:
        total += vector * min(1.0, clip / math.sqrt(vector @ vector))
    return (total + noise) / expected


class Ask:
    """The examples, asked at θ: a Poisson batch each time."""

    def __init__(self, theta: Vector, rng: Rng) -> None:
        self._theta, self._rng = theta, rng

    def batch(self) -> list[Vector]:
        rows = poisson(0.2).draw(60, 0, self._rng)
        assert rows is not None
        return [gradient(X[row], Y[row], self._theta) for row in rows]

    def __call__(self, shape: Callable[[Vector], Vector] = lambda g: g) -> Vector:
        """g̃ of vectors that are shaped first."""
        batch = self.batch()
        return hidden([shape(g) for g in batch], CLIP, NOISE * CLIP * self._rng.standard_normal(4), 12.0)


def descend(step: Callable[[Vector, int, Vector, Ask], Vector], start: Vector = np.zeros(4)) -> Vector:  # noqa: B008
    """Rounds on Poisson batches; `step` is given θ, the round, ĝ and a way to ask for g̃."""
    theta, rng = start, generator(5)
    for round_ in range(ROUNDS):
        theta = theta + step(theta, round_, public_gradient(theta, round_), Ask(theta, rng))
    return theta


class Reference:
    """What a method remembers from round to round."""

    def __init__(self) -> None:
        self.v, self.m = np.zeros(4), np.zeros(4)

    def adadps_rmsprop(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        self.v = 0.9 * self.v + 0.1 * public**2
        a = np.sqrt(self.v) + 1e-3
        return -RATE * ask(lambda g: g / a)

    def adadps_adagrad(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        self.v = self.v + public**2
        a = np.sqrt(self.v) + 1e-3
        return -RATE * ask(lambda g: g / a)

    def adadps_adam(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        self.v, self.m = 0.9 * self.v + 0.1 * public**2, 0.8 * self.m + 0.2 * public
        a, m = np.sqrt(self.v) + 1e-3, self.m
        return -RATE * ask(lambda g: (0.7 * g + 0.3 * m) / a)

    def adadps_fixed(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        return -RATE * ask(lambda g: g / np.array([1.0, 2.0, 0.5, 0.02]))

    def dp_r_pub(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        self.v = 0.9 * self.v + 0.1 * public**2
        return -RATE * ask() / (np.sqrt(self.v) + 1e-3)

    def dp_adam_pub(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        t = round_ + 1
        self.m = 0.8 * self.m + 0.2 * (0.7 * ask() + 0.3 * public)
        self.v = 0.95 * self.v + 0.05 * public**2
        return -RATE * (self.m / (1 - 0.8**t)) / (np.sqrt(self.v / (1 - 0.95**t)) + 1e-3)

    def pda_dpmd(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        alpha = math.cos(math.pi * round_ / (2 * ROUNDS))
        return -RATE * (alpha * ask() + (1 - alpha) * public)

    def ideal(self, theta: Vector, round_: int, public: Vector, ask: Ask) -> Vector:
        self.v = 0.9 * self.v + 0.1 * (sum(ask.batch(), np.zeros(4)) / 12.0) ** 2
        a = np.sqrt(self.v) + 1e-3
        return -RATE * ask(lambda g: g / a)


COMMON: dict[str, Any] = {"rounds": ROUNDS, "noise_multiplier": NOISE, "clip_bound": CLIP, "learning_rate": RATE}
SAMPLED: dict[str, Any] = {**COMMON, "sampling": poisson(0.2)}
BESIDE: dict[str, Any] = {**SAMPLED, "public": PUBLIC, "stability": 1e-3}
RECIPES: dict[str, Callable[[], Recipe]] = {
    "adadps_rmsprop": lambda: adadps(**BESIDE),
    "adadps_adagrad": lambda: adadps(**BESIDE, rule="adagrad"),
    "adadps_adam": lambda: adadps(**BESIDE, rule="adam", first_decay=0.8, weight=0.7),
    "adadps_fixed": lambda: adadps(**SAMPLED, scale=np.array([1.0, 2.0, 0.5, 0.02])),
    "dp_r_pub": lambda: dp_r_pub(**BESIDE),
    "dp_adam_pub": lambda: dp_adam_pub(**BESIDE, weight=0.7, first_decay=0.8, second_decay=0.95),
    "pda_dpmd": lambda: pda_dpmd(**SAMPLED, public=PUBLIC),
}


WITHOUT_PRIVACY: dict[str, Callable[[], Recipe]] = {"ideal": lambda: ideal(**SAMPLED, stability=1e-3, without_privacy=True)}


@pytest.mark.parametrize("name", RECIPES | WITHOUT_PRIVACY)
def test_with_noise_and_clipping_a_recipe_is_the_paper_s_algorithm(name: str) -> None:
    recipe = (RECIPES | WITHOUT_PRIVACY)[name]()
    parameters = run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(5)).parameters
    np.testing.assert_allclose(parameters, descend(getattr(Reference(), name)), rtol=1e-8)


@pytest.mark.parametrize("name", RECIPES)
def test_the_event_is_that_of_dp_sgd_on_poisson_batches(name: str) -> None:
    """The paper draws batches of fixed size and accounts for Poisson ones; here both are Poisson, and examples are not averaged
    before they are clipped (its micro-batches of 4 would double the sensitivity)."""
    expected = SelfComposedDpEvent(PoissonSampledDpEvent(0.2, GaussianDpEvent(NOISE)), ROUNDS)
    assert RECIPES[name]().planned_event() == dp_sgd(**SAMPLED).planned_event() == expected


def test_a_warm_start_is_rmsprop_on_public_rows_and_then_dp_sgd_from_there() -> None:
    recipe = warm_start(**SAMPLED, public=PUBLIC, public_epochs=2, public_learning_rate=0.03, decay=0.9, stability=1e-3)
    theta, v = np.zeros(4), np.zeros(4)
    for round_ in range(2 * PUBLIC.epoch):
        public = public_gradient(theta, round_)
        v = 0.9 * v + 0.1 * public**2
        theta = theta - 0.03 * public / (np.sqrt(v) + 1e-3)
    theta = descend(lambda theta, round_, public, ask: -RATE * ask(), theta)
    result = run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(5))
    np.testing.assert_allclose(result.parameters, theta, rtol=1e-8)
    assert result.event == dp_sgd(**SAMPLED).planned_event()
    assert result.rounds == 2 * PUBLIC.epoch + ROUNDS


# ---------------------------------------------------------------- limits


Step = Callable[[Vector], Vector]  # g → the direction of a step


def rmsprop() -> Step:
    v = np.zeros(4)

    def step(g: Vector) -> Vector:
        nonlocal v
        v = 0.9 * v + 0.1 * g**2
        return g / (np.sqrt(v) + 1e-3)

    return step


def adagrad() -> Step:
    v = np.zeros(4)

    def step(g: Vector) -> Vector:
        nonlocal v
        v = v + g**2
        return g / (np.sqrt(v) + 1e-3)

    return step


def adam() -> Step:
    m, v, t = np.zeros(4), np.zeros(4), 0

    def step(g: Vector) -> Vector:
        nonlocal m, v, t
        m, v, t = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2, t + 1
        return m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-3)

    return step


def descent() -> Step:
    return lambda g: g


def mean(theta: Vector) -> Vector:
    return np.mean([gradient(row, y, theta) for row, y in zip(X, Y, strict=True)], axis=0)


EVERYTHING = PublicRows(Design(X, FRAME), Y, Logistic(), len(X))  # as if all rows were public: ĝ is the gradient itself
QUIET: dict[str, Any] = {**COMMON, "noise_multiplier": 0.0, "clip_bound": 1e9}
KNOWING: dict[str, Any] = {**QUIET, "public": EVERYTHING}
MOMENTS: dict[str, Any] = {"first_decay": 0.8, "second_decay": 0.95, "stability": 1e-3}
LIMITS: dict[str, tuple[Recipe, Callable[[], Step]]] = {
    "adadps is RMSProp": (adadps(**KNOWING, stability=1e-3), rmsprop),
    "adadps is AdaGrad": (adadps(**KNOWING, stability=1e-3, rule="adagrad"), adagrad),
    "dp_r_pub is RMSProp": (dp_r_pub(**KNOWING, stability=1e-3), rmsprop),
    "dp_adam_pub is Adam": (dp_adam_pub(**KNOWING, **MOMENTS, weight=0.7), adam),
    "ideal is RMSProp": (ideal(**QUIET, stability=1e-3, without_privacy=True), rmsprop),
    "adas is RMSProp": (
        adas(rounds=ROUNDS, learning_rate=RATE, public=EVERYTHING, stability=1e-3, without_privacy=True),
        rmsprop,
    ),
    "pda_dpmd is gradient descent": (pda_dpmd(**KNOWING), descent),
}


@pytest.mark.parametrize("name", LIMITS)
def test_without_noise_or_clipping_and_with_perfect_knowledge_a_recipe_is_its_non_private_counterpart(name: str) -> None:
    recipe, counterpart = LIMITS[name]
    theta, step = np.zeros(4), counterpart()
    for _ in range(ROUNDS):
        theta = theta - RATE * step(mean(theta))
    np.testing.assert_allclose(run(recipe, linear_oracle(X, Y), np.zeros(4)).parameters, theta, rtol=1e-8)


def test_without_noise_or_clipping_a_warm_start_is_rmsprop_and_then_gradient_descent() -> None:
    recipe = warm_start(**KNOWING, public_epochs=3, public_learning_rate=0.03, decay=0.9, stability=1e-3)
    theta, step = np.zeros(4), rmsprop()
    for _ in range(3):
        theta = theta - 0.03 * step(mean(theta))
    for _ in range(ROUNDS):
        theta = theta - RATE * mean(theta)
    np.testing.assert_allclose(run(recipe, linear_oracle(X, Y), np.zeros(4)).parameters, theta, rtol=1e-8)


def test_without_noise_and_with_perfect_knowledge_recipes_are_the_optimizers_of_torch() -> None:
    torch = pytest.importorskip("torch")
    optim = torch.optim
    for name, kind, settings in (
        ("adadps is RMSProp", optim.RMSprop, {"alpha": 0.9}),
        ("adadps is AdaGrad", optim.Adagrad, {}),
        ("dp_adam_pub is Adam", optim.Adam, {"betas": (0.8, 0.95)}),
    ):
        theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        steps, rows, targets = kind([theta], lr=RATE, eps=1e-3, **settings), torch.as_tensor(X), torch.as_tensor(Y)
        for _ in range(ROUNDS):
            steps.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(rows @ theta, targets).backward()
            steps.step()
        np.testing.assert_allclose(
            run(LIMITS[name][0], linear_oracle(X, Y), np.zeros(4)).parameters, theta.detach().numpy(), rtol=1e-8
        )


def test_with_a_scale_of_ones_adadps_is_dp_sgd() -> None:
    one, other = (
        run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(3)).parameters
        for recipe in (adadps(**SAMPLED, scale=np.ones(4)), dp_sgd(**SAMPLED))
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_scale_for_all_coordinates_alike_is_a_matter_of_units() -> None:
    """g/A with C/A and αA is g with C and α."""
    settings: dict[str, Any] = {"rounds": ROUNDS, "noise_multiplier": NOISE, "sampling": poisson(0.2)}
    one, other = (
        run(
            adadps(**settings, clip_bound=CLIP / a, learning_rate=RATE * a, scale=np.full(4, a)),
            linear_oracle(X, Y),
            np.zeros(4),
            rng=rng,
        )
        for a, rng in ((1.0, generator(3)), (0.01, generator(3)))
    )
    np.testing.assert_allclose(one.parameters, other.parameters, rtol=1e-10)


# ---------------------------------------------------------------- the guarantee


def first_answer(recipe: Recipe, noise: float) -> Vector:
    measurement = recipe.measurement(0)
    assert isinstance(measurement, Measurement)
    known, _ = recipe.side.at(np.zeros(4), recipe.side.start(np.zeros(4)), 0)
    at = PublicState(np.zeros(4), np.zeros(4), known)
    quiet = Measurement(full_batch(), measurement.terms, gaussian(noise))
    return quiet.measure(linear_oracle(X, Y), at, 0, generator(2)).value


@pytest.mark.parametrize("rule", ["rmsprop", "adagrad", "adam"])
def test_noise_is_the_same_on_every_coordinate_whatever_it_is_divided_by(rule: Any) -> None:
    """Precondition first, then privatise: nothing is divided by A after the noise."""
    recipe = adadps(**COMMON, public=PUBLIC, rule=rule)
    noise = first_answer(recipe, NOISE) - first_answer(recipe, 0.0)
    np.testing.assert_allclose(noise, NOISE * CLIP / 60 * generator(2).standard_normal(4), rtol=1e-9)


def test_in_the_other_order_the_noise_is_divided_too() -> None:
    settings: dict[str, Any] = {**COMMON, "rounds": 1, "public": PUBLIC, "stability": 1e-3}
    noisy = run(dp_r_pub(**settings), linear_oracle(X, Y), np.zeros(4), rng=generator(2)).parameters
    quiet = run(dp_r_pub(**{**settings, "noise_multiplier": 0.0}), linear_oracle(X, Y), np.zeros(4), rng=generator(2)).parameters
    divisor = np.sqrt(0.1) * np.abs(public_gradient(np.zeros(4), 0)) + 1e-3
    drawn = NOISE * CLIP / 60 * generator(2).standard_normal(4)
    np.testing.assert_allclose(noisy - quiet, -RATE * drawn / divisor, rtol=1e-9)


SCALES = [np.full(4, 1e-9), np.array([1.0, 1e-6, 1e6, 0.02]), np.full(4, 1e9)]


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("scale", SCALES, ids=["tiny", "mixed", "huge"])
def test_one_example_moves_the_sum_by_at_most_the_clip_bound_whatever_is_known(scale: Vector, weight: float) -> None:
    """Also for a neighbour that was made to break it: huge where A is tiny."""
    at = PublicState(np.full(4, 0.3), np.zeros(4), Known(scale=scale, momentum=np.array([5.0, -1.0, 0.0, 1e3])))
    rows, targets = np.vstack([X, [1e8, -1e8, 1e8, 1e8]]), np.append(Y, 1.0)
    query = preconditioned_gradient(weight)
    whole = linear_oracle(rows, targets)
    for clip in (1e-6, 0.5, 1e6):
        for row in (0, 60):
            kept = np.arange(61) != row
            other = linear_oracle(rows[kept], targets[kept])
            check_bounded(l2(clip), query(whole, None, at), [query(other, None, at)])


def test_clipping_before_dividing_would_be_caught() -> None:
    """The deliberate violation: divide after the clip, and one example moves the sum by C/A."""

    class Divided(Materialized):
        def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Vector | None = None) -> Vector:
            return super().clipped_sum(clip, weight) / np.array([1.0, 2.0, 0.5, 0.02])

    def gradients(rows: Vector) -> Divided:
        return Divided(
            np.stack(
                [
                    linear_oracle(X[rows], Y[rows])(np.zeros(4), np.array([row])).weighted_sum(np.ones(1))
                    for row in range(rows.sum())
                ]
            )
        )

    everyone = np.ones(60, dtype=bool)
    others = [gradients(np.arange(60) != row) for row in range(60)]
    with pytest.raises(AssertionError):
        check_bounded(l2(0.01), gradients(everyone), others)


class Watched:
    """Side information that keeps what it told, and where."""

    def __init__(self, side: SideInformation) -> None:
        self._side, self.told = side, list[tuple[Vector, Known]]()
        self.start, self.observe, self.offers = side.start, side.observe, offers_of(side)

    def at(self, parameters: Vector, state: State, round_: int) -> tuple[Known, State]:
        known, state = self._side.at(parameters, state, round_)
        self.told.append((parameters.copy(), known))
        return known, state


@pytest.mark.parametrize("rule", ["rmsprop", "adagrad", "adam"])
def test_what_was_known_in_a_run_public_rows_alone_give_at_its_iterates(rule: Any) -> None:
    recipe = adadps(**BESIDE, rule=rule)
    watched = Watched(recipe.side)
    run(replace(recipe, side=watched), linear_oracle(X, Y), np.zeros(4), rng=generator(5))
    state = recipe.side.start(np.zeros(4))
    for round_, (theta, (_, scale, momentum)) in enumerate(
        watched.told[1:]
    ):  # before the first round it is asked once; answers are not observed
        (_, same, same_momentum), state = recipe.side.at(theta, state, round_)
        np.testing.assert_array_equal(scale, same)
        np.testing.assert_array_equal(momentum, same_momentum)


# ---------------------------------------------------------------- refused, and killed


def test_without_side_information_or_with_two_adadps_says_what_it_needs() -> None:
    with pytest.raises(CompositionError, match="neither is given"):
        adadps(**COMMON)
    with pytest.raises(CompositionError, match="both are given"):
        adadps(**COMMON, public=PUBLIC, scale=np.ones(4))
    with pytest.raises(CompositionError, match="one of rmsprop, adagrad, adam"):
        adadps(**COMMON, public=PUBLIC, rule="adadelta")  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [[1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [math.inf, 1.0]], ids=str)
def test_a_scale_that_is_not_positive_is_refused(scale: list[float]) -> None:
    with pytest.raises(CompositionError, match="finite number > 0"):
        adadps(**COMMON, scale=np.array(scale))


def test_a_warm_start_does_not_take_batches_whose_epoch_its_public_rounds_would_shift() -> None:
    """Disjoint batches pay for an epoch in its first round, which the public rounds before could be."""
    with pytest.raises(CompositionError, match="disjoint_batches"):
        warm_start(**COMMON, public=PUBLIC, sampling=disjoint_batches(4, key=0))


def test_a_warm_start_that_cannot_pay_for_one_private_round_does_nothing() -> None:
    ledger = Ledger(Budget(0.01, 1e-6))
    with pytest.raises(BudgetExceeded):
        run(warm_start(**COMMON, public=PUBLIC), linear_oracle(X, Y), np.zeros(4), spending=ledger.run())
    assert ledger.entries == ()


def _ideal(**agreed: Any) -> Recipe:
    return ideal(**COMMON, **agreed)


def _adas(**agreed: Any) -> Recipe:
    return adas(rounds=ROUNDS, learning_rate=RATE, public=PUBLIC, **agreed)


NOT_PRIVATE: dict[str, Callable[..., Recipe]] = {"ideal": _ideal, "adas": _adas}


@pytest.mark.parametrize("name", NOT_PRIVATE)
def test_a_method_without_privacy_has_to_be_asked_for_in_so_many_words(name: str) -> None:
    for agreed in ({}, {"without_privacy": False}, {"without_privacy": 1}):
        with pytest.raises(CompositionError, match="no privacy guarantee"):
            NOT_PRIVATE[name](**agreed)
    recipe = NOT_PRIVATE[name](without_privacy=True)
    assert recipe.planned_event() == SelfComposedDpEvent(NonPrivateDpEvent(), ROUNDS)
    ledger = Ledger()
    assert run(recipe, linear_oracle(X, Y), np.zeros(4), spending=ledger.run()).event == recipe.planned_event()
    assert ledger.epsilon(0.1) == math.inf


@pytest.mark.parametrize("name", NOT_PRIVATE)
def test_a_ledger_with_a_budget_refuses_a_method_without_privacy(name: str) -> None:
    ledger = Ledger(Budget(1e6, 0.5))
    with pytest.raises(BudgetExceeded):
        run(NOT_PRIVATE[name](without_privacy=True), linear_oracle(X, Y), np.zeros(4), spending=ledger.run())
    assert ledger.entries == ()


RESUMED: dict[str, Callable[[], Recipe]] = {
    **RECIPES,
    "warm_start": lambda: warm_start(**SAMPLED, public=PUBLIC, public_epochs=2),
    **WITHOUT_PRIVACY,
}


@pytest.mark.parametrize("name", RESUMED)
def test_an_interrupted_run_goes_on_to_the_same_model_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privopt.loop, "DURABILITY", 1e9)  # a checkpoint after every round
    whole = run(RESUMED[name](), linear_oracle(X, Y), np.zeros(4), rng=generator(7))

    def go_on(stop: int | None) -> Vector:
        checkpoint = Checkpoint(tmp_path / "checkpoint", "")
        with Ledger(path=tmp_path / "ledger") as ledger:
            run_name, rng = checkpoint.begin(ledger.run().name, generator(7))
            spending = ledger.run(run_name)
            return run(
                RESUMED[name](),
                linear_oracle(X, Y),
                np.zeros(4),
                spending=spending,
                rng=rng,
                checkpoint=checkpoint,
                progress=StopAt(stop),
            ).parameters

    for stop in (2, 7, 19):
        with pytest.raises(Stopped):
            go_on(stop)
    np.testing.assert_array_equal(go_on(None), whole.parameters)
    assert Ledger.read(tmp_path / "ledger").event == whole.event


# ---------------------------------------------------------------- misprints


def test_a_scale_by_tf_idf_is_inverse_to_the_score() -> None:
    """Section 4 of the paper says that A is proportional to TF-IDF values, section 6.1.2 that it is inversely proportional; the
    second is what its experiments do."""
    counts = np.array([[3, 1, 0], [3, 0, 0], [2, 1, 0], [4, 0, 1]])  # the first word is everywhere, the third almost nowhere
    shares = (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
    scores = shares * (np.log(5 / ((counts > 0).sum(axis=0) + 1)) + 1)
    np.testing.assert_allclose(tf_idf(counts) * scores, scores.max(), rtol=1e-12)
