"""`privopt evaluate` and the scores of `privopt predict` as a user types them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score
from typer.testing import CliRunner

from privopt import Ledger
from privopt.cli.application import app
from privopt.datasets import Categorical, Numeric, Schema
from privopt.privacy.statement import Statement
from tests.cli.typed import privopt
from tests.problems import PATIENTS, patients

_COLUMNS = {name: kind for name, kind in PATIENTS.columns.items() if name != "cost"} | {"readmitted": Categorical(("no", "yes"))}
COSTS = Schema(_COLUMNS, target=Numeric(0, 8000))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier in `run`, a regression in `costs`, and held-out rows."""
    folder = tmp_path_factory.mktemp("trained")
    patients(folder / "patients.csv", 2000)
    held_out = pd.read_csv(patients(folder / "held_out.csv", 1500, seed=5))
    held_out.assign(patient=[f"p{place // 3}" for place in range(1500)]).to_csv(folder / "held_out.csv", index=False)
    for name, schema, target in (("run", PATIENTS, "readmitted"), ("costs", COSTS, "cost")):
        (folder / f"{name}.json").write_text(json.dumps(schema.to_json()))
        arguments = ["--target", target, "--epsilon", 2, "--schema", folder / f"{name}.json", "--seed", 1, "--rounds", 30]
        privopt("train", folder / "patients.csv", *arguments, "--out", folder / name)
    return folder


def evaluated(trained: Path, tmp_path: Path, *options: object, run: str = "run", code: int = 0) -> str:
    places = ["--ledger", tmp_path / "ledger.jsonl", "--out", tmp_path / "evaluation.json"]
    given = [*places, *options]
    return privopt("evaluate", trained / run, trained / "held_out.csv", *given, code=code)


def read(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "evaluation.json").read_text())


def test_a_classifier_is_evaluated_with_a_statement_a_ledger_and_a_file(trained: Path, tmp_path: Path) -> None:
    printed = evaluated(trained, tmp_path, "--epsilon", 1)
    for shown in (
        "accuracy 0.",
        "AUC 0.",
        "log loss",
        "95 % interval",
        "Confusion matrix",
        "Calibration",
        "Spent on these 1500 rows",
    ):
        assert shown in printed
    found = read(tmp_path)
    statement = Statement.from_json(found["statement"])
    assert 0.98 < statement.epsilon <= 1
    assert Ledger.read(tmp_path / "ledger.jsonl").event == statement.event
    exact = privopt("predict", trained / "run", trained / "held_out.csv", "--target", "readmitted", "--out", tmp_path / "p.csv")
    accuracy = float(exact.split("accuracy ")[1].split(",")[0])
    assert found["numbers"]["accuracy"]["value"] == pytest.approx(accuracy, abs=0.05)


def test_a_table_fits_into_80_columns(trained: Path, tmp_path: Path) -> None:
    places = ["--ledger", str(tmp_path / "l"), "--out", str(tmp_path / "e")]
    given = ["evaluate", str(trained / "run"), str(trained / "held_out.csv"), "--epsilon", "1", *places]
    output = CliRunner().invoke(app, given, env={"COLUMNS": "80"}).stdout
    assert "accuracy" in output
    assert max(map(len, output.split("Spent on")[0].splitlines())) <= 80


def test_persons_are_protected_and_count_once(trained: Path, tmp_path: Path) -> None:
    assert "Spent on these 500 persons" in evaluated(trained, tmp_path, "--epsilon", 1, "--person", "patient")
    assert read(tmp_path)["statement"]["budget"]["unit"] == "person"


def test_a_regression_is_evaluated_on_the_declared_range(trained: Path, tmp_path: Path) -> None:
    printed = evaluated(trained, tmp_path, "--epsilon", 2, "--error-bound", 3000, run="costs")
    assert "RMSE" in printed
    assert "R²" in printed
    assert read(tmp_path)["target_bounds"] == [0, 8000]


def test_two_evaluations_cost_both_and_the_run_stays_as_it_was(tmp_path: Path) -> None:
    patients(tmp_path / "patients.csv", 2000)
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    run = tmp_path / "run"
    arguments = ["--target", "readmitted", "--epsilon", 1, "--schema", tmp_path / "schema.json", "--rounds", 30]
    privopt("train", tmp_path / "patients.csv", *arguments, "--out", run)
    shown = privopt("show", run)
    held_out = patients(tmp_path / "held_out.csv", 1500, seed=5)
    first = privopt("evaluate", run, held_out, "--epsilon", 0.5)
    assert "Rows that also took part in training have spent that as well (ε = 0.99" in first
    assert "All 2 evaluations in this ledger together: ε = 0.99" in privopt("evaluate", run, held_out, "--epsilon", 0.5)
    assert (run / "evaluation.json").exists()
    assert (run / "evaluation-2.json").exists()
    assert len({entry.run for entry in Ledger.read(run / "evaluation-ledger.jsonl").entries}) == 2
    assert privopt("show", run) == shown
    privopt("train", "--resume", run)
    assert "the model was trained on" in privopt("evaluate", run, tmp_path / "patients.csv", "--epsilon", 0.5)


def test_noise_is_fresh_in_each_evaluation_and_repeats_with_a_seed(trained: Path, tmp_path: Path) -> None:
    values = []
    for place, options in enumerate([(), (), ("--seed", 3), ("--seed", 3)]):
        (tmp_path / str(place)).mkdir()
        evaluated(trained, tmp_path / str(place), "--epsilon", 1, *options)
        values.append(read(tmp_path / str(place))["numbers"])
    assert values[0] != values[1]
    assert values[2] == values[3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "0"], "epsilon is 0"),
        (["--epsilon", "-1"], "epsilon is -1"),
        (["--epsilon", "1", "--delta", "2"], "delta is 2"),
        (["--epsilon", "1", "--target", "nothing"], "no column 'nothing'"),
        (["--epsilon", "1", "--target", "cost"], "none of the true values is one of the model's classes"),
        (["--epsilon", "1", "--person", "nobody"], "no column 'nobody'"),
        (["--epsilon", "1", "--person", "readmitted"], "is the target"),
        (["--epsilon", "0.001"], "too few"),
        (["--epsilon", "1", "--seed", "-1"], "seed"),
    ],
)
def test_what_cannot_be_evaluated_is_one_clear_line_and_nothing_is_paid_or_written(
    trained: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    printed = evaluated(trained, tmp_path, *options, code=2)
    assert message in printed
    assert "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("age,income,region,smoker,readmitted\n", "no rows"),
        ("age,readmitted\n" + "40,no\n" * 300, "lack columns"),
    ],
)
def test_a_wrong_file_is_one_clear_line_and_nothing_is_paid_or_written(
    trained: Path, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "rows.csv").write_text(content)
    places = ["--ledger", tmp_path / "ledger.jsonl", "--out", tmp_path / "evaluation.json"]
    assert message in privopt("evaluate", trained / "run", tmp_path / "rows.csv", "--epsilon", 1, *places, code=2)
    assert [held.name for held in tmp_path.iterdir()] == ["rows.csv"]


def test_a_regression_without_a_declared_range_is_refused(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["--target", "cost", "--epsilon", 3, "--rounds", 10]
    privopt("train", trained / "patients.csv", *arguments, "--out", run)
    assert "--target-bounds LOW HIGH" in privopt("evaluate", run, trained / "held_out.csv", "--epsilon", 1, code=2)
    assert not (run / "evaluation-ledger.jsonl").exists()
    assert "RMSE" in privopt("evaluate", run, trained / "held_out.csv", "--epsilon", 1, "--target-bounds", 0, 8000)


def test_what_exists_is_not_overwritten_and_trainings_ledger_is_not_charged(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text("kept")
    assert "exists already" in evaluated(trained, tmp_path, "--epsilon", 1, code=2)
    own = trained / "run" / "ledger.jsonl"
    content = own.read_bytes()
    given = ["--epsilon", 1, "--ledger", own, "--out", tmp_path / "other.json"]
    assert "a ledger of their own" in privopt("evaluate", trained / "run", trained / "held_out.csv", *given, code=2)
    assert own.read_bytes() == content


def test_no_value_of_a_row_is_printed_in_an_error(trained: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(trained / "held_out.csv").astype({"age": object})
    frame.loc[3, "age"] = "forty-two"
    frame.to_csv(tmp_path / "rows.csv", index=False)
    printed = privopt("evaluate", trained / "run", tmp_path / "rows.csv", "--epsilon", 1, "--out", tmp_path / "e.json", code=2)
    assert "'age'" in printed
    assert "forty-two" not in printed


def test_predict_shows_exact_scores_beside_the_majority(trained: Path, tmp_path: Path) -> None:
    file = trained / "held_out.csv"
    printed = privopt("predict", trained / "run", file, "--target", "readmitted", "--out", tmp_path / "predictions.csv")
    found, truth = pd.read_csv(tmp_path / "predictions.csv"), pd.read_csv(file)["readmitted"]
    positive, probability = truth == "yes", found["probability of yes"]
    assert f"accuracy {np.mean(found['prediction'] == truth):.4f}" in printed
    shown = dict(re.findall(r"(AUC|log loss) (\d\.\d+)", printed))
    assert float(shown["AUC"]) == pytest.approx(roc_auc_score(positive, probability), abs=1e-4)
    assert float(shown["log loss"]) == pytest.approx(log_loss(positive, probability), abs=1e-4)
    assert f"always '{truth.mode()[0]}' {truth.value_counts(normalize=True).max():.4f}" in printed
    assert "sensitive if these rows are private" in printed
    printed = privopt("predict", trained / "costs", file, "--target", "cost", "--out", tmp_path / "predictions.csv")
    error = pd.read_csv(tmp_path / "predictions.csv")["prediction"] - pd.read_csv(file)["cost"]
    assert f"RMSE {np.sqrt(np.mean(error**2)):.5g}" in printed
    assert f"RMSE of the mean {pd.read_csv(file)['cost'].std(ddof=0):.5g}" in printed
