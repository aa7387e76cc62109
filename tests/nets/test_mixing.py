"""One example's loss depends on no other's: what mixes is refused before anything is paid, and its honest neighbours train."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from privopt import Budget
from privopt.nets import Private, UnsupportedLayer, make_private

BUDGET = Budget(3.0, 1e-5)
X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
WEIGHTS = torch.tensor([1.0, 50.0])

Closure = Callable[[nn.Module, Tensor, Tensor], Tensor]


def network(outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))


def own(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets, reduction="none")


def private(model: nn.Module, data: Any = (X, Y), **settings: Any) -> Private:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    given = {"budget": BUDGET, "rounds": 2, "batch_size": 60, "physical_batch_size": 60, "accountant": "rdp", "seed": 0}
    return make_private(model, optimizer, data, **(given | settings))


def run(loop: Private, closure: Closure) -> Private:
    for inputs, targets in loop.loader:
        loop.step(lambda inputs=inputs, targets=targets: closure(loop.model, inputs, targets))  # type: ignore[misc]
    return loop


# ---------------------------------------------------------------- loops of the user's own


def mixup(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return own(model((x + x[torch.randperm(len(x))]) / 2), y)


def weighted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return own(model(x), y) * WEIGHTS[y] / WEIGHTS[y].sum()


def stretched(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, :1] - x[:, 0]).square().mean(1)


MIXING: dict[str, Closure] = {
    "inputs less their mean": lambda model, x, y: own(model(x - x.mean(0)), y),
    "inputs standardised": lambda model, x, y: own(model((x - x.mean(0)) / x.std(0)), y),
    "inputs mixed up": mixup,
    "attention over the batch": lambda model, x, y: own(model((x @ x.T).softmax(1) @ x), y),
    "a mean of outputs, detached": lambda model, x, y: own(model(x) - model(x).mean(0).detach(), y),
    "losses relative to their mean": lambda model, x, y: own(model(x), y) / own(model(x), y).detach().mean(),
    "weights that sum to one": weighted,
    "numbers that are stretched": stretched,
    "the row before": lambda model, x, y: own(model(x + x.roll(1, 0)), y),
    "a little of the mean": lambda model, x, y: own(model(x + 3e-4 * x.mean(0)), y),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("spoilt", [False, True], ids=["", "one example is no number"])
def test_a_loop_that_mixes_is_refused_and_the_batch_is_put_back(name: str, spoilt: bool) -> None:
    x = X.clone()
    x[3, 2] = torch.nan if spoilt else 0.0
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loop = private(model, (x, Y))
    inputs, targets = next(loop.loader)
    with pytest.raises(UnsupportedLayer, match=r"depends on other examples.*mixes examples"):
        loop.step(lambda: MIXING[name](model, inputs, targets))
    assert loop.ledger.entries == ()
    torch.testing.assert_close((inputs, targets), (x, Y), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(list(model.parameters()), before)


def jittered(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Random numbers of torch, numpy and Python."""
    return own(model(x * random.random() + torch.rand(1) * np.random.rand()), y)  # noqa: NPY002


def in_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return own(model(x.mul_(0.5)), y.bitwise_xor_(torch.ones_like(y)))


def of_two_views(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - model(x.flip(1))).square().sum(1)


HONEST: dict[str, Closure] = {
    "losses": lambda model, x, y: own(model(x), y),
    "inputs only": lambda model, x, y: model(x).square().sum(1),
    "targets only": lambda model, x, y: own(model(torch.ones(len(y), 6)), y),
    "a siamese network": of_two_views,
    "weights of classes": lambda model, x, y: own(model(x), y) * WEIGHTS[y],
    "another type": lambda model, x, y: own(model(x.double().float()), y.int().long()),
    "jitter": jittered,
    "dropout": lambda model, x, y: own(model(F.dropout(x, 0.5)), y),
    "a batch that is changed in place": in_place,
    "inputs normalised each": lambda model, x, y: own(model(x / x.norm(dim=1, keepdim=True)), y),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_loop_whose_examples_are_each_for_themselves_trains(name: str) -> None:
    assert run(private(network()), HONEST[name]).rounds == 2


def test_checking_changes_no_step() -> None:
    """A model that changes its batch in place, with dropout and a memory of its weights, is the same after a check or without."""
    ends = []
    for checked in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Dropout(0.5), nn.Linear(8, 2))
        model[0].parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]
        loop = private(model)
        loop._checked = checked
        run(loop, in_place)
        ends.append(torch.cat([value.reshape(-1) for value in model.state_dict().values()]))
    assert torch.equal(*ends)


def test_losses_that_cannot_be_told_are_checked_in_the_next_round() -> None:
    loop = private(network(), rounds=3)

    def closure(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return own(model(x - x.mean(0) + (torch.nan if loop.rounds == 0 else 0.0)), y)

    with pytest.raises(UnsupportedLayer, match="depends on other examples"):
        run(loop, closure)
    assert loop.rounds == 1


def test_batches_of_one_are_checked_later() -> None:
    loop = private(network(), rounds=1, physical_batch_size=1)
    assert run(loop, HONEST["losses"]).rounds == 1
    assert not loop._checked


def test_a_closure_with_a_generator_of_its_own_is_told_what_to_use() -> None:
    generator = torch.Generator()
    with pytest.raises(UnsupportedLayer, match=r"computed again.*generator of its own"):
        run(private(network()), lambda model, x, y: own(model(x + torch.rand(1, generator=generator)), y))


def test_dicts_and_nested_batches_are_looked_into() -> None:
    items = [{"a": {"x": X[i]}, "y": (Y[i], "a text")} for i in range(60)]
    model = network()
    for mixes in (False, True):
        loop = private(model, items, rounds=1)
        batch = next(loop.loader)

        def closure(batch: Any = batch, mixes: bool = mixes) -> Tensor:
            return own(model(batch["a"]["x"] - batch["a"]["x"].mean(0) * mixes), batch["y"][0])

        if mixes:
            with pytest.raises(UnsupportedLayer, match="depends on other examples"):
                loop.step(closure)
        else:
            assert loop.step(closure)
