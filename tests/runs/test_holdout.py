"""`privopt train --holdout`: rows that are set aside touch the evaluation only, and the others the model only."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privopt import Ledger
from privopt.measure.samplers import held_out_rows
from privopt.perexample.persons import Persons
from privopt.privacy.statement import Statement
from privopt.runs import evaluation
from privopt.runs.folder import RunFolder
from privopt.runs.request import Request
from tests.cli.typed import privopt
from tests.problems import PATIENTS, patients

ROWS = 3000


def trained(folder: Path, *options: object, code: int = 0, seed: int | None = 1) -> str:
    """Train on folder/patients.csv with a fifth of the rows set aside."""
    file = folder / "patients.csv"
    if not file.exists():
        patients(file, ROWS)
    (folder / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    given: list[object] = ["--target", "readmitted", "--epsilon", 1, "--schema", folder / "schema.json", "--rounds", 20]
    given += [] if seed is None else ["--seed", seed]
    held = [] if "--holdout" in options else ["--holdout", 0.2, "--evaluate-epsilon", 0.5]
    return privopt("train", file, *given, *held, *options, "--out", folder / "run", code=code)


def parts(folder: Path) -> tuple[Any, Any]:
    request = Request.from_json(RunFolder.open(folder / "run").asked)
    assert request.holdout is not None
    return held_out_rows(ROWS, request.holdout.share, request.holdout.key)


@pytest.mark.parametrize(("size", "share"), [(10, 0.2), (1001, 0.5), (3, 0.4)])
def test_every_row_is_in_one_part_and_the_cut_depends_on_the_key_alone(size: int, share: float) -> None:
    one, other = held_out_rows(size, share, 1)
    assert sorted([*one, *other]) == list(range(size))
    assert len(other) == round(share * size)
    for first, second in zip(held_out_rows(size, share, 1), (one, other), strict=True):
        np.testing.assert_array_equal(first, second)


def test_each_row_is_set_aside_as_often_as_any_other() -> None:
    """Of 4000 cuts; a false alarm has a probability below 1e-5 for all ten rows (5 deviations)."""
    counts = sum(np.bincount(held_out_rows(10, 0.3, key)[1], minlength=10) for key in range(4000))
    assert np.abs(counts - 1200).max() < 5 * np.sqrt(4000 * 0.3 * 0.7)


def test_training_and_evaluation_in_one_go(tmp_path: Path) -> None:
    printed = trained(tmp_path, seed=None)
    assert "accuracy 0." in printed
    assert "Measured on 600 rows set aside, which have spent ε = 0.4" in printed
    assert "a row has spent either this budget or that one" in RunFolder.open(tmp_path / "run").statement().text()
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    statement = Statement.from_json(found["statement"])
    assert found["size"] == statement.examples == 600
    assert Ledger.read(tmp_path / "run" / "holdout-ledger.jsonl").event == statement.event
    assert RunFolder.open(tmp_path / "run").statement().examples == ROWS - 600
    assert "Spent, from the ledger: ε = 0.9" in privopt("show", tmp_path / "run")


def test_rows_that_are_set_aside_do_not_touch_the_model_and_the_others_only_the_model(tmp_path: Path) -> None:
    """Bit for bit, with the noise of a seed: the argument for the larger of two budgets, not their sum."""
    (tmp_path / "a").mkdir()
    trained(tmp_path / "a")
    train, held = parts(tmp_path / "a")
    frame = pd.read_csv(tmp_path / "a" / "patients.csv")
    models = {"a": (tmp_path / "a" / "run" / "model.safetensors").read_bytes()}
    for name, rows in (("held out", held), ("trained", train)):
        chosen = np.isin(np.arange(ROWS), rows)
        changed = frame.assign(age=np.where(chosen, 18, frame["age"]), readmitted=np.where(chosen, "yes", frame["readmitted"]))
        (tmp_path / name).mkdir()
        changed.to_csv(tmp_path / name / "patients.csv", index=False)
        trained(tmp_path / name)
        models[name] = (tmp_path / name / "run" / "model.safetensors").read_bytes()
    assert models["held out"] == models["a"] != models["trained"]
    shown = [json.loads((tmp_path / name / "run" / "evaluation.json").read_text())["numbers"] for name in ("a", "held out")]
    assert shown[0] != shown[1]
    model = RunFolder.open(tmp_path / "a" / "run").model()  # the same model on the rows set aside, of either file
    tables = [pd.read_csv(tmp_path / name / "patients.csv").loc[held] for name in ("a", "trained")]
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert model.classes == ("no", "yes")


def test_persons_are_set_aside_with_all_their_rows(tmp_path: Path) -> None:
    """As above, bit for bit: whoever is set aside touches the evaluation only, and the others the model only."""
    (tmp_path / "a").mkdir()
    frame = pd.read_csv(patients(tmp_path / "a" / "patients.csv", ROWS))
    frame = frame.assign(who=[f"P{row * 7 % 1000:04}" for row in range(ROWS)])
    frame.to_csv(tmp_path / "a" / "patients.csv", index=False)
    printed = trained(tmp_path / "a", "--person", "who")
    assert "Measured on 200 persons set aside, which have spent ε = 0.4" in printed
    run = RunFolder.open(tmp_path / "a" / "run")
    assert run.statement().examples == 800
    assert "a person has spent either this budget or that one" in run.statement().text()
    found = Statement.from_json(json.loads((run.path / "evaluation.json").read_text())["statement"])
    assert (found.budget.unit, found.examples) == ("person", 200)
    request = Request.from_json(run.asked)
    assert request.holdout is not None
    cut = evaluation.set_aside(ROWS, request.holdout, Persons.of(frame["who"], ROWS))
    assert set(frame["who"].iloc[cut[0]]).isdisjoint(frame["who"].iloc[cut[1]])
    assert sorted(np.concatenate(cut)) == list(range(ROWS))
    models, shown = [(run.path / "model.safetensors").read_bytes()], [(run.path / "evaluation.json").read_text()]
    for name, rows in (("held out", cut[1]), ("trained", cut[0])):
        chosen = np.isin(np.arange(ROWS), rows)
        changed = frame.assign(age=np.where(chosen, 18, frame["age"]), readmitted=np.where(chosen, "yes", frame["readmitted"]))
        (tmp_path / name).mkdir()
        changed.to_csv(tmp_path / name / "patients.csv", index=False)
        trained(tmp_path / name, "--person", "who")
        models.append((tmp_path / name / "run" / "model.safetensors").read_bytes())
        shown.append((tmp_path / name / "run" / "evaluation.json").read_text())
    assert models[0] == models[1] != models[2]
    assert json.loads(shown[0])["numbers"] != json.loads(shown[1])["numbers"]


def test_a_run_that_was_killed_before_its_evaluation_is_evaluated_when_resumed_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "evaluate_held_out", lambda folder: None)
        trained(tmp_path)
    assert not (tmp_path / "run" / "evaluation.json").exists()
    assert "accuracy 0." in privopt("train", "--resume", tmp_path / "run")
    content = (tmp_path / "run" / "evaluation.json").read_bytes()
    privopt("train", "--resume", tmp_path / "run")
    assert (tmp_path / "run" / "evaluation.json").read_bytes() == content
    assert len({entry.run for entry in Ledger.read(tmp_path / "run" / "holdout-ledger.jsonl").entries}) == 1


def test_an_evaluation_that_was_paid_for_and_killed_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "evaluation.json")

    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "save", full)
        trained(tmp_path, code=2)
    ledger = (tmp_path / "run" / "holdout-ledger.jsonl").read_bytes()
    assert "it is spent" in privopt("train", "--resume", tmp_path / "run", code=2)
    assert (tmp_path / "run" / "holdout-ledger.jsonl").read_bytes() == ledger
    assert "Spent, from the ledger" in privopt("show", tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--holdout", 0.2], "belong together"),
        (["--holdout", 1.0, "--evaluate-epsilon", 1], "--holdout is 1"),
        (["--holdout", 0, "--evaluate-epsilon", 1], "--holdout is 0"),
        (["--holdout", 0.2, "--evaluate-epsilon", 0], "epsilon is 0"),
        (["--holdout", 0.2, "--evaluate-epsilon", 0.001], "too few"),
        (["--holdout", 1e-5, "--evaluate-epsilon", 1], "leaves none"),
    ],
)
def test_what_cannot_be_set_aside_is_refused_before_anything_is_paid(tmp_path: Path, options: list[Any], message: str) -> None:
    assert message in trained(tmp_path, *options, code=2)
    assert not (tmp_path / "run").exists()


def test_a_number_to_predict_needs_a_declared_range(tmp_path: Path) -> None:
    patients(tmp_path / "patients.csv", ROWS)
    given = ["--target", "cost", "--epsilon", 1, "--holdout", 0.2, "--evaluate-epsilon", 1, "--out", tmp_path / "run"]
    assert "declare the target's range" in privopt("train", tmp_path / "patients.csv", *given, code=2)
    assert not (tmp_path / "run").exists()
