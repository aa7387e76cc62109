"""DP-AdamBC, DP²-RMSProp and SAGD on networks: they run, pay what they plan and learn, or are refused at the start."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from privopt import Budget, Ledger
from privopt.errors import InputError
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.dp_adam_bc import dp_adam_bc
from privopt.nets import fit
from privopt.nets.network_run import run_network
from privopt.perexample.networks.torch_oracle import TorchOracle
from privopt.postprocess.release import last
from privopt.privacy.events import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, atoms
from tests.problems import accuracy, product, tanh_network, tensor_rows

SIZE = 1200
X, Y = tensor_rows(SIZE, 4, product)
BUDGET = Budget(8.0, 1e-5)


METHODS: dict[str, dict[str, Any]] = {
    "dp-adam-bc": {"learning_rate": 0.02},
    "dp2-rmsprop": {"learning_rate": 1.0, "options": {"phase": 10, "stability": 0.05, "preconditioned_learning_rate": 0.3}},
}


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_on_poisson_batches_and_pays_for_them(method: str) -> None:
    fitted = fit(
        tanh_network(4, 16, seed=3),
        nn.CrossEntropyLoss(),
        (X, Y),
        budget=BUDGET,
        method=method,
        batch_size=300,
        rounds=200,
        seed=0,
        **METHODS[method],
    )
    sampled = [(part, count) for part, count in atoms(fitted.privacy.statement.event)]
    assert [(type(part), type(part.event), part.sampling_probability, count) for part, count in sampled] == [
        (PoissonSampledDpEvent, GaussianDpEvent, 0.25, 200)
    ]
    assert 0.99 * BUDGET.epsilon < fitted.privacy.statement.epsilon <= BUDGET.epsilon
    assert accuracy(fitted.model, X, Y) > 0.85


def test_dp_adam_bc_knows_the_expected_batch_size() -> None:
    settings: dict[str, Any] = {"budget": BUDGET, "method": "dp-adam-bc", "batch_size": 300, "rounds": 5, "seed": 0}
    own = {"floor": 0.3, "stability": 1e-8, "release": last()}
    fitted = fit(
        tanh_network(4, 16, seed=3), nn.CrossEntropyLoss(), (X, Y), **settings, clip_bound=1.0, learning_rate=0.02, options=own
    )
    noise = fitted.privacy.statement.settings["noise multiplier"]

    def by_hand(batch_size: int) -> Tensor:
        recipe = dp_adam_bc(
            rounds=5,
            noise_multiplier=noise,
            clip_bound=1.0,
            learning_rate=0.02,
            sampling=poisson(0.25),
            expected_batch_size=batch_size,
        )
        oracle = TorchOracle(tanh_network(4, 16, seed=3), nn.CrossEntropyLoss(), X, Y)
        end: Tensor = run_network(recipe, oracle, spending=Ledger().run(), rng=generator(0)).parameters
        return end

    given = parameters_to_vector(fitted.model.parameters()).detach()
    torch.testing.assert_close(given, by_hand(300))
    assert float((given - by_hand(SIZE)).abs().max()) > 1e-3  # another size would show
    with pytest.raises(InputError, match="no option expected_batch_size"):
        fit(tanh_network(4, 16, seed=3), nn.CrossEntropyLoss(), (X, Y), **settings, options={"expected_batch_size": 7})


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_sagd_lap_runs_on_all_examples_also_without_delta(delta: float) -> None:
    start = tanh_network(4, 16, seed=3)
    fitted = fit(
        copy.deepcopy(start),
        nn.CrossEntropyLoss(),
        (X, Y),
        budget=Budget(500.0, delta),  # there is little to learn below
        method="sagd-lap",
        batch_size=SIZE,
        rounds=60,
        clip_bound=4.0,
        learning_rate=0.02,
        seed=0,
    )
    assert [(type(part), count) for part, count in atoms(fitted.privacy.statement.event)] == [(LaplaceDpEvent, 60)]
    assert fitted.privacy.statement.epsilon <= 500
    assert accuracy(fitted.model, X, Y) > accuracy(start, X, Y) + 0.2


def test_what_is_not_defined_for_networks_is_refused_at_the_start() -> None:
    common: dict[str, Any] = {"budget": BUDGET, "rounds": 5, "learning_rate": 0.1}
    with pytest.raises(InputError, match="sagd-lap uses every row in every round"):
        fit(tanh_network(4, 16, seed=3), nn.CrossEntropyLoss(), (X, Y), method="sagd-lap", batch_size=100, **common)
    with pytest.raises(InputError, match=r"cut of the rows.*not for networks"):
        fit(tanh_network(4, 16, seed=3), nn.CrossEntropyLoss(), (X, Y), method="sagd-minibatch", batch_size=100, **common)
    with pytest.raises(InputError, match="delta is 0"):
        fit(
            tanh_network(4, 16, seed=3),
            nn.CrossEntropyLoss(),
            (X, Y),
            method="dp2-rmsprop",
            batch_size=100,
            **{**common, "budget": Budget(1.0)},
            options={"phase": 2},
        )
