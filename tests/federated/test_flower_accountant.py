"""privopt's accountant behind Flower's protocol, alone and inside Flower's own strategy."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'privopt[federated]'")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from privopt.errors import BudgetExceeded, InputError, LedgerError
from privopt.federated.flower_accountant import PldAccountant
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, compose
from privopt.privacy.ledger import Ledger
from tests.federated.in_process import START, learners

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
PLAIN = PrivacyConfig(1e-5, 5, ADD_REMOVE, SamplingMethod.NO_AMPLIFICATION)
ONE = GaussianPrivacyEvent(noise_multiplier=2.0, sample_size=3, population_size=5)


def sampled(size: int, delta: float = 1e-5) -> PrivacyConfig:
    return PrivacyConfig(delta, size, ADD_REMOVE, SamplingMethod.POISSON)


# ---------------------------------------------------------------- prices


@pytest.mark.parametrize(  # dp-accounting 0.6.0: PLD on its default grid, and RDP
    ("size", "batch", "noise", "steps", "delta", "pld", "rdp"),
    [
        (60000, 128, 2.0, 46875, 1e-5, 0.9158, 1.0012),
        (60000, 128, 4.0, 46875, 1e-5, 0.4074, 0.4470),
        (60000, 128, 8.0, 46875, 1e-5, 0.1906, 0.2089),
        (25000, 64, 1.0, 11718, 1 / 25000, 1.3118, 1.4624),
    ],
)
def test_golden_prices(size: int, batch: int, noise: float, steps: int, delta: float, pld: float, rdp: float) -> None:
    """A finer grid than the default is at most 1.5 % cheaper (0.188 instead of 0.1906), and never dearer."""
    event = GaussianPrivacyEvent(noise, batch, size)
    ours: PrivacyAccountant = PldAccountant(sampled(size, delta))
    theirs = RdpAccountant(sampled(size, delta))
    for accountant in (ours, theirs):
        accountant.compose(event, steps)
    assert 0.985 * pld <= ours.get_epsilon(delta) <= pld * 1.0005
    assert theirs.get_epsilon(delta) == pytest.approx(rdp, abs=1e-4)


def test_without_amplification_it_is_the_gaussian_mechanism() -> None:
    accountant = PldAccountant(PLAIN)
    accountant.compose(ONE)
    accountant.compose(ONE, 2)
    assert accountant.num_releases == 3
    assert accountant.get_epsilon(1e-5) == epsilon(SelfComposedDpEvent(GaussianDpEvent(2.0), 3), 1e-5)
    assert accountant.ledger.event == compose([GaussianDpEvent(2.0)] * 3)
    spent = accountant.get_privacy_spent()
    assert (spent.epsilon, spent.delta, spent.num_releases) == (accountant.get_epsilon(1e-5), 1e-5, 3)
    assert (spent.accounting_method, spent.optimal_order) == ("pld", None)
    assert accountant.get_privacy_spent(1e-3).epsilon < spent.epsilon


def test_poisson_sampling_is_amplified_unless_everybody_is_drawn() -> None:
    accountant = PldAccountant(sampled(5))
    accountant.compose(ONE)
    assert accountant.ledger.event == PoissonSampledDpEvent(0.6, GaussianDpEvent(2.0))
    everybody = PldAccountant(sampled(5))
    everybody.compose(GaussianPrivacyEvent(2.0, 5, 5))
    assert everybody.ledger.event == GaussianDpEvent(2.0)


@pytest.mark.parametrize("event", [GaussianPrivacyEvent(8.0, 1, 5), GaussianPrivacyEvent(2.0, 5, 5)], ids=["sampled", "plain"])
def test_delta_is_the_inverse_of_epsilon(event: GaussianPrivacyEvent) -> None:
    accountant = PldAccountant(sampled(5))
    assert accountant.get_delta(1.0) == 0
    accountant.compose(event, 3)
    goal = accountant.get_epsilon(1e-4)
    assert 1e-4 * (1 - 1e-6) <= accountant.get_delta(goal) <= 1.05e-4
    assert accountant.get_delta(1000.0) == 1e-14
    assert accountant.get_delta(0.0) < 1


# ---------------------------------------------------------------- limits


def test_a_limit_is_seen_before_and_kept_by_compose() -> None:
    probe = PldAccountant(PLAIN)
    probe.compose(ONE, 2)
    limit = probe.get_epsilon(1e-5)
    accountant = PldAccountant(PrivacyConfig(1e-5, 5, ADD_REMOVE, SamplingMethod.NO_AMPLIFICATION, max_epsilon=limit))
    assert not accountant.would_exceed(ONE, count=2)
    assert accountant.would_exceed(ONE, count=3)
    assert accountant.would_exceed(ONE, max_epsilon=limit / 2)
    accountant.compose(ONE, 2)
    with pytest.raises(BudgetExceeded, match="max_epsilon"):
        accountant.compose(ONE)
    assert accountant.num_releases == 2


def test_a_ledger_s_own_cap_holds_too() -> None:
    accountant = PldAccountant(PLAIN, Ledger(Budget(3.0, 1e-5, unit="user")))
    accountant.compose(ONE)
    assert accountant.would_exceed(ONE, max_epsilon=100.0, count=5)
    with pytest.raises(BudgetExceeded, match="ledger's budget"):
        accountant.compose(ONE, 5)
    assert accountant.num_releases == 1


# ---------------------------------------------------------------- state


def test_state_goes_through_json_and_back() -> None:
    accountant = PldAccountant(PLAIN)
    accountant.compose(ONE, 2)
    accountant.compose(GaussianPrivacyEvent(3.0, 5, 5))
    state = json.loads(json.dumps(accountant.state_dict()))
    other = PldAccountant(PLAIN)
    other.load_state_dict(state)
    assert other.state_dict() == accountant.state_dict()
    assert other.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)
    other.load_state_dict(state)  # what the ledger holds is not charged again
    assert other.num_releases == 3


def test_an_older_state_does_not_take_back_what_a_ledger_holds() -> None:
    accountant = PldAccountant(PLAIN)
    accountant.compose(ONE)
    older = accountant.state_dict()
    accountant.compose(ONE)
    accountant.load_state_dict(older)
    accountant.compose(ONE)
    assert accountant.num_releases == 3


def test_a_state_of_other_releases_or_settings_is_refused() -> None:
    accountant = PldAccountant(PLAIN)
    accountant.compose(ONE)
    state = accountant.state_dict()
    other = PldAccountant(PLAIN)
    other.compose(GaussianPrivacyEvent(3.0, 5, 5))
    with pytest.raises(LedgerError, match="different releases"):
        other.load_state_dict(state)
    with pytest.raises(InputError, match="another PrivacyConfig"):
        PldAccountant(sampled(5)).load_state_dict(state)
    with pytest.raises(InputError, match="another accountant"):
        accountant.load_state_dict(RdpAccountant(PLAIN).state_dict())
    nothing = {"event": {"kind": "gaussian", "noise_multiplier": 1.0}, "count": 0}
    damaged: tuple[Any, ...] = (None, [{}], [nothing], [{"event": {}, "count": 1}])
    for releases in damaged:
        with pytest.raises(InputError, match="damaged"):
            PldAccountant(PLAIN).load_state_dict(state | {"releases": releases})


def test_a_file_goes_on_where_another_process_stopped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = PldAccountant(PLAIN, path)
    first.compose(ONE, 2)
    first.ledger.close()
    second = PldAccountant(PLAIN, path)
    assert second.num_releases == 2
    second.compose(ONE)
    assert Ledger.read(path).event == compose([GaussianDpEvent(2.0)] * 3)
    second.ledger.close()


# ---------------------------------------------------------------- inside Flower's own strategy


def wrapped(accountant: PrivacyAccountant) -> DifferentialPrivacyServerSideFixedClipping:
    inner = FedAvg(fraction_train=0.6, min_train_nodes=3, fraction_evaluate=0.0)
    return DifferentialPrivacyServerSideFixedClipping(inner, 2.0, 0.5, 3, accountant=accountant)


def test_flower_s_strategy_charges_it_once_a_round_and_stops_at_the_limit(tmp_path: Path) -> None:
    probe = PldAccountant(PLAIN)
    probe.compose(ONE, 3)
    limited = PrivacyConfig(1e-5, 5, ADD_REMOVE, SamplingMethod.NO_AMPLIFICATION, max_epsilon=probe.get_epsilon(1e-5))
    accountant = PldAccountant(limited, tmp_path / "ledger.jsonl")
    seen: list[int] = []
    strategy = wrapped(accountant)
    with pytest.raises(PrivacyBudgetExhausted, match="max_epsilon"):
        strategy.start(learners(5), START, num_rounds=5, evaluate_fn=lambda round_, _: seen.append(accountant.num_releases))
    assert seen == [0, 1, 2, 3]  # charged before anybody sees the model
    spent = strategy.privacy_spent()
    assert spent is not None
    assert spent.epsilon == epsilon(compose([GaussianDpEvent(2.0)] * 3), 1e-5)
    assert Ledger.read(tmp_path / "ledger.jsonl").event == compose([GaussianDpEvent(2.0)] * 3)
    accountant.ledger.close()


def test_flower_s_strategy_releases_nothing_if_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    strategy, grid = wrapped(PldAccountant(PLAIN, tmp_path / "ledger.jsonl")), learners(5)
    replies = grid.send_and_receive(strategy.configure_train(1, START, ConfigRecord(), grid))
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="nothing more is released"):
        strategy.aggregate_train(1, replies)


def test_flower_s_strategy_takes_no_amplified_accountant() -> None:
    with pytest.raises(ValueError, match="no-amplification"):
        wrapped(PldAccountant(sampled(5)))


def by_zero(strategy: DifferentialPrivacyServerSideFixedClipping) -> Any:
    grid = learners(5, step=0.0)
    replies = grid.send_and_receive(strategy.configure_train(1, START, ConfigRecord(), grid))
    with pytest.raises(ZeroDivisionError):
        strategy.aggregate_train(1, replies)


def with_nan(strategy: DifferentialPrivacyServerSideFixedClipping) -> Any:
    grid = learners(5, step=math.nan)
    arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(strategy.configure_train(1, START, ConfigRecord(), grid)))
    assert isinstance(arrays, ArrayRecord)
    assert np.isnan(arrays["w"].numpy()).any()


def by_numpy(strategy: DifferentialPrivacyServerSideFixedClipping) -> Any:
    grid, models = learners(3), []
    for round_ in (1, 2):
        replies = grid.send_and_receive(strategy.configure_train(round_, START, ConfigRecord(), grid))
        np.random.seed(5)  # noqa: NPY002  # the generator that Flower's noise comes from
        arrays, _ = strategy.aggregate_train(round_, replies)
        assert arrays is not None
        models.append(arrays["b"].numpy())
    np.testing.assert_array_equal(models[0], models[1])


def skips(strategy: DifferentialPrivacyServerSideFixedClipping) -> Any:
    grid = learners(5)
    replies = grid.send_and_receive(strategy.configure_train(1, START, ConfigRecord(), grid))
    assert strategy.aggregate_train(1, replies[1:]) == (None, None)
    assert strategy.accountant is not None
    assert strategy.accountant.num_releases == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fact", [by_zero, with_nan, by_numpy, skips], ids=lambda fact: fact.__name__)
def test_what_the_docstring_says_of_flower_s_strategy_is_so(fact: Callable[[Any], Any]) -> None:
    """Facts of another library: when one changes, the docstring and docs/flower-wrapper.md change with it."""
    fact(wrapped(PldAccountant(PLAIN)))


# ---------------------------------------------------------------- what makes no sense


def test_impossible_arguments_are_refused() -> None:
    accountant = PldAccountant(PLAIN)
    without = PrivacyConfig(1e-5, 5, NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: PldAccountant(without), "samples of a fixed size"),
        (lambda: PldAccountant(PLAIN, Ledger(Budget(1.0, 1e-5))), "one example"),
        (lambda: accountant.compose(GaussianPrivacyEvent(2.0, 3, 6)), "population_size 6"),
        (lambda: accountant.compose(ONE, 0), "count is 0"),
        (lambda: accountant.compose(ONE, True), "count is True"),
        (lambda: accountant.get_epsilon(0.0), "delta is 0"),
        (lambda: accountant.get_delta(-1.0), r"epsilon is -1"),
        (lambda: accountant.would_exceed(ONE), "no limit"),
        (lambda: accountant.would_exceed(ONE, 0.0), "max_epsilon is 0"),
    ]
    for call, words in refusals:
        with pytest.raises(InputError, match=words):
            call()
    assert accountant.num_releases == 0
