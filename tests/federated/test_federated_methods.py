"""Federated methods: without noise and clipping they are their non-private counterparts; what is planned is what is recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt.errors import BudgetExceeded, CompositionError, InputError, LedgerError
from privopt.federated.nodes import FederatedOracle, NodesInProcess
from privopt.federated.training import FederatedSettings, train_federation
from privopt.linear_model import LogisticRegression
from privopt.loop import run
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods import METHODS
from privopt.methods.dp_fedavg import dp_fedavg
from privopt.methods.dp_sgd import dp_sgd
from privopt.methods.fed_adadps import fed_adadps
from privopt.methods.problem import SideFacts
from privopt.perexample.design import Design, Frame
from privopt.perexample.linear_oracle import LinearOracle, PublicRows
from privopt.perexample.losses import Logistic
from privopt.perexample.user_vectors import LinearUsers, group_rows
from privopt.postprocess.side_information import tf_idf, token_frequency
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger
from privopt.training.session import Session
from tests.federated.federations import COLUMNS, facts, linear_users, oracle

LOCAL = {"local_steps": 3, "local_rate": 0.5, "local_batch": 100}
EXACT = {"noise_multiplier": 0.0, "clip_bound": 1e9}
FEDERATED = [name for name, method in METHODS.items() if "federated" in method.models]


def rows_of(users: int = 12) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(4)
    ids = np.repeat(np.arange(users), rng.integers(1, 6, users))
    matrix = rng.standard_normal((len(ids), COLUMNS))
    return matrix, (matrix[:, 0] > 0).astype(float), ids


def federated_averaging(rounds: int, rate: float, momentum: float, scale: Any = 1.0) -> Any:
    """FedAvg with server momentum, the obvious slow way."""
    matrix, targets, ids = rows_of()
    matrix = np.hstack([matrix, np.ones((len(matrix), 1))])
    w, velocity = np.zeros(COLUMNS + 1), np.zeros(COLUMNS + 1)
    for _ in range(rounds):
        changes = []
        for user in np.unique(ids):
            own, local = ids == user, w.copy()
            for _ in range(3):
                residual = 1 / (1 + np.exp(-matrix[own] @ local)) - targets[own]
                local -= 0.5 * (residual @ matrix[own] / own.sum()) / scale
            changes.append(local - w)
        velocity = momentum * velocity + np.mean(changes, axis=0)
        w = w + rate * velocity
    return w


def federation() -> FederatedOracle:
    matrix, targets, ids = rows_of()
    parts = [ids % 2 == 0, ids % 2 == 1]
    nodes = [LinearUsers(matrix[part], targets[part], group_rows(ids[part]), Logistic(), intercept=1.0) for part in parts]
    return FederatedOracle(NodesInProcess(nodes), COLUMNS + 1)


def test_without_noise_or_clipping_dp_fedavg_is_federated_averaging() -> None:
    recipe = dp_fedavg(rounds=5, learning_rate=0.7, momentum_decay=0.9, **EXACT, **LOCAL)  # type: ignore[arg-type]
    found = run(recipe, federation(), np.zeros(COLUMNS + 1)).parameters
    np.testing.assert_allclose(found, federated_averaging(5, 0.7, 0.9))


def test_without_noise_or_clipping_fed_adadps_divides_local_steps() -> None:
    scale = np.array([1.0, 0.1, 3.0, 0.5])
    recipe = fed_adadps(rounds=4, learning_rate=0.7, momentum_decay=0.0, scale=scale, **EXACT, **LOCAL)  # type: ignore[arg-type]
    found = run(recipe, federation(), np.zeros(COLUMNS + 1)).parameters
    np.testing.assert_allclose(found, federated_averaging(4, 0.7, 0.0, scale))


def test_without_noise_or_clipping_dp_fedadam_is_adam_on_mean_changes() -> None:
    recipe = METHODS["dp-fedadam"].recipe(rounds=1, learning_rate=0.1, stability=0.0, **EXACT, **LOCAL)
    found = run(recipe, federation(), np.zeros(COLUMNS + 1)).parameters
    np.testing.assert_allclose(found, 0.1 * np.sign(federated_averaging(1, 1.0, 0.0)))  # as Adam's first step is


def test_one_user_per_row_and_one_step_are_gradient_descent_on_rows() -> None:
    """The federation reduces to DP-SGD: the same noise, drawn in the same order, gives the same model."""
    matrix, targets, _ = rows_of()
    users = LinearUsers(matrix, targets, group_rows(np.arange(len(matrix))), Logistic(), intercept=1.0)
    settings: dict[str, Any] = {"rounds": 6, "noise_multiplier": 1.5, "clip_bound": 0.4, "learning_rate": 0.3}
    federated = dp_fedavg(**settings, momentum_decay=0.0, local_steps=1, local_rate=1.0, sampling=poisson(0.5))
    rows = dp_sgd(**settings, sampling=poisson(0.5))
    found = run(federated, FederatedOracle(NodesInProcess([users]), COLUMNS + 1), np.zeros(COLUMNS + 1), rng=generator(3))
    other = run(rows, LinearOracle(Design(matrix, Frame()), targets, Logistic()), np.zeros(COLUMNS + 1), rng=generator(3))
    np.testing.assert_allclose(found.parameters, other.parameters)
    assert found.event == other.event


def test_how_users_are_spread_over_nodes_does_not_matter() -> None:
    recipe = dp_fedavg(rounds=3, noise_multiplier=1.0, clip_bound=0.5, learning_rate=0.3, **LOCAL)  # type: ignore[arg-type]
    apart = run(recipe, oracle([linear_users(5, 1), linear_users(4, 2)]), np.zeros(4), rng=generator(0)).parameters
    together = run(recipe, oracle([linear_users(5, 1), linear_users(4, 2), linear_users(0, 3)]), np.zeros(4), rng=generator(0))
    np.testing.assert_array_equal(apart, together.parameters)


@pytest.mark.parametrize("noise", ["server", "shares"])
@pytest.mark.parametrize("method", FEDERATED)
def test_a_session_trains_each_method_within_the_budget_and_states_the_unit(method: str, noise: str) -> None:
    options: dict[str, Any] = {"noise": noise}
    known = facts()
    if method == "fed-adadps":
        known = replace(known, side=SideFacts(None, np.array([1.0, 0.5, 0.5, 1.0]), 3.0, 0.0))
        options["scale"] = "known"
    ledger = Ledger(Budget(8.0, 1e-3, unit="user"))
    session = Session(Budget(8.0, 1e-3, unit="user"), 12, ledger=ledger, seed=0)
    nodes = NodesInProcess([linear_users(7, 1), linear_users(5, 2)], seed=1)
    settings = FederatedSettings(method, rounds=4, cohort=6, options=options)
    released, statement = train_federation(nodes, np.zeros(4), known, settings, session)
    assert np.isfinite(released.parameters).all()
    assert ledger.event == statement.event
    assert 0.98 * 8 <= statement.epsilon <= 8
    assert "Unit: one user" in statement.text()
    assert ("secure aggregation" in statement.text()) == (noise == "shares")


COUNTS = np.array([[3, 0, 1, 1], [1, 2, 0, 1], [2, 0, 0, 1]])  # words of a public corpus, the last in every document
PUBLIC = PublicRows(Design(COUNTS[:, :3] / 4.0, Frame()), np.array([1.0, 0.0, 1.0]), Logistic(), 2)


@pytest.mark.parametrize(
    ("options", "side"),
    [
        ({"scale": [1.0, 0.5, 0.25, 1.0]}, None),
        ({"scale": token_frequency(COUNTS)}, None),
        ({"scale": tf_idf(COUNTS)}, None),
        ({}, SideFacts(PUBLIC, None, 3.0, 0.1)),
        ({"rule": "adagrad"}, SideFacts(PUBLIC, None, 3.0, 0.1)),
    ],
    ids=["fixed", "token frequency", "tf-idf", "public rows", "public rows, adagrad"],
)
def test_each_kind_of_side_information_trains_within_the_budget(options: Any, side: Any) -> None:
    session = Session(Budget(8.0, 1e-3, unit="user"), 12, seed=0)
    settings = FederatedSettings("fed-adadps", rounds=3, options=options)
    nodes = NodesInProcess([linear_users(7, 1), linear_users(5, 2)])
    released, statement = train_federation(nodes, np.zeros(4), replace(facts(), side=side), settings, session)
    assert np.isfinite(released.parameters).all()
    assert 0.98 * 8 <= statement.epsilon <= 8
    assert ("the scale by which local steps are divided" in statement.text()) == (side is None)


@pytest.mark.parametrize("scale", [np.ones(3), np.ones((2, 2)), "frequent", [1.0, 0.0, 1.0, 1.0], [1.0, np.nan, 1.0, 1.0], None])
def test_a_scale_is_a_number_above_0_for_each_parameter(scale: Any) -> None:
    ledger = Ledger()
    session = Session(Budget(8.0, 1e-3, unit="user"), 12, ledger=ledger)
    settings = FederatedSettings("fed-adadps", rounds=3, options={"scale": scale})
    with pytest.raises((InputError, CompositionError), match="scale"):
        train_federation(oracle()._nodes, np.zeros(4), facts(), settings, session)
    assert not ledger.entries


def test_the_listing_s_noise_is_priced_as_what_it_is() -> None:
    """σ = 0.3 on each of 20 devices is a noise multiplier of 1.34 on the sum, and not of 0.3, as the paper has it."""
    settings = {"rounds": 100, "clip_bound": 1.0, "learning_rate": 1.0, **LOCAL, "sampling": poisson(20 / 400)}
    listing = dp_fedavg(noise_multiplier=9.9, noise="paper", device_noise=0.3, cohort=20, **settings)  # type: ignore[arg-type]
    claimed = dp_fedavg(noise_multiplier=0.3, **settings)  # type: ignore[arg-type]
    assert listing.planned_event() == dp_fedavg(noise_multiplier=0.3 * 20**0.5, **settings).planned_event()  # type: ignore
    assert epsilon(listing.planned_event(), 1 / 400) < 4 < 30 < epsilon(claimed.planned_event(), 1 / 400)


def test_noise_that_is_not_said_whole_is_refused() -> None:
    settings: dict[str, Any] = {"rounds": 2, "noise_multiplier": 1.0, "clip_bound": 1.0, "learning_rate": 1.0, **LOCAL}
    for wrong in ({"noise": "paper"}, {"device_noise": 0.3}, {"noise": "nobody"}, {"noise": "paper", "device_noise": 0.3}):
        with pytest.raises(CompositionError):
            dp_fedavg(**settings, **wrong)
    with pytest.raises(CompositionError, match="clipping"):
        dp_fedavg(**settings, clipping="sometimes")  # type: ignore[arg-type]


def test_adaptive_clipping_of_users_costs_the_same() -> None:
    settings: dict[str, Any] = {"rounds": 4, "noise_multiplier": 2.0, "clip_bound": 1.0, "learning_rate": 1.0, **LOCAL}
    adaptive, fixed = dp_fedavg(**settings, clipping="adaptive"), dp_fedavg(**settings)
    assert adaptive.planned_event() == fixed.planned_event()
    assert run(adaptive, oracle(), np.zeros(4), rng=generator(0)).event == fixed.planned_event()


# ---------------------------------------------------------------- refused before anything is paid


def test_recipes_of_rows_and_of_users_are_refused_on_each_other_s_oracles() -> None:
    from tests.problems import Unreadable

    ledger = Ledger()
    rows = dp_sgd(rounds=2, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
    users = dp_fedavg(rounds=2, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1, **LOCAL)  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="do not leave the nodes"):
        run(rows, oracle(), np.zeros(4), spending=ledger.run())
    with pytest.raises(CompositionError, match="asks the users of a federation"):
        run(users, Unreadable(), np.zeros(2), spending=ledger.run())
    assert not ledger.entries


@pytest.mark.parametrize("method", FEDERATED)
def test_federated_methods_are_refused_by_estimators(method: str) -> None:
    with pytest.raises(InputError, match="users of a federation"):
        LogisticRegression(epsilon=1.0, method=method).fit(np.zeros((10, 2)), np.arange(10) % 2)


@pytest.mark.parametrize(
    ("settings", "budget", "message"),
    [
        (FederatedSettings("dp-sgd"), Budget(1.0, 1e-3, unit="user"), "federations"),
        (FederatedSettings(cohort=13), Budget(1.0, 1e-3, unit="user"), "has 12 users"),
        (FederatedSettings(), Budget(1.0, 0.0, unit="user"), "delta"),
        (FederatedSettings(), Budget(1.0, 1e-3), "one user"),
        (FederatedSettings(options={"local_step": 1}), Budget(1.0, 1e-3, unit="user"), "no option"),
        (FederatedSettings("fed-adadps"), Budget(1.0, 1e-3, unit="user"), "needs public data"),
    ],
)
def test_what_a_federation_cannot_be_trained_with_is_refused(settings: Any, budget: Budget, message: str) -> None:
    ledger = Ledger()
    with pytest.raises((InputError, CompositionError), match=message):
        train_federation(oracle()._nodes, np.zeros(4), facts(), settings, Session(budget, 12, ledger=ledger))
    assert not ledger.entries


def test_noise_of_the_listing_that_costs_too_much_is_refused() -> None:
    """The error says which would do, and that does."""

    def train(device_noise: float) -> Any:
        settings = FederatedSettings(rounds=3, options={"noise": "paper", "device_noise": device_noise})
        session = Session(Budget(2.0, 1e-3, unit="user"), 12)
        return train_federation(oracle()._nodes, np.zeros(4), facts(), settings, session)[1]

    with pytest.raises(BudgetExceeded, match=r"device_noise=0\.1 costs epsilon = ") as error:
        train(0.1)
    enough = float(str(error.value).partition("≥ ")[2].partition(" ")[0])
    assert 1.8 < train(enough).epsilon <= 2.0


# ---------------------------------------------------------------- iterates are shown, so noise is not repeated on them


class Stopped(Exception):
    """The server was killed."""


def start(folder: Path, ledger: Ledger, stop_after: int | None, seen: list[Any], missing: bool = False) -> Any:
    """A run of six rounds that is killed when it has asked so often; `seen` are the iterates that nodes were sent."""
    from privopt.checkpoint import Checkpoint

    honest = NodesInProcess([linear_users(7, 1), linear_users(5, 2)])

    class Watched:
        sizes = honest.sizes

        def ask(self, requests: Any) -> Any:
            if stop_after is not None and len(seen) == stop_after:
                raise Stopped
            seen.append(next(iter(requests.values())).parameters.copy())
            replies = honest.ask(requests)
            return {1: replies[1]} if missing else replies

    settings = FederatedSettings(rounds=6)
    session = Session(Budget(4.0, 1e-3, unit="user"), 12, ledger=ledger, seed=2, checkpoint=Checkpoint(folder, "same"))
    return train_federation(Watched(), np.zeros(4), facts(), settings, session)[0].parameters


def test_a_killed_server_goes_on_from_the_round_whose_answer_nobody_saw(tmp_path: Path) -> None:
    ledger, seen = Ledger(path=tmp_path / "ledger"), list[Any]()
    with pytest.raises(Stopped):
        start(tmp_path / "checkpoint", ledger, 3, seen)
    paid = len(ledger.entries)
    found = start(tmp_path / "checkpoint", ledger, None, seen, missing=True)  # a node is gone now
    assert np.isfinite(found).all()
    assert sum(entry.count for entry in ledger.entries) == 6
    assert paid >= 1
    assert len({tuple(iterate) for iterate in seen}) == 6  # no iterate was sent in two versions


def test_a_checkpoint_behind_what_was_shown_is_refused(tmp_path: Path) -> None:
    """The violation: noise of shown rounds would be repeated on other answers."""
    import shutil

    ledger, seen = Ledger(path=tmp_path / "ledger"), list[Any]()
    with pytest.raises(Stopped):
        start(tmp_path / "checkpoint", ledger, 2, seen)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    with pytest.raises(Stopped):
        start(tmp_path / "checkpoint", ledger, 4, seen)
    with pytest.raises(LedgerError, match="too old"):
        start(tmp_path / "older", ledger, None, seen)
    (tmp_path / "checkpoint" / "progress.npz").unlink()
    with pytest.raises(LedgerError, match="holds releases"):
        start(tmp_path / "checkpoint", ledger, None, seen)
