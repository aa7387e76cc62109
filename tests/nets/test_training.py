"""`fit` and `make_private`: the same guarantee, the user's own model, and ordinary training where nothing is hidden."""

import functools
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import privopt.state
from privopt import Budget, Ledger, run
from privopt.errors import InputError, LedgerError, PrivoptWarning
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement, OpenRound
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_rmsprop import dp_rmsprop
from privopt.methods.dp_sgd import dp_sgd
from privopt.nets import fit, make_private, network_run
from privopt.nets.data import MEMORY, physical_batch_size
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.layout import Stored
from privopt.postprocess.release import average
from privopt.privacy.events import PoissonSampledDpEvent, atoms
from privopt.recipe import Recipe
from privopt.state import PublicState
from tests.problems import accuracy, difference, flat_parameters, tanh_network, tensor_rows
from tests.stopped import StopAt, Stopped

BUDGET = Budget(3.0, 1e-5)


data = partial(tensor_rows, columns=6, score=difference)
network = partial(tanh_network, 6, 16, dropout=0.1)


def _losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


# ---------------------------------------------------------------- what is claimed


def test_fit_learns_within_its_budget_and_says_what_it_did() -> None:
    x, y = data(2000)
    result = fit(network(), nn.CrossEntropyLoss(), (x, y), budget=BUDGET, epochs=10, batch_size=200, seed=0)
    assert accuracy(result.model, x, y) > 0.85
    statement = result.privacy.statement
    assert 0.99 * 3.0 <= statement.epsilon <= 3.0
    assert statement.event == result.ledger.event
    (part, count) = next(atoms(statement.event))
    assert isinstance(part, PoissonSampledDpEvent)
    assert (part.sampling_probability, count) == (0.1, 100)


def test_make_private_learns_within_its_budget_with_any_optimizer_and_scheduler() -> None:
    x, y = data(2000)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    private = make_private(model, optimizer, (x, y), budget=BUDGET, epochs=10, batch_size=200, seed=0)
    for _ in range(10):
        for inputs, targets in private.loader:
            if private.step(functools.partial(_losses, model, inputs, targets)):
                scheduler.step()
    assert accuracy(model, x, y) > 0.85
    assert private.rounds == 100
    assert private.statement().event == private.ledger.event
    assert 0.99 * 3.0 <= private.statement().epsilon <= 3.0


def test_the_model_stays_the_users_own() -> None:
    x, y = data(600)
    model = network()
    keys, attributes = list(model.state_dict()), [set(module.__dict__) for module in model.modules()]
    identities = [id(parameter) for parameter in model.parameters()]
    result = fit(model, nn.CrossEntropyLoss(), (x, y), budget=BUDGET, rounds=3, batch_size=50)
    assert result.model is model
    assert list(model.state_dict()) == keys
    assert [set(module.__dict__) for module in model.modules()] == attributes
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(storages) == len(identities)  # ordinary parameters again
    model.train()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]


# ---------------------------------------------------------------- ordinary training, where nothing is hidden

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
TWINS: dict[str, tuple[Callable[..., Recipe], dict[str, Any], Make]] = {
    "sgd": (dp_sgd, {}, lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": (dp_sgd, {"momentum_decay": 0.9}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "rmsprop": (dp_rmsprop, {"decay": 0.9}, lambda p: torch.optim.RMSprop(p, lr=0.05, alpha=0.9)),
    "adam": (dp_adam, {}, lambda p: torch.optim.Adam(p, lr=0.05)),
}


@pytest.mark.parametrize("name", TWINS)
def test_without_noise_and_clipping_recipes_are_torch_optim(name: str) -> None:
    recipe, options, optimizer_of = TWINS[name]
    x, y = data(64)
    torch.manual_seed(0)
    model, twin = nn.Linear(6, 2).double(), nn.Linear(6, 2).double()
    twin.load_state_dict(model.state_dict())
    x = x.double()
    optimizer = optimizer_of(list(twin.parameters()))
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    oracle = TorchOracle(model, nn.CrossEntropyLoss(), x, y)
    ours = run(
        recipe(rounds=30, noise_multiplier=0.0, clip_bound=1e9, learning_rate=0.05, **options),
        oracle,
        oracle.flat.vector.clone(),
        rng=generator(0),
    ).parameters
    theirs = flat_parameters(twin)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------- pieces, noise, law 1


def test_pieces_of_a_batch_give_what_the_whole_batch_gives() -> None:
    x, y = data(600)
    ends = []
    for piece in (7, 50, 4096):
        model = tanh_network(6, 16, seed=1)
        fit(model, nn.CrossEntropyLoss(), (x, y), budget=BUDGET, rounds=5, batch_size=80, seed=3, physical_batch_size=piece)
        ends.append(flat_parameters(model))
    torch.testing.assert_close(ends[0], ends[2])
    torch.testing.assert_close(ends[1], ends[2])


def test_the_size_of_a_piece_comes_from_the_activations_and_not_from_the_parameters() -> None:
    """4 words of 8 bytes, 4 × 8 numbers and the 4096 after the ReLU: each is kept once, the table of words is not."""
    model = nn.Sequential(nn.Embedding(50_000, 8), nn.Flatten(), nn.Linear(32, 4096), nn.ReLU(), nn.Linear(4096, 2))
    assert physical_batch_size(model, torch.zeros(1, 4, dtype=torch.long)) == MEMORY // (4 * 8 + 4 * (32 + 4096))


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_round_in_pieces_is_the_round(piece: int) -> None:
    x, y = data(200)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    oracle = TorchOracle(model, nn.CrossEntropyLoss(), x, y)
    measurement = Measurement(poisson(0.3), [gradient() @ l2(0.5)], gaussian(1.0))
    at = PublicState(oracle.flat.vector, oracle.flat.vector)
    whole = measurement.measure(oracle, at, 0, generator(5)).value
    opened = OpenRound(measurement, 200, 0, generator(5), torch.zeros_like(oracle.flat.vector), piece)
    for place, rows in enumerate(opened.parts):
        opened.add(place, oracle(oracle.flat.vector, rows))
    torch.testing.assert_close(opened.finish().value, whole, rtol=1e-5, atol=1e-7)


def test_an_example_that_is_not_finite_is_absent() -> None:
    x, y = data(100)
    x[3] = torch.nan
    oracle = TorchOracle(network().eval(), nn.CrossEntropyLoss(), x, y)
    with_it = oracle(None, None).clipped_sum(l2(1.0))
    without = oracle(None, np.delete(np.arange(100), 3)).clipped_sum(l2(1.0))
    torch.testing.assert_close(with_it, without)


def test_a_round_without_examples_is_still_noised_and_paid() -> None:
    x, y = data(5)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()

    def rows(seed: int) -> Any:
        rng = generator(seed)
        rng.integers(2**62)  # dropout's
        return poisson(0.2).draw(5, 0, rng)

    seed = next(seed for seed in range(99) if not len(rows(seed)))
    private = make_private(model, optimizer, (x, y), budget=Budget(1.0, 1e-2), rounds=1, batch_size=1, seed=seed)
    drawn = 0
    for inputs, targets in private.loader:
        drawn += len(inputs)
        private.step(functools.partial(_losses, model, inputs, targets))
    assert drawn == 0
    assert not torch.equal(before, model.weight)
    assert private.ledger.entries[0].count == 1


def test_the_noise_of_a_network_is_what_was_planned() -> None:
    """One round of 4000 parameters at rate 1: the spread of the steps is z·C/b within 6 %, five standard errors of 1.1 %."""
    x, y = torch.zeros(50, 40), torch.zeros(50).long()  # no gradient but the bias's
    model = nn.Linear(40, 100)
    before = model.weight.detach().clone()
    result = fit(
        model,
        nn.CrossEntropyLoss(),
        (x, y),
        budget=BUDGET,
        rounds=1,
        batch_size=50,
        method="dp-gd",
        learning_rate=1.0,
        clip_bound=1.0,
        seed=0,
    )
    moved = (model.weight - before).detach()
    noise = result.privacy.statement.settings["noise multiplier"]
    assert float(moved.std()) == pytest.approx(noise / 50, rel=0.06)


# ---------------------------------------------------------------- killed and resumed


def test_a_stopped_run_goes_on_bit_for_bit_and_pays_once(tmp_path: Path) -> None:
    x, y = data(600)
    settings: dict[str, Any] = {"budget": BUDGET, "rounds": 40, "batch_size": 60, "learning_rate": 0.01, "seed": 5}
    whole = fit(network(), nn.CrossEntropyLoss(), (x, y), **settings, ledger=Ledger(path=tmp_path / "whole.jsonl"))

    with Ledger(path=tmp_path / "stopped.jsonl") as ledger:
        for _ in range(2):
            with pytest.raises(Stopped):
                fit(
                    network(),
                    nn.CrossEntropyLoss(),
                    (x, y),
                    **settings,
                    ledger=ledger,
                    checkpoint=tmp_path / "state",
                    progress=StopAt(13, 27),
                )
        assert any((tmp_path / "state").iterdir())
        resumed = fit(network(), nn.CrossEntropyLoss(), (x, y), **settings, ledger=ledger, checkpoint=tmp_path / "state")
        for ours, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert ledger.event == whole.ledger.event
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["finished.npz"]


def test_resuming_on_other_data_is_refused(tmp_path: Path) -> None:
    x, y = data(600)
    settings: dict[str, Any] = {"budget": BUDGET, "rounds": 40, "batch_size": 60, "checkpoint": tmp_path / "state"}
    with pytest.raises(Stopped):
        fit(network(), nn.CrossEntropyLoss(), (x, y), **settings, progress=StopAt(1))
    with pytest.raises(InputError, match="not those that this run began with"):
        fit(network(), nn.CrossEntropyLoss(), (x + 1, y), **settings)


# ---------------------------------------------------------------- large models


@pytest.mark.parametrize("settings", [{}, {"method": "dp-srm", "options": {"change_bound": 0.1, "refresh": 0.2}}], ids=str)
def test_a_large_network_moves_part_by_part_as_it_does_whole(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, whose gradients are computed where the iterate is; DP-SRM looks back at the iterate before."""

    def trained() -> Tensor:
        model = network()
        fit(
            model, nn.CrossEntropyLoss(), data(200), budget=BUDGET, rounds=6, batch_size=60, learning_rate=0.5, clip_bound=1.0,
            physical_batch_size=16, release=average("last half"), seed=5, **settings,
        )  # fmt: skip
        return flat_parameters(model)

    whole = trained()
    monkeypatch.setattr(privopt.state, "PART", 50)
    torch.testing.assert_close(trained(), whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kept", ["in memory", "in a file", "in memory, as the disk is full"])
def test_a_run_that_fails_gives_the_model_its_start_values_back(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kept != "in memory":
        monkeypatch.setattr(network_run, "Stored", partial(Stored, large=0))
    if "full" in kept:
        monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "wb"))
    model = network()
    before = flat_parameters(model).clone()
    with pytest.raises(Stopped):
        fit(
            model, nn.CrossEntropyLoss(), data(200), budget=BUDGET, rounds=6, batch_size=60, learning_rate=0.5, progress=StopAt(3)
        )
    assert torch.equal(flat_parameters(model), before)


# ---------------------------------------------------------------- datasets


class _Pairs(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self._x, self._y = data(size)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, place: int) -> Any:
        return self._x[place], self._y[place]


def test_datasets_work_like_tensors() -> None:
    pairs = _Pairs(200)
    settings: dict[str, Any] = {"budget": BUDGET, "rounds": 4, "batch_size": 50, "seed": 0}
    one = fit(network().eval(), nn.CrossEntropyLoss(), pairs, **settings).model
    other = fit(network().eval(), nn.CrossEntropyLoss(), data(200), **settings).model
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


# ---------------------------------------------------------------- refused


def test_a_batch_that_is_not_used_is_noticed() -> None:
    model = nn.Linear(6, 2)
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data(600), budget=BUDGET, rounds=5, batch_size=100)
    batches = iter(private.loader)
    next(batches)
    with pytest.raises(InputError, match="step"):
        next(batches)


def test_a_step_without_a_batch_is_refused() -> None:
    model = nn.Linear(6, 2)
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data(600), budget=BUDGET, rounds=5, batch_size=100)
    with pytest.raises(InputError, match="once for each"):
        private.step(lambda: torch.zeros(1))


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="not the model's"):
        make_private(
            nn.Linear(6, 2),
            torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1),
            data(600),
            budget=BUDGET,
            rounds=5,
            batch_size=9,
        )


def test_a_ledger_that_runs_dry_stops_training_with_the_model_so_far() -> None:
    ledger = Ledger(Budget(2.0, 1e-5))
    with pytest.warns(PrivoptWarning, match="stopped after") as caught:
        result = fit(nn.Linear(6, 2), nn.CrossEntropyLoss(), data(600), budget=BUDGET, rounds=20, batch_size=50, ledger=ledger)
    assert caught[0].filename == __file__
    assert result.stopped_early
    assert 0 < result.rounds < 20
    assert ledger.epsilon() <= 2.0


def test_a_ledger_copy_cannot_be_spent_from(tmp_path: Path) -> None:
    with Ledger(path=tmp_path / "ledger.jsonl") as ledger:
        fit(nn.Linear(6, 2), nn.CrossEntropyLoss(), data(600), budget=BUDGET, rounds=2, batch_size=50, ledger=ledger)
    with pytest.raises(LedgerError):
        fit(
            nn.Linear(6, 2),
            nn.CrossEntropyLoss(),
            data(600),
            budget=BUDGET,
            rounds=2,
            batch_size=50,
            ledger=Ledger.read(tmp_path / "ledger.jsonl"),
        )
