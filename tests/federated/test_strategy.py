"""The strategy wrapper: what reaches the wrapped strategy is private, and paid for before."""

import copy
import logging
import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'privopt[federated]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import privopt.federated.strategy as module
from privopt.errors import BudgetExceeded, CompositionError, InputError, LedgerError, PrivoptError
from privopt.federated.strategy import NodeMean, PrivateStrategy
from privopt.measure.mechanisms import gaussian
from privopt.measure.randomness import Rng, generator
from privopt.perexample.grads import Vector
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, compose
from privopt.privacy.ledger import Ledger
from tests.federated.in_process import START, Nodes, learners, trained
from tests.processes import answered, one_fork_server, wait_for

FALSE_ALARM = 1e-6  # of each statistical check; seeds are fixed, so a check that passed once passes always
BUDGET = Budget(8.0, 1e-5, unit="user")
SETTINGS: dict[str, Any] = {"budget": BUDGET, "rounds": 4, "cohort": 5, "population": 5, "clip_bound": 1.0}


def private(strategy: Strategy | None = None, **settings: Any) -> PrivateStrategy:
    return PrivateStrategy(FedAvg() if strategy is None else strategy, **(SETTINGS | settings))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Rounds log ε, which takes a while to compute."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.WARNING)
    yield
    log.setLevel(level)


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism hands on the exact mean, so that a test can see it."""
    monkeypatch.setattr(gaussian, "release", lambda self, total, bound, rng: total)


def configured(strategy: PrivateStrategy, grid: Nodes, arrays: ArrayRecord = START, round_: int = 1) -> list[Message]:
    return strategy.configure_train(round_, arrays, ConfigRecord(), grid)


def vector(arrays: ArrayRecord | None) -> Vector:
    assert arrays is not None
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


def mean_of(
    replies: Callable[[list[Message]], Iterable[Message]], arrays: ArrayRecord = START, nodes: int = 5, **settings: Any
) -> Vector:
    """The change that the wrapped strategy is handed in one round of these nodes: FedAvg of one reply is that reply."""
    strategy = private(**({"cohort": nodes, "population": nodes} | settings))
    messages = configured(strategy, learners(nodes), arrays)
    result, metrics = strategy.aggregate_train(1, replies(messages))
    assert not metrics
    return vector(result) - vector(arrays)


# ---------------------------------------------------------------- law 1: how far one node moves the sum

numbers = st.one_of(st.floats(-5, 5), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e200, 1e-300, 0.0]))
changes = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5)
bounds = st.sampled_from([1e-6, 0.3, 1.0, 50.0])


def check_bounded(moves: list[list[float]], clip_bound: float) -> None:
    """Without one node's reply, the mean that is handed on differs by at most C/b."""

    def all_but(left_out: int | None) -> Vector:
        def replies(messages: list[Message]) -> list[Message]:
            pairs = zip(messages, moves, strict=False)
            return [trained(message, np.array(move)) for place, (message, move) in enumerate(pairs) if place != left_out]

        return mean_of(replies, clip_bound=clip_bound)

    whole = all_but(None)
    assert np.isfinite(whole).all()
    for place in range(len(moves)):
        assert np.linalg.norm(whole - all_but(place)) <= clip_bound / 5 * (1 + 1e-9)


@pytest.mark.usefixtures("without_noise")
@given(changes, bounds)
def test_one_node_moves_the_mean_by_at_most_the_bound_over_the_expected_number(
    moves: list[list[float]], clip_bound: float
) -> None:
    check_bounded(moves, clip_bound)


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize(
    "broken",
    [
        lambda change, clip, total, weight: total if change is None else total + weight * change,
        lambda change, clip, total, weight: (
            total if change is None else total + weight * np.clip(change, -clip.bound, clip.bound)
        ),
    ],
    ids=["no clip", "each coordinate by itself"],
)
def test_a_wrong_clip_is_detected(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "add_clipped", broken)
    with pytest.raises(AssertionError):
        check_bounded([[3.0, 4.0, 1.0]], 1.0)


def damaged(data: bytes) -> Array:
    return Array("float64", (3,), "numpy.ndarray", data)


def of_arrays(**arrays: Array) -> Callable[[Message], list[Message]]:
    weight = MetricRecord({"num-examples": 1})
    return lambda message: [Message(RecordDict({"arrays": ArrayRecord(arrays), "m": weight}), reply_to=message)]


B = Array(np.zeros((1, 2)))
USELESS: dict[str, Callable[[Message], list[Message]]] = {
    "NaN": lambda message: [trained(message, np.array([1.0, math.nan, 0.0]))],
    "infinite": lambda message: [trained(message, np.array([1.0, -math.inf, 0.0]))],
    "norm overflows": lambda message: [trained(message, np.full(3, 1e300))],
    "missing": lambda message: [],
    "an error": lambda message: [Message(Error(2, "out of memory"), reply_to=message)],
    "twice": lambda message: [trained(message, np.ones(3)), trained(message, np.ones(3))],
    "wrong shape": lambda message: [trained(message, np.ones(4))],
    "transposed": of_arrays(w=Array(np.ones((3, 1))), b=B),
    "array missing": of_arrays(w=Array(np.ones(3))),
    "array too many": of_arrays(w=Array(np.ones(3)), b=B, c=B),
    "other name": of_arrays(w=Array(np.ones(3)), B=B),
    "complex": of_arrays(w=Array(np.full(3, 1j)), b=B),
    "words": of_arrays(w=Array(np.array(["a", "b", "c"])), b=B),
    "garbage": of_arrays(w=damaged(b"garbage"), b=B),
    "no bytes": of_arrays(w=damaged(b""), b=B),
    "an archive": of_arrays(w=damaged(b"PK\x03\x04" + bytes(50)), b=B),
    "a header of a huge array": of_arrays(
        w=damaged(b"\x93NUMPY\x01\x00F\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999,), }\n"), b=B
    ),
    "other encoding": of_arrays(w=Array("float64", (3,), "torch", b"abc"), b=B),
    "no arrays": lambda message: [Message(RecordDict({"m": MetricRecord({"num-examples": 1})}), reply_to=message)],
    "two records": lambda message: [Message(RecordDict({"a": START, "b": START}), reply_to=message)],
}


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("kind", USELESS)
def test_a_reply_that_is_no_finite_model_counts_as_no_change_and_hurts_nobody_else(kind: str) -> None:
    def replies(messages: list[Message]) -> list[Message]:
        return [trained(messages[0], np.array([0.5, 0.0, 0.0])), *USELESS[kind](messages[1])]

    np.testing.assert_allclose(mean_of(replies), [0.1, 0, 0, 0, 0])


@pytest.mark.usefixtures("without_noise")
def test_a_reply_of_a_node_that_was_not_drawn_counts_for_nothing() -> None:
    stranger = Message(RecordDict({"arrays": START}), dst_node_id=77, message_type="train")
    np.testing.assert_array_equal(mean_of(lambda _: [trained(stranger, np.ones(3))]), np.zeros(5))


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("weight", [0, 1, 10**12, -5.0, math.nan])
def test_the_numbers_of_examples_that_nodes_report_change_nothing(weight: float) -> None:
    def replies(messages: list[Message]) -> list[Message]:
        return [trained(messages[0], np.array([0.5, 0, 0]), weight), trained(messages[1], np.array([0, 0.5, 0]), 1)]

    np.testing.assert_allclose(mean_of(replies), [0.1, 0.1, 0, 0, 0])


@pytest.mark.usefixtures("without_noise")
def test_the_sum_is_divided_by_the_expected_number_not_by_that_of_replies_or_of_connected_nodes() -> None:
    strategy = private(cohort=2.5, population=10, seed=3, accountant="rdp")
    messages = configured(strategy, learners(40))
    assert len(messages) not in (0, 2, 3)
    arrays, _ = strategy.aggregate_train(1, [trained(message, np.array([0.5, 0, 0])) for message in messages])
    np.testing.assert_allclose(vector(arrays), [0.5 * len(messages) / 2.5, 0, 0, 0, 0])


@pytest.mark.usefixtures("without_noise")
def test_the_order_in_which_replies_arrive_changes_no_bit() -> None:
    def replies(messages: list[Message]) -> list[Message]:
        return [trained(message, generator(place).standard_normal(3)) for place, message in enumerate(messages)]

    np.testing.assert_array_equal(mean_of(replies), mean_of(lambda messages: replies(messages)[::-1]))


@pytest.mark.usefixtures("without_noise")
def test_precision_shape_and_arrays_of_whole_numbers_stay_as_they_were_sent() -> None:
    start = ArrayRecord({"w": Array(np.zeros((2, 2), np.float32)), "s": Array(np.array(0.5)), "n": Array(np.array(7))})
    strategy = private()
    replies = []
    for message in configured(strategy, learners(5), start):
        arrays = {"n": Array(np.array(1000)), "w": Array(np.full((2, 2), 0.25)), "s": Array(np.array(0.5))}
        replies.append(Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message))
    result, _ = strategy.aggregate_train(1, replies)
    assert result is not None
    w, s, n = (result[name].numpy() for name in ("w", "s", "n"))
    assert (w.dtype.name, w.shape, s.shape, int(n)) == ("float32", (2, 2), (), 7)
    np.testing.assert_allclose(w, 0.25)


# ---------------------------------------------------------------- law 6: the stated noise, whoever replied

WIDE = ArrayRecord({"w": Array(np.zeros(20_000)), "b": Array(np.zeros((1, 2)))})


def check_noise(replying: int) -> None:
    """N(0, (zC/b)²) on each coordinate, however many nodes replied (with the model they were sent)."""
    strategy = private(clip_bound=0.5, seed=6)
    messages = configured(strategy, learners(5), WIDE)
    arrays, _ = strategy.aggregate_train(1, [trained(message, np.zeros(20_000)) for message in messages[:replying]])
    noise = vector(arrays) / (strategy.noise_multiplier * 0.5 / 5)
    assert stats.kstest(noise, stats.norm.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("replying", [0, 1, 5])
def test_the_noise_is_the_stated_one_however_many_nodes_reply(replying: int) -> None:
    check_noise(replying)


def halved(self: NodeMean, changes: Iterable[Vector | None], zero: Vector, rng: Rng) -> Any:
    return RELEASE(NodeMean(self.sampler, self.clip, gaussian(self.mechanism.noise_multiplier / 2), 5.0), changes, zero, rng)


def by_replies(self: NodeMean, changes: Iterable[Vector | None], zero: Vector, rng: Rng) -> Any:
    usable = [change for change in changes if change is not None]
    return RELEASE(NodeMean(self.sampler, self.clip, self.mechanism, float(max(1, len(usable)))), usable, zero, rng)


RELEASE = NodeMean.release


@pytest.mark.parametrize("broken", [halved, by_replies])
def test_halved_noise_and_noise_in_proportion_to_replies_are_detected(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeMean, "release", broken)
    with pytest.raises(AssertionError):
        check_noise(1)


def test_no_two_rounds_have_the_same_noise_and_a_seed_repeats_it() -> None:
    def run(seed: int | None) -> list[Vector]:
        strategy = private(seed=seed)
        rounds = []
        for round_ in (1, 2):
            configured(strategy, learners(5), round_=round_)
            rounds.append(vector(strategy.aggregate_train(round_, [])[0]))
        return rounds

    one, other, fresh = run(1), run(1), run(None)
    np.testing.assert_array_equal(one, other)
    assert not np.isclose([*one, *fresh][0], [*one[1:], *fresh]).any()


# ---------------------------------------------------------------- sampling


@pytest.mark.parametrize(
    "wrapped",
    [FedAvg(), FedAvg(fraction_train=0.1, min_train_nodes=1), FedAvg(min_train_nodes=200)],
    ids=["all", "a tenth", "at least 200"],
)
def test_coins_choose_the_nodes_and_the_wrapped_strategy_does_not(wrapped: FedAvg) -> None:
    """Each node's number of rounds, and each round's number of nodes, is binomial."""
    strategy = private(wrapped, cohort=20, population=200, rounds=60, seed=0, accountant="rdp")
    grid, drawn = learners(200), np.zeros((60, 200))
    for round_ in range(60):
        for message in configured(strategy, grid, round_=round_):
            assert message.metadata.message_type == "train"
            drawn[round_, message.metadata.dst_node_id - 1] += 1
        strategy.aggregate_train(round_, [])
    assert set(np.unique(drawn)) == {0, 1}
    assert stats.binomtest(int(drawn.sum()), drawn.size, 0.1).pvalue > FALSE_ALARM
    for totals, tosses in ((drawn.sum(0), 60), (drawn.sum(1), 200)):
        spread = (totals - 0.1 * tosses) ** 2 / (0.09 * tosses)
        assert FALSE_ALARM / 2 < stats.chi2(len(totals)).cdf(spread.sum()) < 1 - FALSE_ALARM / 2


def test_a_round_that_draws_nobody_is_a_round() -> None:
    strategy = private(cohort=1, population=1000, seed=1, accountant="rdp")
    assert configured(strategy, learners(3)) == []
    arrays, _ = strategy.aggregate_train(1, [])
    assert np.all(vector(arrays) != 0)
    assert strategy.rounds_left == 3
    assert strategy.epsilon() > 0


def test_the_wrapped_strategy_s_own_settings_reach_the_nodes() -> None:
    strategy = private(FedProx(proximal_mu=0.25), cohort=5)
    for message in strategy.configure_train(3, START, ConfigRecord({"lr": 0.5}), learners(5)):
        assert dict(message.content["config"]) == {"lr": 0.5, "proximal-mu": 0.25, "server-round": 3}
        assert message.content["arrays"] == START


# ---------------------------------------------------------------- post-processing


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("make", [FedAvg, FedProx, FedAvgM, FedAdam, FedYogi, FedAdagrad], ids=lambda make: make.__name__)
def test_without_noise_or_clipping_it_is_the_wrapped_strategy_on_equal_weights(make: Any) -> None:
    options: dict[str, Any] = {"server_learning_rate": 0.5, "server_momentum": 0.9} if make is FedAvgM else {}
    options |= {"proximal_mu": 0.1} if make is FedProx else {}
    plain, wrapped, grid = make(**options), private(make(**options), clip_bound=100.0), learners(5)
    ours = theirs = START
    for round_ in (1, 2, 3):
        theirs, _ = plain.aggregate_train(
            round_, grid.send_and_receive(plain.configure_train(round_, theirs, ConfigRecord(), grid))
        )
        result, _ = wrapped.aggregate_train(round_, grid.send_and_receive(configured(wrapped, grid, ours, round_)))
        assert result is not None
        ours = result
        np.testing.assert_allclose(vector(ours), vector(theirs), rtol=1e-9, atol=1e-12)
    assert np.any(vector(ours) != 0)


class Watching(FedAvg):
    """Keeps what it is given."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.given = list(replies)
        return super().aggregate_train(server_round, self.given)


def test_the_wrapped_strategy_is_given_one_reply_and_no_metrics(caplog: pytest.LogCaptureFixture) -> None:
    wrapped = Watching(weighted_by_key="rows")
    strategy = private(wrapped)
    for round_ in (1, 2):
        messages = configured(strategy, learners(5), round_=round_)
        result, metrics = strategy.aggregate_train(round_, [trained(message, np.ones(3), loss=3.5) for message in messages])
        (reply,) = wrapped.given
        assert {name: dict(record) for name, record in reply.content.metric_records.items()} == {"arrays-weight": {"rows": 1}}
        assert result == reply.content["arrays"]
        assert metrics is None
    assert caplog.text.count("metrics of clients are not private") == 1
    assert "3.5" not in caplog.text


def test_a_whole_run_by_flower_s_own_loop() -> None:
    strategy, grid = private(FedAdam(), cohort=3, ledger=Ledger(BUDGET), accountant="rdp"), learners(5)
    seen: list[int] = []

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(round_)
        return MetricRecord({"norm": float(np.linalg.norm(vector(arrays)))})

    result = strategy.start(grid, START, evaluate_fn=evaluate)
    assert seen == [0, 1, 2, 3, 4]
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    assert np.isfinite(vector(result.arrays)).all()
    assert strategy.rounds_left == 0
    with pytest.raises(PrivacyBudgetExhausted, match="spent"):
        configured(strategy, grid)


# ---------------------------------------------------------------- the account


@pytest.mark.parametrize(("cohort", "sampled"), [(5, False), (2, True)])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_planned_is_recorded_and_calibration_uses_the_budget(cohort: int, sampled: bool, neighbours: Any) -> None:
    budget = Budget(8.0, 1e-5, neighbours, "user")
    strategy = private(budget=budget, cohort=cohort, ledger=Ledger(budget))
    event = GaussianDpEvent(strategy.noise_multiplier)
    planned = SelfComposedDpEvent(PoissonSampledDpEvent(0.4, event) if sampled else event, 4)
    strategy.start(learners(5), START)
    assert strategy.ledger.event == compose([planned]) == strategy.statement().event
    assert 0.99 * 8.0 <= strategy.epsilon() == epsilon(planned, 1e-5, neighbours) <= 8.0


def test_epsilon_grows_round_by_round_and_the_statement_says_what_is_claimed() -> None:
    strategy, spent = private(seed=0), [0.0]
    for round_ in (1, 2):
        configured(strategy, learners(5), round_=round_)
        strategy.aggregate_train(round_, [])
        spent.append(strategy.epsilon())
    assert spent == sorted(set(spent))
    text = strategy.statement().text()
    for words in (
        "Unit: one user",
        "2 × Gaussian mechanism",
        "population: 5",
        "strategy: FedAvg",
        "no user to have two",
        "fixed seed",
    ):
        assert words in text
    assert "evaluation" not in text.partition("Not covered")[0]


def test_a_round_is_charged_before_noise_is_drawn_and_a_failed_one_stays_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = private(ledger=Ledger(BUDGET))
    grid = learners(5)

    def fail(self: gaussian, total: Vector, bound: float, rng: Rng) -> Vector:
        assert len(strategy.ledger.entries) == 1
        raise MemoryError

    messages = configured(strategy, grid)
    assert not strategy.ledger.entries
    with monkeypatch.context() as patch:
        patch.setattr(gaussian, "release", fail)
        with pytest.raises(MemoryError):
            strategy.aggregate_train(1, grid.send_and_receive(messages))
    with pytest.raises(CompositionError, match="no round is open"):
        strategy.aggregate_train(1, [])
    assert strategy.rounds_left == 3
    configured(strategy, grid)
    strategy.aggregate_train(1, [])
    assert sum(entry.count for entry in strategy.ledger.entries) == 2


def test_a_ledger_that_cannot_be_written_releases_nothing(tmp_path: Path) -> None:
    wrapped = Watching()
    strategy = private(wrapped, ledger=tmp_path / "ledger.jsonl")
    messages = configured(strategy, learners(5))
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="nothing more is released"):
        strategy.aggregate_train(1, learners(5).send_and_receive(messages))
    assert not hasattr(wrapped, "given")
    strategy.ledger.close()


def test_each_round_is_configured_once_then_aggregated_once() -> None:
    strategy = private()
    with pytest.raises(CompositionError, match="no round is open"):
        strategy.aggregate_train(1, [])
    configured(strategy, learners(5))
    with pytest.raises(CompositionError, match="round 1 was configured and not aggregated"):
        configured(strategy, learners(5), round_=2)
    with pytest.raises(CompositionError, match="round 1 is open"):
        strategy.aggregate_train(2, [])
    strategy.aggregate_train(1, [])
    with pytest.raises(CompositionError, match="no round is open"):
        strategy.aggregate_train(1, [])
    assert strategy.rounds_left == 3


def test_more_rounds_than_planned_are_refused_before_anything_is_spent() -> None:
    strategy = private()
    with pytest.raises(PrivacyBudgetExhausted, match="asked for 5 rounds, but 4 are left"):
        strategy.start(learners(5), START, num_rounds=5)
    assert strategy.epsilon() == 0


def test_a_ledger_that_others_used_holds_fewer_rounds() -> None:
    """Under a cap on all runs a filter decides, and another run of the same ledger can take what was left."""
    ledger = Ledger(Budget(11.0, 1e-5, unit="user"))
    private(ledger=ledger).start(learners(5), START)
    with pytest.raises(BudgetExceeded, match="all 4 rounds were run"):
        private(ledger=ledger)  # the same plan goes on where it stands, and it has ended
    one, other = private(ledger=ledger, clip_bound=2.0), private(ledger=ledger, clip_bound=3.0)
    assert 0 < one.rounds_left == other.rounds_left < 4
    other.start(learners(5), START)
    configured(one, learners(5))
    with pytest.raises(PrivacyBudgetExhausted, match="exceed the ledger's budget"):
        one.aggregate_train(1, [])
    with pytest.raises(BudgetExceeded, match="not one round fits"):
        private(ledger=ledger, clip_bound=4.0)


def test_each_round_logs_what_is_spent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    strategy = private()
    strategy.summary()
    configured(strategy, learners(5))
    strategy.aggregate_train(1, [])
    assert f"ε = {strategy.epsilon():.3f} spent of the budget, ε = 8, δ = 1e-05" in caplog.text
    assert "Rounds: 4 left of 4" in caplog.text
    assert "Evaluation on nodes: off" in caplog.text


def test_a_copy_would_repeat_the_noise_and_is_refused() -> None:
    strategy = private()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(CompositionError, match="same noise"):
            copied(strategy)


# ---------------------------------------------------------------- a killed server


class Dying(FedAvg):
    """Says that it has the private reply, and waits to be killed."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self.connection = connection

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if server_round == 2:
            self.connection.send(True)
            wait_for(lambda: False)
        return super().aggregate_train(server_round, replies)


def serve(connection: Any, path: Path) -> None:
    private(Dying(connection), ledger=path).start(learners(5), START)


@one_fork_server
def test_a_killed_server_finds_its_rounds_charged_and_pays_for_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert answered(serve, path)  # killed inside its second round, by SIGKILL
    again = private(ledger=path)
    assert (again.rounds_left, sum(entry.count for entry in again.ledger.entries)) == (2, 2)
    spent = again.epsilon()
    again.start(learners(5), START)
    assert spent < again.epsilon() <= 8.0
    assert sum(entry.count for entry in again.ledger.entries) == 4
    again.ledger.close()
    with pytest.raises(BudgetExceeded, match="all 4 rounds were run"):
        private(ledger=path)


@pytest.mark.parametrize("other", [{"rounds": 5}, {"cohort": 3, "accountant": "rdp"}])
def test_a_ledger_that_is_reserved_for_one_plan_takes_no_other(other: dict[str, Any]) -> None:
    ledger = Ledger(BUDGET)
    strategy = private(ledger=ledger)
    configured(strategy, learners(5))
    strategy.aggregate_train(1, [])
    with pytest.raises(BudgetExceeded, match="planned with other settings"):
        private(ledger=ledger, **other)
    assert len(ledger.entries) == 1


# ---------------------------------------------------------------- evaluation


def test_nodes_are_asked_for_no_evaluation() -> None:
    strategy, grid = private(), learners(5)
    assert list(strategy.configure_evaluate(1, START, ConfigRecord(), grid)) == []
    message = Message(RecordDict({"arrays": START}), dst_node_id=1, message_type="evaluate")
    assert strategy.aggregate_evaluate(1, [trained(message, np.ones(3), loss=1.0)]) is None


def test_unaccounted_evaluation_is_allowed_by_name_and_named_in_the_statement() -> None:
    strategy, grid = private(unaccounted_evaluation=True), learners(5)
    messages = list(strategy.configure_evaluate(1, START, ConfigRecord(), grid))
    assert {message.metadata.message_type for message in messages} == {"evaluate"}
    metrics = strategy.aggregate_evaluate(1, [trained(message, np.ones(3), loss=1.0) for message in messages])
    assert metrics == MetricRecord({"loss": 1.0})
    assert "metrics that nodes report on evaluation: they leave, and nothing pays" in strategy.statement().text()


# ---------------------------------------------------------------- what makes no sense


class OwnStart(FedAvg):
    def start(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (Krum, "chooses among the replies"),
    (MultiKrum, "chooses among the replies"),
    (Bulyan, "chooses among the replies"),
    (FedMedian, "chooses among the replies"),
    (FedTrimmedAvg, "chooses among the replies"),
    (lambda: QFedAvg(client_learning_rate=0.1), "training losses"),
    (FedXgbBagging, "trees"),
    (FedXgbCyclic, "trees"),
    (lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 5), "noise of its own"),
    (lambda: DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 1.0, 50), "noise of its own"),
    (private, "private already"),
    (OwnStart, "would not be called"),
    (lambda: FedAvg(train_metrics_aggr_fn=lambda records, key: MetricRecord()), "leave it out"),
    (lambda: "FedAvg", "such as FedAvg"),
]


@pytest.mark.parametrize(("make", "words"), REFUSALS)
def test_strategies_that_one_private_reply_makes_no_sense_for_are_refused(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(PrivoptError, match=words):
        private(make(), ledger=tmp_path / "ledger.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget": Budget(8.0, 1e-5)}, "unit='user'"),
        ({"budget": Budget(8.0, unit="user")}, "delta is 0"),
        ({"budget": 8.0}, "it is a Budget"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 2.5}, r"rounds is 2\.5"),
        ({"cohort": 0.5}, r"cohort is 0\.5"),
        ({"budget": Budget(8.0, 0.2, unit="user")}, "publishing 1 of the 5 users"),
        ({"cohort": 6}, "cohort is 6"),
        ({"cohort": math.nan}, "cohort is nan"),
        ({"population": 2.5}, r"population is 2\.5"),
        ({"clip_bound": 0.0}, r"clip_bound is 0\.0"),
        ({"clip_bound": math.inf}, "clip bound"),
        ({"ledger": Ledger(Budget(8.0, 1e-5))}, "the budget is for"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PrivoptError, match=words):
        private(**settings)


class Talking(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        return grid.send_and_receive([])


class Personal(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Iterator[Message]:
        for node in grid.get_node_ids():
            yield Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"node": node})}), node, "train")


class Querying(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> list[Message]:
        return [Message(RecordDict({"arrays": arrays}), 1, "query")]


class TwoModels(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> list[Message]:
        return [Message(RecordDict({"arrays": arrays, "teacher": arrays}), 1, "train")]


@pytest.mark.parametrize(
    ("wrapped", "words"),
    [
        (FedAvg(fraction_train=0.0), "fraction_train 0"),
        (Talking(), "exchanges messages"),
        (Personal(), "different messages"),
        (Querying(), "'query'"),
        (TwoModels(), "several ArrayRecords"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_strategy_may_not_do_in_a_round_is_refused_before_it_is_paid(wrapped: FedAvg, words: str) -> None:
    strategy = private(wrapped)
    with pytest.raises(CompositionError, match=words):
        configured(strategy, learners(5))
    assert strategy.epsilon() == 0


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (ArrayRecord({"n": Array(np.array([1, 2]))}), "no array of floating-point"),
        (ArrayRecord({"w": Array(np.array([math.nan]))}), "not finite"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(arrays: ArrayRecord, words: str) -> None:
    with pytest.raises(InputError, match=words):
        configured(private(), learners(5), arrays)
