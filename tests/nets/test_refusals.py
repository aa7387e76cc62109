"""What cannot be trained is refused at the start, by name and with what would do.

Nothing is paid, no file is made, and no message holds a private value or a stack trace of torch's.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from privopt import Budget, Ledger
from privopt.errors import CompositionError, InputError, PrivoptError, PrivoptWarning
from privopt.measure.clips import l2_moved, per_layer
from privopt.nets import fit, make_private
from privopt.perexample.networks.examples import move_to_device
from privopt.postprocess.regularizers import ridge
from tests.problems import flat_parameters, tensor_rows

BUDGET = Budget(3.0, 1e-5)
X, Y = tensor_rows(60)
CE, BCE, MSE = nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(), nn.MSELoss()


class Sequences(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(3, 4, batch_first=batch_first), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.memory(x)[0]
        return self.head(states[:, -1])


class Averages(nn.Module):
    """An output without a batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).mean(0)


class Recomputes(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2)
        self._use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(recomputed(self.middle, self.first(x), use_reentrant=self._use_reentrant))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Things(Dataset[Any]):
    def __init__(self, *things: Any) -> None:
        self._things = things

    def __len__(self) -> int:
        return len(self._things)

    def __getitem__(self, place: int) -> Any:
        return self._things[place]


def mean(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, targets)


def linear(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(6, outputs))


REFUSED: dict[str, tuple[Any, Any, Any, str]] = {
    "a module that mixes": (
        nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)),
        CE,
        (X, Y),
        r"1 \(BatchNorm1d\).*replace_batchnorm",
    ),
    "a loss over the batch": (linear(), mean, (X, Y), 'reduction="none"'),
    "a loss that is no tensor": (linear(), lambda o, t: 1.0, (X, Y), "gave a float"),
    "no loss": (linear(), "cross_entropy", (X, Y), "loss is a str"),
    "no model": (lambda x: x, CE, (X, Y), "torch.nn.Module is needed"),
    "no length": (linear(), CE, Endless(), "Endless has no length.*map-style"),
    "a loader that shuffles": (linear(), CE, torch.utils.data.DataLoader(TensorDataset(X, Y), shuffle=True), "has shuffle=True"),
    "arrays": (linear(), CE, (X.numpy(), Y.numpy()), r"\(ndarray, ndarray\).*torch\.as_tensor"),
    "more inputs than targets": (linear(), CE, (X, Y[:5]), "60 inputs, but 5 targets"),
    "a scalar target": (linear(), CE, (X, Y[0]), "60 inputs, but no targets"),
    "no targets": (linear(), CE, TensorDataset(X), r"a pair \(inputs, targets\)"),
    "two targets": (linear(), CE, TensorDataset(X, Y, Y), r"\(\(a, b\), y\)"),
    "no pairs": (linear(), CE, Things(*X), "is a Tensor, but a pair"),
    "no examples": (linear(), CE, (X[:0], Y[:0]), "empty"),
    "a class too many": (linear(), CE, (X, Y + 41), "2 outputs takes the classes 0 … 1, but some label is outside"),
    "a negative class": (linear(), CE, (X, Y - 41), "0 … 1, but some label is outside"),
    "one class too many": (linear(), CE, (X, torch.cat([Y[:-1], torch.tensor([42])])), "some label is outside"),
    "a class too many, NLL": (nn.Sequential(linear(), nn.LogSoftmax(1)), nn.NLLLoss(), (X, Y + 41), "NLLLoss on 2 outputs"),
    "one output": (linear(1), CE, (X, 0 * Y), "BCEWithLogitsLoss"),
    "classes as floats": (linear(), CE, (X, Y.float()), r"torch\.float32\. Use targets\.long\(\)"),
    "classes as int32": (linear(), CE, (X, Y.int()), r"torch\.int32\. Use targets\.long\(\)"),
    "classes in a column": (linear(), CE, (X, Y[:, None]), r"targets are \(examples, 1\)"),
    "probabilities as classes": (linear(1), BCE, (X, Y[:, None]), r"torch\.int64\. Use targets\.float\(\)"),
    "a row for a column": (linear(1), BCE, (X, Y.float()), r"\(examples, 1\) and the targets are \(examples\).*unsqueeze"),
    "numbers that would be stretched": (linear(1), MSE, (X, Y.float()), r"MSELoss.*\(examples, 1\).*\(examples\)"),
    "another width": (
        nn.Linear(5, 2),
        CE,
        (X, Y),
        r"the model cannot be run.*float32 \(examples, 6\).*shapes cannot be multiplied",
    ),
    "another precision": (linear(), CE, (X.double(), Y), r"float64 \(examples, 6\).*inputs\.to\(torch\.float32\)"),
    "integers for numbers": (linear(), CE, (X.long(), Y), r"int64 \(examples, 6\)"),
    "a model without values": (nn.Linear(6, 2, device="meta"), CE, (X, Y), "weight is on the meta device"),
    "data elsewhere": (linear(), CE, (X.to("meta"), Y.to("meta")), "data are on meta, the model is on cpu.*on the CPU"),
    "targets elsewhere": (linear(), CE, (X, Y.to("meta")), "data are on meta, the model is on cpu"),
    "parameters in half precision": (linear().bfloat16(), CE, (X.bfloat16(), Y), r"0\.weight is torch\.bfloat16.*autocast"),
    "time first": (Sequences(batch_first=False), CE, (X.view(60, 2, 3), Y), r"memory \(LSTM\).*batch_first=True"),
    "time first, as long as the batch": (Sequences(batch_first=False), CE, (X.repeat(1, 3)[:, :15].view(60, 5, 3), Y), "alone"),
    "no batch dimension": (Averages(), CE, (X, Y), r"output has shape \(2,\) for a batch of 3"),
    "no batch dimension, own loss": (Averages(), lambda o, t: (o - t[:, None]).square().sum(1), (X, Y), "inner.weight.*alone"),
    "recomputed layers": (Recomputes(use_reentrant=True), CE, (X, Y), "use_reentrant=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_before_anything_is_paid(name: str, tmp_path: Path) -> None:
    model, loss, data, message = REFUSED[name]
    ledger, folder = Ledger(), tmp_path / "state"
    before = {key: value.clone() for key, value in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    with pytest.raises(PrivoptError, match=message) as refusal:
        fit(model, loss, data, budget=BUDGET, rounds=2, batch_size=20, ledger=ledger, checkpoint=folder)
    assert ledger.entries == ()
    assert not folder.exists()
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None  # torch's own trace is not shown
    for private in ("41", "42", "-41"):
        assert private not in str(refusal.value)
    if before and all(value.device.type == "cpu" for value in before.values()):
        assert isinstance(model, nn.Module)
        assert all(parameter.is_contiguous() and parameter.storage_offset() == 0 for parameter in model.parameters())
        for key, value in model.state_dict().items():
            torch.testing.assert_close(value, before[key])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "sgd"}, "method is 'sgd'; the methods are dp-adam"),
        ({"options": {"momentum": 0.9}}, "no option momentum; its options are momentum_decay"),
        ({"options": {"rounds": 9}}, "no option rounds"),
        ({"clip_bound": -1.0}, "clip_bound is -1.0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 2.5}, r"rounds is 2\.5, but it is a whole number"),
        ({"batch_size": 9.5}, r"batch_size is 9\.5"),
        ({"rounds": None, "epochs": 0}, "epochs is 0"),
        ({"rounds": None, "epochs": float("inf")}, "epochs is inf"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1"),
        ({"epochs": 3}, "not both"),
        ({"budget": Budget(1.0)}, "delta is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivoptError, match=message):
        fit(linear(), CE, (X, Y), **({"budget": BUDGET, "rounds": 2, "batch_size": 20} | settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 3.0}, "it is a Budget"),
        ({"ledger": 3}, "it is a Ledger"),
        ({"clip_bound": "1"}, "clip_bound is '1'"),
        ({"clip_bound": 0.0}, "clip_bound is 0.0"),
        ({"physical_batch_size": -5}, "physical_batch_size is -5"),
        ({"seed": -1}, "the seed is -1"),
        ({"learning_rate": lambda round_: float("nan")}, "learning_rate is nan"),
    ],
)
def test_settings_of_another_kind_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivoptError, match=message):
        fit(linear(), CE, (X, Y), **({"budget": BUDGET, "rounds": 2, "batch_size": 20} | settings))


def test_a_scripted_model_is_refused_by_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would like to be rid of it, too
        scripted = torch.jit.script(linear())
    with pytest.raises(PrivoptError, match="TorchScript"):
        fit(scripted, CE, (X, Y), budget=BUDGET, rounds=2, batch_size=20)


def test_a_step_of_the_optimizer_with_raw_gradients_is_refused_in_the_loop_and_fine_after_it() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(model, optimizer, (X, Y), budget=BUDGET, rounds=2, batch_size=20)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    for x, y in private.loader:
        private.step(lambda x=x, y=y: loss(model(x), y))  # type: ignore[misc]
        before = flat_parameters(model)
        loss(model(x), y).sum().backward()
        with pytest.raises(PrivoptError, match="gradients that are not private"):
            optimizer.step()
        optimizer.zero_grad()
        optimizer.step()  # of a trainer, without any gradient
        assert torch.equal(flat_parameters(model), before)
    optimizer.step()


def test_a_delta_of_one_in_n_is_warned_about_where_it_is_given() -> None:
    model, weak = linear(), Budget(3.0, 1 / 60)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.warns(PrivoptWarning, match="not below 1/n") as by_fit:
        fitted = fit(model, CE, (X, Y), budget=weak, rounds=1, batch_size=20)
    with pytest.warns(PrivoptWarning, match="not below 1/n") as by_loop:
        private = make_private(model, optimizer, (X, Y), budget=weak, rounds=1, batch_size=20)
    for statement in (fitted.privacy.statement, private.statement()):
        assert "CAUTION: delta" in statement.text()
    assert by_fit[0].filename == by_loop[0].filename == __file__


def test_a_label_that_only_a_dataset_knows_is_refused_without_saying_which() -> None:
    items = [(X[i], Y[i]) for i in range(60)]
    items[-1] = (X[-1], torch.tensor(42))
    with pytest.raises(PrivoptError, match="some label is outside") as refusal:
        fit(linear(), CE, items, budget=BUDGET, rounds=1, batch_size=60)
    assert "42" not in str(refusal.value)


def test_what_torch_says_about_private_examples_is_not_shown() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2))
    tokens = torch.full((60, 2), 42)
    with pytest.raises(InputError, match=r"IndexError.*token") as refusal:
        fit(model, CE, (tokens, Y), budget=BUDGET, rounds=1, batch_size=60)
    assert refusal.value.__suppress_context__
    assert "42" not in str(refusal.value)


@pytest.mark.parametrize("optimizer", ["adam", torch.optim.SGD, None])
def test_what_is_no_optimizer_is_named(optimizer: Any) -> None:
    with pytest.raises(InputError, match="but one of torch is needed"):
        make_private(linear(), optimizer, (X, Y), budget=BUDGET, rounds=1, batch_size=20)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", ["inputs", "targets"])
def test_numbers_that_are_not_finite_are_refused_before_anything_is_paid(place: str, value: float) -> None:
    x, y, ledger = X.clone(), X[:, :1].clone(), Ledger()
    (x if place == "inputs" else y)[3] = value
    with pytest.raises(InputError, match=f"the {place} hold missing or infinite numbers"):
        fit(nn.Linear(3, 1), nn.MSELoss(), (x, y), budget=BUDGET, rounds=2, batch_size=20, ledger=ledger)
    assert ledger.entries == ()


def test_ignored_labels_are_no_error() -> None:
    x, y = X.clone(), Y.clone()
    y[3] = -100  # what CrossEntropyLoss leaves out
    model = linear()
    fit(model, CE, (x, y), budget=BUDGET, rounds=2, batch_size=20)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_probabilities_and_lists_of_pairs_are_data() -> None:
    fit(linear(), CE, (X, torch.softmax(X[:, :2], 1)), budget=BUDGET, rounds=1, batch_size=20)
    fit(linear(), CE, list(zip(X, Y, strict=True)), budget=BUDGET, rounds=1, batch_size=20)


def test_data_on_the_cpu_are_moved_to_the_model() -> None:
    """A device that can hold shapes only stands for one that is not here."""
    there = move_to_device({"tokens": X, "others": (Y, None)}, torch.device("meta"))
    assert there["tokens"].device.type == there["others"][0].device.type == "meta"
    with pytest.raises(InputError, match="data are on meta, the model is on cpu"):
        move_to_device((X, Y.to("meta")), torch.device("cpu"))


def test_a_model_whose_statistics_are_fixed_keeps_its_modes() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(6, 4), norm.eval(), nn.Dropout(0.5), nn.Linear(4, 2))
    assert norm.running_mean is not None
    statistics = norm.running_mean.clone()
    fit(model, CE, (X, Y), budget=BUDGET, rounds=2, batch_size=20)
    assert [module.training for module in model] == [True, False, True, True]
    torch.testing.assert_close(norm.running_mean, statistics)


def test_torchs_own_generator_goes_on_where_it_was() -> None:
    model = linear()
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    fit(model, CE, (X, Y), budget=BUDGET, rounds=2, batch_size=20)
    torch.testing.assert_close(torch.rand(2), wanted)


def test_recomputed_layers_train_as_others_do() -> None:
    ends: list[Tensor] = []
    for plain in (False, True):
        torch.manual_seed(0)
        model = Recomputes(use_reentrant=False)
        whole = nn.Sequential(model.first, model.middle, model.last) if plain else model
        fit(whole, CE, (X, Y), budget=BUDGET, rounds=3, batch_size=20, seed=0)
        ends.append(flat_parameters(model))
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clip_bound": l2_moved(1.0)}, "use it with gradient_difference"),
        ({"clip_bound": per_layer({"body": 1.0})}, "no bound for weight"),
        ({"method": "adadps", "options": {"scale": np.ones(3)}}, r"fixed_scale has the shape \(3,\), but there are 14"),
        ({"method": "dp-sgd", "options": {"regularizer": ridge(0.1, torch.ones(3))}}, r"mask of ridge has the shape \(3,\)"),
    ],
)
def test_a_method_that_does_not_fit_the_model_is_refused_before_anything_is_paid_or_saved(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    ledger, model = Ledger(), nn.Linear(6, 2)
    settings: dict[str, Any] = {"budget": BUDGET, "batch_size": 20, "rounds": 2, "ledger": ledger}
    with pytest.raises(CompositionError, match=message):
        fit(model, CE, (X, Y), learning_rate=0.1, checkpoint=tmp_path / "state", **settings, **wrong)
    if "clip_bound" in wrong:
        with pytest.raises(CompositionError, match=message):
            make_private(model, torch.optim.SGD(model.parameters(), 0.1), (X, Y), **settings, **wrong)
    assert ledger.entries == ()
    assert not (tmp_path / "state").exists()
