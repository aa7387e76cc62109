"""privopt train FILE --person COLUMN."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from privopt.measure import surveys
from privopt.runs import execution
from privopt.runs.request import Request
from tests.cli.typed import privopt
from tests.problems import PATIENTS, patients, patients_request


def stays(path: Path, persons: int = 1500, seed: int = 0) -> Path:
    """Patients with one to five rows each, and their number."""
    whose = np.repeat(np.arange(persons), np.random.default_rng(seed).integers(1, 6, persons))
    table = pd.read_csv(patients(path, len(whose), seed))
    table.insert(0, "patient_nbr", [f"{one:07d}" for one in whose])
    table.drop(columns="cost").to_csv(path, index=False)
    return path


def test_train_show_and_predict_for_persons(tmp_path: Path) -> None:
    file, run = stays(tmp_path / "stays.csv"), tmp_path / "run"
    printed = privopt("train", file, "--target", "readmitted", "--person", "patient_nbr", "--epsilon", 3, "--out", run)
    assert "Unit: one person (all rows of a person together)." in printed
    assert "the number of persons (1500)" in printed
    assert "identifier" not in printed
    model = json.loads((run / "model.json").read_text())
    assert "patient_nbr" not in json.dumps(model)
    assert json.loads((run / "run.json").read_text())["person"] == "patient_nbr"
    budget = json.loads((run / "statement.json").read_text())["budget"]
    assert budget == {"epsilon": 3.0, "delta": 1e-05, "neighbours": "add-remove", "unit": "person"}
    assert "one person" in privopt("show", run)
    new = stays(tmp_path / "new.csv", 100, seed=5)
    assert "accuracy 0." in privopt("predict", run, new, "--out", tmp_path / "predictions.csv", "--target", "readmitted")


def test_a_network_is_trained_for_persons(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file, run = stays(tmp_path / "stays.csv"), tmp_path / "run"
    told = ["--target", "readmitted", "--person", "patient_nbr", "--rows-per-person", 3, "--model", "mlp:6", "--rounds", 40]
    printed = privopt("train", file, *told, "--epsilon", 3, "--out", run)
    assert "Unit: one person (all rows of a person together)." in printed
    statement = json.loads((run / "statement.json").read_text())
    assert statement["budget"]["unit"] == "person"
    assert statement["settings"]["rows of a person, at most"] == 3
    assert "of 1500 on average (Poisson)" in printed or "all persons" in printed
    assert any("the number of persons (1500), the number of rows" in one for one in statement["assumed_public"])
    new = stays(tmp_path / "new.csv", 100, seed=5)
    assert "accuracy 0." in privopt("predict", run, new, "--out", tmp_path / "predictions.csv", "--target", "readmitted")


def test_every_survey_of_a_table_is_answered_by_one_row_of_each_person(tmp_path: Path) -> None:
    sizes: list[int] = []
    ask, name = surveys._mean, surveys.categories

    def asked(oracle: Any, *rest: Any) -> Any:
        sizes.append(oracle.size)
        return ask(oracle, *rest)

    def named(columns: Any, **rest: Any) -> Any:
        sizes.extend(len(column) for column in columns)
        return name(columns, **rest)

    with mock.patch.object(surveys, "_mean", asked), mock.patch.object(surveys, "categories", named):
        request = patients_request(stays(tmp_path / "stays.csv"), schema=None, person="patient_nbr", epsilon=5.0)
        execution.start(request, tmp_path / "run")
    assert len(sizes) >= 4
    assert set(sizes) == {1500}


@pytest.mark.parametrize("model", ["linear", "mlp:4"])
def test_a_killed_run_for_persons_is_resumed_with_the_same_rows(model: str, tmp_path: Path) -> None:
    if model != "linear":
        pytest.importorskip("torch")
    file = stays(tmp_path / "stays.csv")
    request = patients_request(file, schema=None, person="patient_nbr", rows_per_person=2, epsilon=5.0, model=model)
    whole = execution.start(request, tmp_path / "whole")

    class Killed(BaseException):
        pass

    class Observer:
        def start(self, rounds: int, spent: object) -> None: ...

        def advance(self, done: int) -> None:
            if done == 100:
                raise Killed

    with pytest.raises(Killed):
        execution.start(request, tmp_path / "killed", Observer())
    resumed = execution.resume(tmp_path / "killed")
    np.testing.assert_array_equal(resumed.model().slopes, whole.model().slopes)
    assert resumed.ledger().event == whole.ledger().event
    assert resumed.ledger().budget.unit == "person"  # type: ignore[union-attr]


def test_a_request_without_persons_is_written_as_before_and_old_ones_are_read(tmp_path: Path) -> None:
    request = patients_request(tmp_path / "rows.csv")
    assert not {"person", "rows_per_person"} & set(request.to_json())
    assert Request.from_json(request.to_json()) == Request.from_json(request.to_json() | {"person": None})
    persons = patients_request(tmp_path / "rows.csv", person="id", rows_per_person=3)
    assert Request.from_json(persons.to_json()) == Request(**vars(persons))


ROWS = "who,a,y\n" + "".join(f"{i % 300},{i % 7},{'yes' if i % 3 else 'no'}\n" for i in range(900))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (ROWS, ["--person", "whom"], "no column 'whom' to name persons"),
        (ROWS, ["--person", "y"], "--person and --target are the same column"),
        (ROWS, ["--person", "who", "--model", "mlp:8", "--nproc", "2"], "--person is for one process"),
        (ROWS, ["--person", "who", "--model", "mlp:8", "--epsilon", "0.01"], "300 persons are too few"),
        (ROWS, ["--person", "who", "--method", "dp-agd"], "one person"),
        (ROWS, ["--person", "who", "--rows-per-person", "0"], "at least 1"),
        (ROWS, ["--rows-per-person", "3"], "--person"),
        (ROWS.replace("\n5,", "\n,"), ["--person", "who"], "missing values"),
        (ROWS.replace("\n5,", "\n5.0,", 1), ["--person", "who"], "several ways"),
        ("who,a,y\n" + "7,1,no\n7,2,yes\n" * 500, ["--person", "who"], "one person"),
        ("who,y\n" + "7,no\n8,yes\n" * 500, ["--person", "who"], "nothing to learn from"),
        (ROWS, ["--person", "who", "--epsilon", "0.01"], "300 persons are too few"),
    ],
)
def test_persons_that_cannot_be_are_refused_and_leave_nothing(
    tmp_path: Path, content: str, options: list[str], message: str
) -> None:
    (tmp_path / "rows.csv").write_text(content)
    epsilon = [] if "--epsilon" in options else ["--epsilon", "3"]
    run = tmp_path / "run"
    printed = privopt("train", tmp_path / "rows.csv", "--target", "y", *epsilon, *options, "--out", run, code=2)
    assert message in printed
    assert not run.exists()


def test_a_schema_that_describes_the_persons_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "schema.json").write_text('{"columns": {"who": {"low": 0, "high": 300}}}')
    arguments = ["--target", "y", "--epsilon", 3, "--person", "who", "--schema", tmp_path / "schema.json"]
    assert "which is no feature" in privopt("train", tmp_path / "rows.csv", *arguments, "--out", tmp_path / "run", code=2)


def test_files_without_names_have_no_persons(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=np.eye(3), y=np.arange(3))
    assert "no named columns" in privopt("train", tmp_path / "rows.npz", "--epsilon", 3, "--person", "who", code=2)


# ---------------------------------------------------------------- identifiers, by name


def test_a_column_that_is_named_like_an_identifier_is_left_out_unless_the_schema_declares_it(tmp_path: Path) -> None:
    file = stays(tmp_path / "stays.csv")
    run, declared = tmp_path / "run", tmp_path / "declared"
    printed = privopt("train", file, "--target", "readmitted", "--epsilon", 3, "--out", run)
    assert "left out of the model: 'patient_nbr', by the name an identifier." in printed
    assert "protect people: --person patient_nbr" in printed
    assert "patient_nbr" not in (run / "model.json").read_text()
    columns = PATIENTS.to_json()["columns"] | {"patient_nbr": {"low": 0, "high": 2000}}
    del columns["cost"]
    (tmp_path / "schema.json").write_text(json.dumps({"columns": columns}))
    privopt("train", file, "--target", "readmitted", "--epsilon", 3, "--schema", tmp_path / "schema.json", "--out", declared)
    assert "patient_nbr" in (declared / "model.json").read_text()


def test_a_table_of_identifiers_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("userId,y\n" + "7,no\n8,yes\n" * 500)
    printed = privopt("train", tmp_path / "rows.csv", "--target", "y", "--epsilon", 3, "--out", tmp_path / "run", code=2)
    assert "no columns to learn from" in printed
