"""Training from files: what a run leaves, what survives `kill -9`, and what is refused."""

import contextlib
import json
import os
import shutil
import signal
import stat
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privopt import datasets
from privopt.datasets import Categorical, Numeric, Schema
from privopt.errors import BudgetExceeded, InputError, LedgerError, PrivoptWarning
from privopt.privacy.events import FailureDpEvent, NoOpDpEvent, atoms
from privopt.privacy.ledger import Ledger
from privopt.runs import execution as runs
from privopt.runs.folder import RunFolder
from privopt.runs.model import SavedModel
from privopt.runs.request import Request
from privopt.training.settings import Settings
from tests.problems import patients, patients_request, write_rows
from tests.processes import one_fork_server, started
from tests.stopped import StopAt, Stopped


def accuracy(folder: RunFolder, file: Path) -> float:
    model, table = folder.model(), datasets.read(file, "readmitted")
    best = model.probabilities(table).argmax(axis=1)
    return float(np.mean(np.array(model.classes)[best] == table.target))


def test_a_run_leaves_a_model_a_statement_and_a_ledger_that_agree(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    folder = runs.start(patients_request(file), tmp_path / "run")
    assert accuracy(folder, patients(tmp_path / "new.csv", seed=1)) > 0.7
    assert folder.statement().event == folder.ledger().event
    assert 0.99 * 2.0 <= folder.ledger().epsilon() <= 2.0
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {
        "run.json", "ledger.jsonl", "ledger.jsonl.tip", "statement.json", "statement.txt", "statement.html", "model.json",
        "model.safetensors",
    }  # fmt: skip


def test_without_a_schema_ranges_and_categories_are_estimated_and_paid_for(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 20_000)
    folder = runs.start(patients_request(file, schema=None), tmp_path / "run")
    statement, encoding = folder.statement(), folder.model().encoding
    assert encoding is not None
    kinds = dict(encoding.columns)
    assert kinds["region"] == Categorical(("east", "north", "south"))
    age = kinds["age"]
    assert isinstance(age, Numeric)
    assert 10 < age.low < 25
    assert 80 < age.high < 100
    assert any(isinstance(part, FailureDpEvent) for part, _ in atoms(statement.event))
    assert len(statement.paid_for) == 5  # ranges, categories, knots, the length of a row, the shares of the classes
    assert not any("schema" in line or "declared" in line for line in statement.assumed_public)
    assert 0.99 * 2.0 <= statement.epsilon <= 2.0
    assert accuracy(folder, file) > 0.7


def test_the_estimated_range_of_a_date_is_in_whole_years(tmp_path: Path) -> None:
    frame = pd.read_csv(patients(tmp_path / "patients.csv", 2000))
    days = pd.date_range("2019-01-01", "2023-12-31", periods=len(frame))
    frame.assign(admitted=days.strftime("%Y-%m-%d")).to_csv(tmp_path / "dated.csv", index=False)
    schema = Schema({"admitted": datasets.Date(), **{name: datasets.Ignored() for name in ("age", "region", "cost")}})
    asked = patients_request(tmp_path / "dated.csv", schema=schema, settings=Settings(rounds=2), model="linear")
    encoding = runs.start(asked, tmp_path / "run").model().encoding
    assert encoding is not None
    ends = next(kind.years for name, kind in encoding.columns if isinstance(kind, datasets.Date))
    assert ends is not None
    assert ends.low.is_integer()
    assert ends.high.is_integer()
    assert ends.low <= 2019
    assert ends.high >= 2023


def test_a_rare_category_is_not_named(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 5000)
    frame = pd.read_csv(file)
    frame.loc[17, "region"] = "the only person from here"
    frame.to_csv(file, index=False)
    runs.start(patients_request(file, schema=None, epsilon=1.0), tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        assert b"the only person" not in path.read_bytes()


def test_numbers_are_regressed(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 10_000)
    schema = Schema({"readmitted": datasets.Ignored(), "age": Numeric(18, 90)}, target=Numeric(0, 10_000))
    folder = runs.start(patients_request(file, target="cost", schema=schema), tmp_path / "run")
    table = datasets.read(file, "cost")
    assert table.target is not None
    errors = folder.model().scores(table)[:, 0] - table.target
    assert 1 - errors.var() / table.target.var() > 0.8


@pytest.mark.parametrize("kind", ["csr", "svm", "parquet"])
def test_other_formats_train_too(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 6))
    y = (X @ np.arange(-2, 4) + rng.logistic(size=2000) > 0).astype(int)
    path, target = write_rows(tmp_path, kind, X, y)
    folder = runs.start(Request(file=path, target=target, epsilon=3.0, seed=0), tmp_path / "run")
    table = datasets.read(path, target)
    assert np.mean(folder.model().probabilities(table).argmax(axis=1) == y) > 0.65


# ---------------------------------------------------------------- killed and resumed


def begin_or_go_on(asked: Request, folder: Path) -> None:
    """What a process does that may be killed."""
    if folder.exists():
        runs.resume(folder)
    else:
        runs.start(asked, folder)


@one_fork_server
def test_a_run_killed_at_any_moment_resumes_within_its_budget_to_the_same_model(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 20_000)
    asked = patients_request(file, schema=None, settings=Settings(rounds=4000))
    whole = runs.start(asked, tmp_path / "whole")
    deaths = 0
    rng = np.random.default_rng(0)

    def written() -> int:
        files = (tmp_path / "killed" / "ledger.jsonl", tmp_path / "killed" / "checkpoint" / "progress.npz")
        return sum(file.stat().st_mtime_ns for file in files if file.exists())

    for patience in (0.0, 0.05, 0.3, 1.0, None):  # seconds after its first write until a process is killed; the last is not
        before = written()
        process = started(begin_or_go_on, asked, tmp_path / "killed")
        while patience is not None and process.is_alive() and written() == before:
            time.sleep(0.002)
        if patience is not None:
            time.sleep(patience * float(rng.uniform(0.5, 1.5)))
            process.kill()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        deaths += 1
        held = Ledger.read(tmp_path / "killed" / "ledger.jsonl")
        assert not held.entries or held.epsilon() <= 2.0
        checkpoint = tmp_path / "killed" / "checkpoint"
        if checkpoint.exists():
            assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o700
            assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in checkpoint.iterdir())
    assert deaths >= 2
    killed = RunFolder.open(tmp_path / "killed")
    assert killed.ledger().event == whole.ledger().event
    np.testing.assert_array_equal(killed.model().slopes, whole.model().slopes)
    assert not (tmp_path / "killed" / "checkpoint").exists()


def test_resuming_with_other_data_is_refused(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    folder = _interrupted(tmp_path, file)
    patients(file, seed=2)
    with pytest.raises(InputError, match="not those that this run began with"):
        runs.resume(folder)


def test_without_its_randomness_a_resumed_run_is_charged_afresh_and_stays_within_the_budget(tmp_path: Path) -> None:
    folder = _interrupted(tmp_path, patients(tmp_path / "patients.csv"))
    before = Ledger.read(folder / "ledger.jsonl").epsilon()
    assert before > 0
    shutil.rmtree(folder / "checkpoint")
    with warnings.catch_warnings(), contextlib.suppress(BudgetExceeded):  # how much was paid ahead depends on the disk's speed
        warnings.simplefilter("ignore", PrivoptWarning)
        runs.resume(folder)
    after = RunFolder.open(folder).ledger()
    assert before <= after.epsilon() <= 2.0
    charged = [entry for entry in after.entries if entry.run != after.entries[0].run]
    assert bool(charged) == (after.epsilon() > before)  # nothing of the old run was taken as paid


def _interrupted(tmp_path: Path, file: Path) -> Path:
    with pytest.raises(Stopped):
        runs.start(patients_request(file), tmp_path / "run", StopAt(50))
    return tmp_path / "run"


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    runs.start(patients_request(patients(tmp_path / "patients.csv")), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    runs.resume(tmp_path / "run")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_a_second_process_cannot_train_in_the_same_folder(tmp_path: Path) -> None:
    folder = _interrupted(tmp_path, patients(tmp_path / "patients.csv"))
    with Ledger(path=folder / "ledger.jsonl"), pytest.raises(LedgerError, match="in use"):
        runs.resume(folder)


# ---------------------------------------------------------------- refused


def test_a_refused_order_leaves_nothing_behind(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    frame = pd.read_csv(file)
    frame.loc[3, "age"] = np.nan
    frame.to_csv(file, index=False)
    with pytest.raises(InputError, match="'age'"):
        runs.start(patients_request(file), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.doc").write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        runs.start(patients_request(file), tmp_path / "run")
    assert (tmp_path / "run" / "thesis.doc").read_text() == "precious"


def test_too_few_rows_are_refused_with_a_budget_that_would_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="epsilon ≥"):
        runs.start(patients_request(patients(tmp_path / "patients.csv", 40), epsilon=0.05), tmp_path / "run")


def test_a_row_of_a_class_that_the_schema_does_not_list_is_no_error_and_leaves_no_trace(tmp_path: Path) -> None:
    """An error would tell that there is one."""
    file = patients(tmp_path / "patients.csv")
    frame = pd.read_csv(file)
    frame.loc[17, "readmitted"] = "the only person who"
    frame.to_csv(file, index=False)
    folder = runs.start(patients_request(file), tmp_path / "run")
    said = "the 2 classes, as declared: 'no', 'yes'. Rows of any other class were left out: compare the spelling"
    assert said in folder.statement().assumed_public
    for path in (tmp_path / "run").iterdir():
        assert b"the only person" not in path.read_bytes()


# ---------------------------------------------------------------- saved models


def test_a_saved_model_comes_back_the_same(tmp_path: Path) -> None:
    model = SavedModel("classify", np.array([[1.0, 2.0]]), np.array([0.5]), ("a", "b"), ("no", "yes"))
    model.save(tmp_path)
    loaded = SavedModel.load(tmp_path)
    np.testing.assert_array_equal(loaded.slopes, model.slopes)
    assert (loaded.names, loaded.classes, loaded.task) == (model.names, model.classes, model.task)


@pytest.mark.parametrize("damage", ["flip", "cut", "pickle", "shape", "json", "format", "task"])
def test_a_damaged_or_hostile_model_is_an_error_and_runs_nothing(tmp_path: Path, damage: str) -> None:
    SavedModel("classify", np.array([[1.0, 2.0]]), np.array([0.5]), ("a", "b"), ("no", "yes")).save(tmp_path)
    numbers, meaning = tmp_path / "model.safetensors", tmp_path / "model.json"
    described = json.loads(meaning.read_text())
    if damage == "flip":
        content = bytearray(numbers.read_bytes())
        content[-1] ^= 1
        numbers.write_bytes(content)
    elif damage == "cut":
        numbers.write_bytes(numbers.read_bytes()[:-3])
    elif damage == "pickle":
        import hashlib
        import pickle

        class Bomb:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return os.system, (f"touch {tmp_path / 'ran'}",)

        numbers.write_bytes(pickle.dumps(Bomb()))
        meaning.write_text(json.dumps({**described, "sha256": hashlib.sha256(numbers.read_bytes()).hexdigest()}))
    elif damage == "shape":
        meaning.write_text(json.dumps({**described, "names": ["a"]}))
    elif damage == "json":
        meaning.write_text(meaning.read_text()[:-10])
    elif damage == "format":
        meaning.write_text(json.dumps({**described, "format": "privopt-model-9"}))
    else:
        meaning.write_text(json.dumps({**described, "task": "explode"}))
    with pytest.raises(InputError):
        SavedModel.load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_statement_that_is_not_about_its_ledger_is_noticed(tmp_path: Path) -> None:
    from rich.console import Console

    from privopt.cli.show import print_run

    folder = runs.start(patients_request(patients(tmp_path / "patients.csv")), tmp_path / "run")
    path = folder.path / "statement.json"
    value = json.loads(path.read_text())
    value["event"] = {"kind": "gaussian", "noise_multiplier": 100.0}
    path.write_text(json.dumps(value))
    assert folder.statement().epsilon < 0.1  # computed from what it says
    with pytest.raises(LedgerError, match="treat the larger ε as spent"):
        print_run(Console(quiet=True), folder)
    assert folder.ledger().event != NoOpDpEvent()


def test_what_is_read_off_the_file_is_stated_as_that(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    public = runs.start(patients_request(file, schema=None, epsilon=9.0), tmp_path / "run").statement().assumed_public
    assert "the 2 classes, read off the data" in public
    assert "the task (classify), read off the data" in public
    told = (
        runs.start(patients_request(file, schema=None, epsilon=9.0, task="classify"), tmp_path / "told")
        .statement()
        .assumed_public
    )
    assert not any("task" in line for line in told)
