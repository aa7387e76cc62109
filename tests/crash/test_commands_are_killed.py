"""`privopt train`, killed at any durable call: going on gives the same model, pays once, and leaves no randomness behind."""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privopt.loop
from privopt.methods import METHODS
from privopt.runs.folder import RunFolder
from tests.crash.killing import durable_calls, killed_at, spread
from tests.laws.table import ROW_METHODS
from tests.problems import patients
from tests.processes import one_fork_server

pytestmark = one_fork_server
LONG = bool(os.environ.get("PRIVOPT_LONG"))
PUBLIC = ("sagd-sparse", "adadps", "dp-r-pub", "dp-adam-pub", "pda-dpmd", "warm-start", "adas")
PLACES = {"dp-adam": 4, "surveys": 5}  # of the kills; elsewhere one


def command(*arguments: str) -> None:
    """As in a terminal, but that every round is paid for and saved apart."""
    from privopt.cli.application import app

    privopt.loop.DURABILITY = 1e9
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        try:
            app(list(arguments))
        except SystemExit as end:
            if end.code:
                raise AssertionError(errors.getvalue()) from end


@dataclass(frozen=True)
class Case:
    """What is asked for, in any folder."""

    name: str
    arguments: tuple[str, ...]

    def train(self, run: Path) -> tuple[str, ...]:
        return ("train", *self.arguments, "--seed", "3", "--out", str(run))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name, size in (("rows", 400), ("public", 60)):
        X = rng.uniform(-1, 1, (size, 3))
        np.savez(folder / f"{name}.npz", X=X, y=(X.sum(axis=1) + 0.3 * rng.standard_normal(size) > 0).astype(int))
    patients(folder / "patients.csv", 1500)
    return folder


def case(name: str, files: Path) -> Case:
    table = [str(files / "rows.npz"), "--row-norm", "2", "--epsilon", "4", "--rounds", "8"]
    if name == "surveys":
        return Case(name, (str(files / "patients.csv"), "--target", "readmitted", "--epsilon", "4", "--rounds", "8"))
    if name.startswith("mlp"):
        return Case(name, (*table, "--model", name, "--batch-size", "100"))
    if name in PUBLIC:
        table += ["--public", str(files / "public.npz")]
    if not METHODS[name].private:
        table += ["--option", "without_privacy=true"]
    return Case(name, (*table, "--method", name))


NAMES = ["surveys", *ROW_METHODS, *(["mlp:4"] if LONG and find_spec("torch") else [])]  # what networks need takes long to compile


def result(run: Path) -> dict[str, Any]:
    """What a finished run leaves, but for times."""
    folder = RunFolder.open(run)
    ledger = folder.ledger()
    return {
        "model": [(run / name).read_bytes() for name in ("model.safetensors", "model.json")],
        "said": (run / "statement.txt").read_bytes(),
        "charged": ledger.event,
        "runs": len({entry.run for entry in ledger.entries}),
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_command_killed_at_a_durable_call_goes_on_to_the_same_model(files: Path, tmp_path: Path, name: str) -> None:
    asked = case(name, files)
    calls = durable_calls(command, *asked.train(tmp_path / "whole"))
    whole = result(tmp_path / "whole")
    most = len(calls) if LONG else PLACES.get(name, 1)
    places = list(spread(len(calls), most)) if most > 1 else [NAMES.index(name) * 37 % len(calls)]
    for place in places:
        run = tmp_path / f"killed-{place}"
        assert killed_at(place, command, *asked.train(run))
        began = (run / "run.json").exists()
        if began:
            RunFolder.open(run).ledger()  # what a kill leaves is no damage
            if RunFolder(run).finished:
                assert not (run / "checkpoint").exists()  # whoever looked at the folder has removed it
        durable_calls(command, *(("train", "--resume", str(run)) if began else asked.train(run)))
        assert result(run) == whole, (place, calls[place])
        assert not (run / "checkpoint").exists()


def test_a_command_killed_again_and_again_goes_on_to_the_same_model(files: Path, tmp_path: Path) -> None:
    asked, run = case("surveys", files), tmp_path / "killed"
    durable_calls(command, *asked.train(tmp_path / "whole"))
    deaths = 0
    while killed_at(23, command, *(("train", "--resume", str(run)) if (run / "run.json").exists() else asked.train(run))):
        deaths += 1
        assert deaths < 50
    assert deaths > 3
    assert result(run) == result(tmp_path / "whole")


# ---------------------------------------------------------------- what a kill used to leave


def test_a_kill_at_the_very_start_leaves_a_folder_that_can_be_trained_into(files: Path, tmp_path: Path) -> None:
    asked, run = case("dp-gd", files), tmp_path / "run"
    calls = durable_calls(command, *asked.train(tmp_path / "whole"))
    assert killed_at(calls.index("replace"), command, *asked.train(run))  # before run.json has its name
    assert [path.name for path in run.iterdir()] == [".run.json.new"]
    durable_calls(command, *asked.train(run))
    assert result(run) == result(tmp_path / "whole")


def looked_at(run: Path) -> list[Callable[[], None]]:
    """Every command that meets the folder of a finished run."""
    table = str(run.parent / "rows.npz")
    return [
        lambda: command("show", str(run)),
        lambda: command("predict", str(run), table, "--out", str(run.parent / "predictions.csv")),
        lambda: command("train", "--resume", str(run)),
    ]


@pytest.mark.parametrize("which", range(3), ids=["show", "predict", "resume"])
def test_randomness_that_a_kill_left_is_removed_by_whoever_meets_the_folder(
    files: Path, tmp_path: Path, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privopt.loop, "DURABILITY", privopt.loop.DURABILITY)  # which a command in this process changes
    asked, run = case("dp-gd", files), tmp_path / "run"
    (tmp_path / "rows.npz").write_bytes((files / "rows.npz").read_bytes())
    calls = durable_calls(command, *asked.train(tmp_path / "whole"))
    removed = calls[: calls.index("rmdir")]  # of the randomness; the report comes after it
    assert killed_at(
        len(removed) - 1 - removed[::-1].index("fsync"), command, *asked.train(run)
    )  # the model is there, and its randomness
    assert (run / "model.json").exists()
    assert (run / "checkpoint" / "begin.json").exists()
    looked_at(run)[which]()
    assert not (run / "checkpoint").exists()
    assert result(run) == result(tmp_path / "whole")
