"""Public examples on networks: AdaDPS and its baselines through `fit`, bit for bit, stated and refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from privopt import Budget
from privopt.errors import CompositionError, InputError
from privopt.methods import METHODS
from privopt.nets import fit
from privopt.nets.data import PublicExamples, describe_public
from privopt.nets.loading import Examples
from privopt.perexample.linear_oracle import public_batches
from privopt.perexample.networks import TorchOracle
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from privopt.privacy.ledger import Ledger
from tests.problems import accuracy, difference, tanh_network, tensor_rows
from tests.stopped import StopAt, Stopped

X, Y = tensor_rows(600, 4, difference)
P, Q = tensor_rows(150, 4, difference, seed=1)
SETTINGS: dict[str, Any] = {"budget": Budget(8.0, 1e-5), "batch_size": 150, "rounds": 60, "seed": 2, "progress": False}
RUNS: dict[str, dict[str, Any]] = {
    "adadps": {"learning_rate": 0.05, "clip_bound": 10.0},
    "adadps, adagrad": {"learning_rate": 0.2, "clip_bound": 3.0, "options": {"rule": "adagrad"}},
    "adadps, adam": {"learning_rate": 0.05, "clip_bound": 10.0, "options": {"rule": "adam"}},
    "dp-r-pub": {"learning_rate": 0.02},
    "dp-adam-pub": {"learning_rate": 0.02},
    "pda-dpmd": {"learning_rate": 0.5},
    "warm-start": {"learning_rate": 0.3},
    "ideal": {"learning_rate": 0.05, "clip_bound": 10.0, "options": {"without_privacy": True, "stability": 1e-2}},
    "adas": {"learning_rate": 0.01, "options": {"without_privacy": True}},
}


def fitted(name: str, **changed: Any) -> Any:
    method, public = name.split(",")[0], None if name == "ideal" else (P, Q)
    settings = {**SETTINGS, **RUNS[name], "public": public, **changed}
    return fit(tanh_network(4, dropout=0.1, seed=3), nn.CrossEntropyLoss(), (X, Y), method=method, **settings)


@pytest.mark.parametrize("name", RUNS)
def test_a_network_learns_and_states_the_public_examples(name: str) -> None:
    result = fitted(name)
    model, statement = result.model.eval(), result.privacy.statement
    assert accuracy(model, X, Y) > 0.8
    if name != "ideal":
        assert statement.public_data == [describe_public(TensorDataset(P, Q))]
        assert "150 of them, sha256 " in statement.text()
    if METHODS[name.split(",")[0]].private:
        noise = statement.settings["noise multiplier"]
        assert statement.event == SelfComposedDpEvent(PoissonSampledDpEvent(0.25, GaussianDpEvent(noise)), 60)
        assert statement.epsilon <= 8.0
    else:
        assert statement.epsilon == math.inf
        assert "NO GUARANTEE" in statement.text()


@pytest.mark.parametrize("name", ["adadps, adam", "dp-adam-pub", "warm-start", "ideal"])
def test_a_stopped_run_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = fitted(name, ledger=Ledger(path=tmp_path / "whole"))
    with Ledger(path=tmp_path / "stopped") as ledger:
        for _ in range(2):
            with pytest.raises(Stopped):
                fitted(name, ledger=ledger, checkpoint=tmp_path / "state", progress=StopAt(13, 37))
        resumed = fitted(name, ledger=ledger, checkpoint=tmp_path / "state")
        assert ledger.event == whole.ledger.event
    for ours, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_going_on_with_other_public_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fitted("adadps", checkpoint=tmp_path / "state", progress=StopAt(1))
    with pytest.raises(InputError, match="not those that this run began with"):
        fitted("adadps", checkpoint=tmp_path / "state", public=(P + 1, Q))


class _Items(Dataset[Any]):
    def __len__(self) -> int:
        return len(P)

    def __getitem__(self, place: int) -> Any:
        return P[place], Q[place]


@pytest.mark.parametrize("data", [TensorDataset(P, Q), _Items()], ids=["tensors", "dataset"])
def test_a_public_gradient_is_autograd_s_mean_without_dropout_wherever_it_is_asked(data: Dataset[Any]) -> None:
    model = tanh_network(4, dropout=0.1, seed=3)
    oracle = TorchOracle(model, nn.CrossEntropyLoss(), X, Y)
    public = PublicExamples(oracle, len(P), Examples.given(data).read, batch_size=40)
    assert public.epoch == 3
    model.train()
    for round_, theta in ((0, oracle.flat.vector.clone()), (4, torch.randn_like(oracle.flat.vector))):
        found = public(theta, round_)
        assert model.training
        rows = torch.as_tensor(public_batches(150, 40)[round_ % 3])
        plain = tanh_network(4, dropout=0.1, seed=3).eval()
        nn.utils.vector_to_parameters(theta, plain.parameters())
        nn.CrossEntropyLoss()(plain(P[rows]), Q[rows]).backward()
        expected = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters() if parameter.grad is not None])
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-6)


def test_a_scale_for_each_parameter_may_be_given_instead() -> None:
    ones = fitted("adadps", public=None, options={"scale": np.ones(4 * 8 + 8 + 8 * 2 + 2), "momentum_decay": 0.0}, clip_bound=1.0)
    plain = fit(
        tanh_network(4, dropout=0.1, seed=3),
        nn.CrossEntropyLoss(),
        (X, Y),
        method="dp-sgd",
        learning_rate=0.05,
        clip_bound=1.0,
        options={"momentum_decay": 0.0},
        **SETTINGS,
    )
    for ours, theirs in zip(ones.model.parameters(), plain.model.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "adadps"}, "needs public data.*or a scale"),
        ({"method": "pda-dpmd"}, "needs public data"),
        ({"method": "adadps", "public": (P, Q), "options": {"scale": np.ones(3)}}, "leave one out"),
        ({"method": "adadps", "public": (P, Q), "options": {"rule": "nadam"}}, "'rmsprop' or 'adagrad'"),
        ({"method": "adadps", "public": (P, Q[:-1])}, "150 inputs, but 149 targets"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_spent(settings: dict[str, Any], message: str) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match=message):
        fit(
            tanh_network(4, dropout=0.1, seed=3),
            nn.CrossEntropyLoss(),
            (X, Y),
            learning_rate=0.1,
            ledger=ledger,
            **SETTINGS,
            **settings,
        )
    assert ledger.entries == ()


def test_without_privacy_only_in_so_many_words() -> None:
    with pytest.raises(CompositionError, match="option without_privacy"):
        fit(tanh_network(4, dropout=0.1, seed=3), nn.CrossEntropyLoss(), (X, Y), method="ideal", learning_rate=0.1, **SETTINGS)
