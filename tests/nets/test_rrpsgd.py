"""RRPSGD on networks: noise for the rounds that were drawn, also when a run is gone on with; convex methods are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from privopt import Budget
from privopt.errors import InputError
from privopt.nets import fit
from privopt.postprocess.release import average, random_round
from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent
from tests.problems import product, tanh_network, tensor_rows
from tests.stopped import StopAt, Stopped

BUDGET = Budget(3.0, 1e-5)


def trained(**settings: Any) -> Any:
    model, data = tanh_network(3), tensor_rows(400, 3, product)
    return fit(model, nn.CrossEntropyLoss(), data, budget=BUDGET, batch_size=400, learning_rate=0.5, progress=False, **settings)


@pytest.mark.parametrize("settings", [{"method": "rrpsgd"}, {"method": "dp-sgd", "release": random_round()}], ids=str)
def test_a_random_number_of_rounds_is_run_and_the_budget_is_spent_on_these(settings: dict[str, Any]) -> None:
    results = [trained(rounds=40, seed=seed, **settings) for seed in (0, 1, 2)]
    assert len({result.rounds for result in results}) > 1
    for result in results:
        statement = result.privacy.statement
        noise = statement.settings["noise multiplier"]
        assert statement.event == SelfComposedDpEvent(GaussianDpEvent(noise), result.rounds)
        assert 0.99 * 3 <= statement.epsilon <= 3.0
        assert not result.stopped_early


def test_a_run_that_was_stopped_goes_on_with_the_rounds_that_were_drawn(tmp_path: Path) -> None:
    whole = trained(rounds=40, seed=1, method="rrpsgd")

    model, data = tanh_network(3), tensor_rows(400, 3, product)
    settings: dict[str, Any] = {
        "budget": BUDGET, "batch_size": 400, "learning_rate": 0.5, "rounds": 40, "method": "rrpsgd", "seed": 1,
        "checkpoint": tmp_path / "checkpoint",
    }  # fmt: skip
    with pytest.raises(Stopped):
        fit(model, nn.CrossEntropyLoss(), data, progress=StopAt(2), **settings)
    model, data = tanh_network(3), tensor_rows(400, 3, product)
    again = fit(model, nn.CrossEntropyLoss(), data, progress=False, **settings)
    assert again.rounds == whole.rounds
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["output-perturbation", "bassily-sgd"])
def test_methods_of_convex_losses_are_refused_at_the_start(method: str) -> None:
    with pytest.raises(InputError, match=f"{method} needs a convex loss.*so it is not for networks. dp-adam"):
        trained(rounds=40, method=method)


def test_a_release_rule_beside_the_method_s_own_is_refused() -> None:
    with pytest.raises(InputError, match="release rule of its own"):
        trained(rounds=40, method="rrpsgd", release=average())
