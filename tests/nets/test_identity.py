"""A resumed run is the same run: another loss, model, option or public example is refused, and nothing is charged."""

import dataclasses
import functools
import importlib.util
import os
import random
import re
import sys
import types
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from privopt import Budget, Ledger, fit
from privopt.errors import InputError
from privopt.measure.clips import automatic
from privopt.nets.identity import identify, probe_model
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.rng import global_generators, seed_all
from tests.problems import tensor_rows
from tests.processes import Connection, answered, one_fork_server
from tests.stopped import StopAt, Stopped

WEIGHT = 1.0


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
    "an option": ({"options": {"momentum_decay": 0.9}}, {"options": {"momentum_decay": 0.8}}),
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
    return fit(settings.pop("model")(), settings.pop("loss"), tensor_rows(60, 4), **settings)


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
    with (tmp_path / "log").open("w") as file, pytest.raises(InputError, match=r"model → file: a TextIOWrapper has no value"):
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


def find(connection: Connection) -> None:
    connection.send((hash("a word"), identify(model=Network(), loss=Weighted(2.0), more=with_global)))


@one_fork_server
def test_another_process_finds_the_same() -> None:
    """The fork server is a program of its own, with a seed of its own for the hashes of words."""
    other_hash, found = answered(find)
    assert found == identify(model=Network(), loss=Weighted(2.0), more=with_global)
    assert other_hash != hash("a word") or "PYTHONHASHSEED" in os.environ


# ---------------------------------------------------------------- an identity does not change by itself


@dataclasses.dataclass
class Settings:
    width: int = 3


class PlainSettings:
    def __init__(self) -> None:
        self.width = 3


def configured(kind: Callable[[], Any]) -> type[Network]:
    """A model that holds settings, whose class its code names as well; classes that nobody has pickled so far."""

    class Configured(Network):
        def __init__(self) -> None:
            super().__init__()
            self.settings = kind()

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * kind().width

    return Configured


@pytest.mark.parametrize("base", [Settings, PlainSettings])
def test_a_run_with_settings_of_a_class_of_the_user_is_paid_once(base: type, tmp_path: Path) -> None:
    kind = type("Kind", (base,), {"__module__": __name__})
    model, ledger = configured(kind), Ledger()
    found = [fitted(tmp_path / "state", {"model": model}, ledger=ledger).model for _ in range(3)]
    assert all(torch.equal(found[0].first.weight, other.first.weight) for other in found)
    assert sum(entry.count for entry in ledger.entries) == 4


def test_asking_for_annotations_changes_nothing() -> None:
    kind = type("Bare", (), {"__module__": __name__})
    before = identify(kind=kind)
    assert kind.__annotations__ == {}
    assert identify(kind=kind) == before


class Counting(Network):
    """A model that counts its calls and keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.kept = 0, torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.kept = x.detach()
        return super().forward(x)


def test_a_model_that_counts_its_calls_goes_on(tmp_path: Path) -> None:
    ledger = Ledger()
    with pytest.raises(Stopped):
        fitted(tmp_path / "state", {"model": Counting}, ledger=ledger, progress=StopAt(2))
    fitted(tmp_path / "state", {"model": Counting}, ledger=ledger)
    assert sum(entry.count for entry in ledger.entries) == 4


def test_what_differs_is_named(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fitted(tmp_path / "state", {}, progress=StopAt(2))
    for given, part in (({"loss": weighted(2.0)}, "loss"), ({"model": Another}, "model"), ({"clip_bound": 2.0}, "settings")):
        with pytest.raises(InputError, match=rf"\(different: {part}\)"):
            fitted(tmp_path / "state", given)


# ---------------------------------------------------------------- whose code is read

SOURCE = """
from torch import nn
class Net(nn.Module):
    def forward(self, x): return {}
"""


def model_of_file(folder: Path, result: str) -> nn.Module:
    """Of a module that is not among those that Python knows."""
    file = folder / "network_of_user.py"
    file.write_text(SOURCE.format(result))
    spec = importlib.util.spec_from_file_location("network_of_user", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    found: nn.Module = module.Net()
    return found


def model_of_string(folder: Path, result: str) -> nn.Module:
    """Its class believes that it is one of Python's own."""
    space: dict[str, Any] = {}
    exec(SOURCE.format(result), space)
    assert space["Net"].__module__ == "builtins"
    found: nn.Module = space["Net"]()
    return found


def model_in_name_of_torch(folder: Path, result: str) -> nn.Module:
    space: dict[str, Any] = {"__name__": "torch.nn"}
    exec(SOURCE.format(result), space)
    found: nn.Module = space["Net"]()
    return found


@pytest.mark.parametrize("made", [model_of_file, model_of_string, model_in_name_of_torch])
def test_code_counts_wherever_it_comes_from(made: Callable[[Path, str], nn.Module], tmp_path: Path) -> None:
    one, same, other = (identify(model=made(tmp_path, result)) for result in ("x", "x", "3 * x"))
    assert one == same != other


@pytest.mark.parametrize("home", [__name__, "__main__"])
@pytest.mark.parametrize("around", [torch.no_grad(), torch.autocast("cpu"), torch.vmap])
def test_code_under_a_decorator_of_a_package_counts(around: Callable[[Any], Any], home: str) -> None:
    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    def tripled(x: Tensor) -> Tensor:
        return 3 * x

    tripled.__name__, tripled.__qualname__ = doubled.__name__, doubled.__qualname__
    doubled.__module__ = tripled.__module__ = home
    one = around(doubled)
    before = identify(loss=one)
    assert before == identify(loss=around(doubled)) != identify(loss=around(tripled))
    one(torch.ones(3))
    assert identify(loss=one) == before


def test_a_value_of_an_enumeration_counts() -> None:
    one, same, other = (Enum("Choice", {"FIRST": (value,)}) for value in (1, 1, 2))
    assert identify(model=one.FIRST) == identify(model=same.FIRST) != identify(model=other.FIRST)  # type: ignore[attr-defined]


def test_a_regular_expression_is_told_by_its_pattern() -> None:
    assert identify(model=re.compile("a")) == identify(model=re.compile("a")) != identify(model=re.compile("b"))


# ---------------------------------------------------------------- random numbers of a replay


class Augmented(Dataset[Any]):
    """Examples that are moved at random, by numbers of Python's and NumPy's global generators."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        x, y = tensor_rows(60, 4)
        return x[place] + random.random() + np.random.rand(), y[place]  # noqa: NPY002


def test_a_replay_repeats_the_numbers_of_python_and_numpy(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"budget": Budget(3.0, 1e-5), "rounds": 4, "batch_size": 60, "accountant": "rdp", "seed": 1}
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    whole = fit(Network(), nn.CrossEntropyLoss(), Augmented(), checkpoint=tmp_path / "whole", **settings).model
    with pytest.raises(Stopped):
        fit(Network(), nn.CrossEntropyLoss(), Augmented(), checkpoint=tmp_path / "again", progress=StopAt(3), **settings)
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    again = fit(Network(), nn.CrossEntropyLoss(), Augmented(), checkpoint=tmp_path / "again", **settings).model
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_the_users_generators_go_on_where_they_were() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    wanted = random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    with global_generators(torch.device("cpu")):
        seed_all(5)
        outer = random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002
        seed_all(5)
        with global_generators(torch.device("cpu")):
            seed_all(6)
            assert (random.random(), np.random.rand(), float(torch.rand(1))) != outer  # noqa: NPY002
            with global_generators(torch.device("cpu")):
                seed_all(7)
        assert (random.random(), np.random.rand(), float(torch.rand(1))) == outer  # noqa: NPY002
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == wanted  # noqa: NPY002


class Drawing(Network):
    """A model with a generator of its own, which a resumed run would begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.rng.uniform(0.5, 1.5)


def test_a_model_with_a_generator_of_its_own_has_no_checkpoint() -> None:
    oracle = TorchOracle(Drawing(), nn.CrossEntropyLoss(reduction="none"), *tensor_rows(60, 4), check=False)
    with pytest.raises(InputError, match="computes something else when it is called again"):
        probe_model(oracle, tuple(part[:1] for part in tensor_rows(60, 4)))


def test_a_loss_that_acts_at_exact_targets_is_told_apart() -> None:
    def asked(scale: float) -> list[float]:
        def loss(output: Tensor, targets: Tensor) -> Tensor:
            return (output[:, 0] - targets) ** 2 * torch.where(targets == 1, scale, 1.0)

        x, y = tensor_rows(60, 4)
        return probe_model(TorchOracle(Network(), loss, x, y.float(), check=False), (x[:1], y[:1].float()))

    assert asked(1.0) == asked(1.0) != asked(2.0)
