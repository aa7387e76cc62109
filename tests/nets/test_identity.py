"""A resumed run is the same run: another loss, model, option or public example is refused, and nothing is charged."""

import functools
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privopt import Budget, Ledger, fit
from privopt.errors import InputError
from privopt.measure.clips import automatic
from privopt.nets.identity import identify
from tests.stopped import StopAt, Stopped

WEIGHT = 1.0


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def weighted(weight: float) -> Callable[..., Tensor]:
    return lambda output, targets: weight * nn.functional.cross_entropy(output, targets, reduction="none")


def with_default(output: Tensor, targets: Tensor, weight: float = 1.0) -> Tensor:
    return weight * nn.functional.cross_entropy(output, targets, reduction="none")


def with_global(output: Tensor, targets: Tensor) -> Tensor:
    return WEIGHT * nn.functional.cross_entropy(output, targets, reduction="none")


class Weighted:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        return self.weight * nn.functional.cross_entropy(output, targets, reduction="none")


class Network(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.activation = nn.Linear(4, 3), nn.Linear(3, 2), activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.activation(self.first(x)))
        return found


class Another(Network):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(x)))
        return found


Another.__qualname__ = Another.__name__ = "Network"


def dropping(share: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(share), nn.Linear(3, 2))


def hooked(scale: float) -> nn.Module:
    model = Network()
    model.first.register_forward_hook(lambda module, given, output: scale * output)
    return model


PUBLIC = (torch.ones(64, 4), torch.zeros(64, dtype=torch.long))
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a lambda of the same name": (
        {"loss": lambda output, targets: nn.functional.cross_entropy(output, targets, reduction="none")},
        {"loss": lambda output, targets: nn.functional.nll_loss(output, targets, reduction="none")},
    ),
    "a constant": ({"loss": lambda o, t: 1.0 * o[:, 0]}, {"loss": lambda o, t: 2.0 * o[:, 0]}),
    "a closure value": ({"loss": weighted(1.0)}, {"loss": weighted(2.0)}),
    "an argument of a partial": (
        {"loss": functools.partial(with_default, weight=1.0)},
        {"loss": functools.partial(with_default, weight=2.0)},
    ),
    "an attribute of a callable": ({"loss": Weighted(1.0)}, {"loss": Weighted(2.0)}),
    "another forward": ({"model": Network}, {"model": Another}),
    "a function that the model holds": ({"model": Network}, {"model": lambda: Network(torch.sigmoid)}),
    "a share of dropout": ({"model": lambda: dropping(0.1)}, {"model": lambda: dropping(0.4)}),
    "a hook": ({"model": lambda: hooked(1.0)}, {"model": lambda: hooked(2.0)}),
    "a clip": ({"clip_bound": 1.0}, {"clip_bound": automatic(1.0)}),
    "a schedule": ({"learning_rate": lambda round_: 0.1}, {"learning_rate": lambda round_: 0.1 / (1 + round_)}),
    "an option": ({"options": {"stability": 1e-3}}, {"options": {"stability": 1e-2}}),
    "an accountant": ({"accountant": "rdp"}, {"accountant": "pld"}),
    "public examples": (
        {"method": "dp-r-pub", "public": PUBLIC},
        {"method": "dp-r-pub", "public": (2 * PUBLIC[0], PUBLIC[1])},
    ),
}


def fitted(folder: Path, given: dict[str, Any], **more: Any) -> Any:
    settings = {
        "model": Network,
        "loss": nn.CrossEntropyLoss(),
        "budget": Budget(3.0, 1e-5),
        "rounds": 4,
        "batch_size": 60,
        "accountant": "rdp",
        "checkpoint": folder,
        "learning_rate": 0.1,
        **given,
        **more,
    }
    return fit(settings.pop("model")(), settings.pop("loss"), data(), **settings)


@pytest.mark.parametrize("name", OTHERS)
def test_noise_is_not_replayed_on_another_query(name: str, tmp_path: Path) -> None:
    first, other = OTHERS[name]
    ledger = Ledger()
    with pytest.raises(Stopped):
        fitted(tmp_path / "state", first, ledger=ledger, progress=StopAt(2))
    entries = ledger.entries
    with pytest.raises(InputError, match="not those that this run began with"):
        fitted(tmp_path / "state", other, ledger=ledger)
    assert ledger.entries == entries
    fitted(tmp_path / "state", first, ledger=ledger)
    assert sum(entry.count for entry in ledger.entries) == 4


def test_a_model_that_a_stopped_run_trained_can_be_given_to_it_again(tmp_path: Path) -> None:
    """It has its start values again, which are public; so has one that was given to a run without a checkpoint."""
    model = Network()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    ledger = Ledger()
    with pytest.raises(Stopped):
        fitted(tmp_path / "state", {"model": lambda: model}, ledger=ledger, progress=StopAt(2))
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    fitted(tmp_path / "state", {"model": lambda: model}, ledger=ledger)
    assert sum(entry.count for entry in ledger.entries) == 4
    assert not torch.equal(model.first.weight, start["first.weight"])


def test_a_finished_run_is_returned_again_and_another_one_is_another(tmp_path: Path) -> None:
    ledger = Ledger()
    one = fitted(tmp_path / "state", {}, ledger=ledger)
    again = fitted(tmp_path / "state", {}, ledger=ledger)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), again.model.parameters(), strict=True))
    assert one.privacy.statement == again.privacy.statement
    assert sum(entry.count for entry in ledger.entries) == 4
    assert fitted(tmp_path / "state", {}).ledger.event == ledger.event  # a ledger that was lost is charged again
    other = fitted(tmp_path / "state", {"loss": weighted(2.0)}, ledger=ledger)
    assert sum(entry.count for entry in ledger.entries) == 8
    assert not torch.equal(other.model.first.weight, one.model.first.weight)


def test_what_cannot_be_told_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    class Logged(Network):
        def __init__(self, file: Any) -> None:
            super().__init__()
            self.file = file

    ledger = Ledger()
    with (tmp_path / "log").open("w") as file, pytest.raises(InputError, match=r"model → file: a TextIOWrapper cannot be told"):
        fitted(tmp_path / "state", {"model": lambda: Logged(file)}, ledger=ledger)
    assert ledger.entries == ()
    assert not (tmp_path / "state").exists()


def test_software_that_is_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped):
        fitted(tmp_path / "state", {}, progress=StopAt(2))
    monkeypatch.setattr("privopt.checkpoint.software", lambda: "privopt 9.9.9")
    with pytest.raises(InputError, match=r"began with privopt 0.*but here is privopt 9\.9\.9"):
        fitted(tmp_path / "state", {})


# ---------------------------------------------------------------- what is told apart, and what is not


def module_with(source: str) -> types.ModuleType:
    module = types.ModuleType("helpers")
    module.__file__ = "helpers.py"
    exec(source, vars(module))
    return module


def test_code_of_other_modules_counts() -> None:
    def using(helpers: types.ModuleType) -> Any:
        space = {"helpers": helpers}
        exec("def loss(output): return helpers.scaled(output)", space)
        return space["loss"]

    one, same, other = (module_with(f"def scaled(x): return {scale} * x") for scale in (2, 2, 3))
    assert identify(loss=using(one)) == identify(loss=using(same)) != identify(loss=using(other))


def test_a_global_number_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identify(loss=with_global)
    assert before == identify(loss=with_global)
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", 2.0)
    assert before != identify(loss=with_global)


def test_lines_names_of_files_and_comments_do_not_count() -> None:
    def made(source: str, file: str) -> Any:
        space: dict[str, Any] = {}
        exec(compile(source, file, "exec"), space)
        return space["loss"]

    assert identify(loss=made("def loss(x): return x", "a.py")) == identify(loss=made("# new\n\ndef loss(x): return x", "b.py"))


@pytest.mark.parametrize(
    "layer", [nn.LSTM(3, 4), nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2, 8), nn.GroupNorm(2, 4)]
)
def test_modules_of_torch_are_told_by_their_values(layer: nn.Module) -> None:
    before, code = identify(model=layer), identify(values=False, model=layer)
    assert before == identify(model=layer)
    with torch.no_grad():
        next(layer.parameters()).add_(1)
    assert identify(model=layer) != before
    assert identify(values=False, model=layer) == code


def test_another_process_finds_the_same() -> None:
    code = "from tests.nets.test_identity import *; print(identify(model=Network(), loss=Weighted(2.0), more=with_global))"
    other = {**os.environ, "PYTHONHASHSEED": "1"}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=other).stdout
    assert printed.strip() == identify(model=Network(), loss=Weighted(2.0), more=with_global)
