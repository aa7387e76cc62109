"""Networks at two points: methods that ask how a gradient changed, and one that compares losses."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privopt import Budget, run
from privopt.errors import InputError
from privopt.measure.queries import gradient_difference
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.dp_agd import dp_agd
from privopt.methods.dp_srm import dp_srm
from privopt.methods.spiderboost import spiderboost
from privopt.nets import fit
from privopt.nets.network_run import _Repeatable
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.rng import Dropout
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, PureDpEvent, atoms
from privopt.recipe import Recipe
from privopt.state import PublicState
from tests.problems import accuracy, difference, linear_oracle, tanh_network, tensor_rows

BUDGET = Budget(3.0, 1e-5)
SRM: dict[str, Any] = {"change_bound": 0.1, "refresh": 0.2}


def data(size: int = 60) -> tuple[Tensor, Tensor]:
    x, y = tensor_rows(size, score=difference)
    return x.double(), y


def network(dropout: float = 0.0) -> nn.Module:
    return tanh_network(6, 5, dropout=dropout).double()


def clipped(vector: Tensor, bound: float) -> Tensor:
    return vector * min(1.0, bound / max(float(vector.norm()), 1e-300))


class Alone:
    """Gradients by plain autograd, one example at a time."""

    def __init__(self) -> None:
        self.model, (self.x, self.y) = network(), data()

    def gradient(self, theta: Tensor, row: int) -> Tensor:
        torch.nn.utils.vector_to_parameters(theta, self.model.parameters())
        loss = nn.functional.cross_entropy(self.model(self.x[row : row + 1]), self.y[row : row + 1])
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(self.model.parameters()))])


def reference(rounds: int, name: str) -> Tensor:
    """DP-SRM and SpiderBoost without noise, with clips that cut, on Poisson batches."""
    alone, rng = Alone(), generator(5)
    theta = torch.cat([part.detach().reshape(-1) for part in alone.model.parameters()])
    before, v = theta.clone(), torch.zeros_like(theta)
    for t in range(rounds):
        rows = poisson(0.4).draw(60, t, rng)
        assert rows is not None
        total = torch.zeros_like(theta)
        anchor = t == 0 if name == "dp-srm" else t % 3 == 0
        moved = 0.5 * float((theta - before).norm())
        for row in rows.tolist():
            here = alone.gradient(theta, row)
            change = here - alone.gradient(before, row)
            if anchor:
                total += clipped(here, 0.5)
            elif name == "dp-srm":
                total += 0.2 * clipped(here, 0.5) + 0.8 * clipped(change, 0.1)
            else:
                total += clipped(change, min(moved, 1.0))
        carried = 0.0 if anchor else 0.8 if name == "dp-srm" else 1.0
        v = carried * v + total / 24
        theta, before = theta - 1.5 * v, theta
    return theta


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("name", ["dp-srm", "spiderboost"])
def test_a_network_is_asked_at_both_points_and_neither_overwrites_the_other(
    name: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against one example at a time. No noise is drawn, so that both see the same rows."""
    common: dict[str, Any] = {"rounds": 12, "noise_multiplier": 0.0, "clip_bound": 0.5, "learning_rate": 1.5}
    recipe = (
        dp_srm(**common, **SRM, sampling=poisson(0.4))
        if name == "dp-srm"
        else spiderboost(**common, smoothness=0.5, period=3, sampling=poisson(0.4), anchor_sampling=poisson(0.4))
    )
    monkeypatch.setattr("privopt.measure.randomness.torch_noise.normal", lambda like, deviation, rng: lambda total: total(None))
    oracle = TorchOracle(network(), nn.CrossEntropyLoss(), *data(), chunk=chunk)
    ours = run(recipe, oracle, oracle.flat.vector.clone(), rng=generator(5)).parameters
    torch.testing.assert_close(ours, reference(12, name), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("chunk", [None, 7])
def test_dropout_is_the_same_at_both_points_of_a_difference_and_another_in_each_round(chunk: int | None) -> None:
    oracle = TorchOracle(network(0.5), nn.CrossEntropyLoss(), *data(), chunk=chunk)
    repeatable = _Repeatable(oracle, Dropout(3))
    here = oracle.flat.vector.clone()
    for rows in (None, np.arange(40)):
        same = gradient_difference()(repeatable, rows, PublicState(here, here.clone()))
        assert float(same.norms(2).max()) < 1e-12
        first = repeatable(here, rows).norms(2)
        repeatable.round += 1
        assert float((repeatable(here, rows).norms(2) - first).abs().max()) > 1e-3


@pytest.mark.parametrize("chunk", [None, 7])
def test_losses_are_those_of_the_model(chunk: int | None) -> None:
    x, y = data()
    model = network()
    oracle = TorchOracle(model, nn.CrossEntropyLoss(), x, y, chunk=chunk)
    there = oracle.flat.vector + 0.3
    for rows in (None, np.array([3, 1, 8, 9, 20, 21, 22, 23, 24]), np.array([], dtype=int)):
        found = oracle.losses(there, rows)
        picked = slice(None) if rows is None else torch.as_tensor(rows)
        torch.testing.assert_close(found, nn.functional.cross_entropy(model(x[picked]), y[picked], reduction="none").detach())
        assert not found.requires_grad


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dp-srm", {"batch_size": 200, "rounds": 40, "learning_rate": 1.0, "options": SRM}),
        ("spiderboost", {"batch_size": 1000, "rounds": 40, "learning_rate": 1.0, "options": {"smoothness": 2.0, "period": 5}}),
        ("dp-agd", {"batch_size": 1000, "rounds": 20, "options": {"loss_bound": 2.0}}),
    ],
)
def test_fit_learns_within_its_budget(method: str, settings: dict[str, Any]) -> None:
    x, y = data(1000)
    result = fit(network(0.1), nn.CrossEntropyLoss(), (x, y), budget=BUDGET, method=method, seed=0, progress=False, **settings)
    assert accuracy(result.model, x, y) > 0.85
    statement = result.privacy.statement
    assert 0.985 * 3.0 <= statement.epsilon <= 3.0
    kinds = {type(part) for part, _ in atoms(statement.event)}
    assert (
        kinds
        == {
            "dp-srm": {PoissonSampledDpEvent},
            "spiderboost": {GaussianDpEvent},
            "dp-agd": {GaussianDpEvent, PureDpEvent},
        }[method]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "dp-agd", "options": {"loss_bound": 1.0}, "batch_size": 20}, "dp-agd uses every row in every round"),
        ({"method": "dp-agd", "options": {"loss_bound": 1.0}, "learning_rate": 0.1}, "dp-agd chooses its step sizes itself"),
        ({"method": "spiderboost", "options": {"period": 0}}, "option period of spiderboost is 0"),
    ],
)
def test_what_a_method_cannot_use_is_refused_before_the_data_are_read(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"budget": BUDGET, "rounds": 3, "batch_size": 60, **changes}
    with pytest.raises(InputError, match=message):
        fit(network(), nn.CrossEntropyLoss(), data(), **settings)


def test_a_line_search_on_a_network_is_one_on_numpy() -> None:
    """A linear network and the closed form, without noise: the same steps."""
    from privopt.perexample.losses import Squared

    x = data()[0]
    y = x @ torch.arange(6.0).double()
    model = nn.Linear(6, 1, bias=False).double()
    nn.init.zeros_(model.weight)

    def half_square(output: Tensor, targets: Tensor) -> Tensor:
        return (output[:, 0] - targets) ** 2 / 2

    recipe: Recipe = dp_agd(rounds=6, noise_multiplier=0.0, clip_bound=3.0, loss_bound=20.0, longest_step=3.0)
    oracle = TorchOracle(model, half_square, x, y)
    ours = run(recipe, oracle, oracle.flat.vector.clone(), rng=generator(0)).parameters
    closed = linear_oracle(x.numpy(), y.numpy(), Squared())
    np.testing.assert_allclose(ours.numpy(), run(recipe, closed, np.zeros(6), rng=generator(0)).parameters, rtol=1e-9)
