"""The commands as a user types them: what they print, and how they refuse."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privopt.methods import METHODS
from tests.cli.typed import privopt
from tests.problems import PATIENTS, patients


def test_train_show_and_predict(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    run = tmp_path / "run"
    printed = privopt("train", file, "--target", "readmitted", "--epsilon", 1, "--schema", tmp_path / "schema.json", "--out", run)
    assert "differentially private" in printed
    assert "200/200 rounds" in printed
    assert "Spent, from the ledger: ε = 0.99" in privopt("show", run)
    assert json.loads(privopt("show", run, "--json"))["spent"] <= 1.0
    new = patients(tmp_path / "new.csv", 500, seed=5)
    printed = privopt("predict", run, new, "--out", tmp_path / "predictions.csv", "--target", "readmitted")
    assert "accuracy 0." in printed
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert list(predictions) == ["prediction", "probability of no", "probability of yes"]
    assert len(predictions) == 500


def test_help_teaches() -> None:
    assert "privopt train patients.csv --target readmitted --epsilon 1" in privopt("--help")
    shown = privopt("train", "--help")
    assert "estimated privately" in shown
    places = [shown.index(f"─ {heading} ─") for heading in ("Data", "Privacy", "Model (defaults need no tuning)", "Evaluation")]
    assert places == sorted(places)
    assert places[1] < shown.index("--epsilon FLOAT") < places[2]
    assert "people have several rows" in shown


def test_a_budget_that_promises_next_to_nothing_is_told_what_it_means(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 500)
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    given = ["--target", "readmitted", "--schema", tmp_path / "schema.json", "--rounds", 5]
    assert "ε = 50 by itself promises next to nothing" in privopt(
        "train", file, *given, "--epsilon", 50, "--out", tmp_path / "weak"
    )
    assert "promises next to nothing" not in privopt("train", file, *given, "--epsilon", 10, "--out", tmp_path / "usual")
    assert "promises next to nothing" in privopt("evaluate", tmp_path / "usual", file, "--epsilon", 20)


def test_methods_lists_the_registry() -> None:
    assert [method["name"] for method in json.loads(privopt("methods", "--json"))] == list(METHODS)
    assert "dp-adam" in privopt("methods")


@pytest.mark.parametrize("width", ["80", "120"])
def test_methods_cuts_no_word(monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    shown = privopt("methods")
    words = {word for method in METHODS.values() for word in f"{method.summary} {method.needs} {method.guarantee}".split()}
    assert "…" not in shown
    assert words - set(re.split(r"[\s│]+", shown)) == set()


def test_demo_compares_private_models_with_the_non_private_one(tmp_path: Path) -> None:
    printed = privopt("demo", "--out", tmp_path / "demo")
    assert "non-private" in printed
    assert "Publishing all three would cost" in printed
    for budget in ("0.5", "1.0", "3.0"):
        assert (tmp_path / "demo" / f"epsilon-{budget}" / "report.html").exists()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", ["--target", "y"], "is empty"),
        ("a,y\n", ["--target", "y"], "no rows"),
        ("a,y\n1,no\n", ["--target", "z"], "no column 'z'"),
        ("a,y\n" + "1,no\n2,no\n" * 50, ["--target", "y"], "one class only"),
        ("a,y\n" + "1,no\ninf,yes\n" * 50, ["--target", "y"], "'a'"),
        ("a,y\n" + "1,no\n,yes\n" * 50, ["--target", "y"], "'a'"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--epsilon", "0"], "epsilon is 0"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--epsilon", "-3"], "epsilon is -3"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--method", "magic"], "the methods are"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--method", "dp-agd", "--learning-rate", "1"], "step sizes itself"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--method", "ideal"], "without_privacy"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--option", "first_decay=2"], "in [0, 1)"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--schema", "missing.json"], "no schema"),
        ("a,y\n" + "1,no\n2,yes\n" * 10, ["--target", "y", "--epsilon", "0.01"], "would help"),
        ("a,y\n" + "".join(f"1,{i}\n" for i in range(300)), ["--target", "y"], "--task regress"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, ["--target", "y", "--task", "regress"], "--task classify"),
        ("a,y\n" + "1,no\n2,yes\n" * 500, [], "--target"),
    ],
)
def test_bad_input_is_one_clear_line_exit_code_2_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "table.csv"
    file.write_text(content)
    budget = [] if "--epsilon" in options else ["--epsilon", "1"]
    printed = privopt("train", file, *options, *budget, "--out", tmp_path / "run", code=2)
    assert message in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "run").exists()


def test_a_delta_of_one_in_n_is_warned_about_loudly(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 1000)
    printed = privopt("train", file, "--target", "readmitted", "--epsilon", 2, "--delta", 1e-3, "--out", tmp_path / "run")
    assert "Warning" in printed
    assert "not below 1/n" in printed


def test_a_corrupt_ledger_is_reported_and_left_alone(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 1000)
    privopt("train", file, "--target", "readmitted", "--epsilon", 2, "--out", tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    content = ledger.read_bytes().replace(b"gaussian", b"Gaussian", 1)
    ledger.write_bytes(content)
    assert "damaged at line 2" in privopt("show", tmp_path / "run", code=2)
    assert ledger.read_bytes() == content


def test_unknown_categories_and_missing_columns_at_prediction(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 2000)
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    run = tmp_path / "run"
    privopt("train", file, "--target", "readmitted", "--epsilon", 1, "--schema", tmp_path / "schema.json", "--out", run)
    frame = pd.read_csv(file).head(20).drop(columns="readmitted")
    frame.assign(region="atlantis").to_csv(tmp_path / "new.csv", index=False)
    assert "'region' (20 of 20 rows)" in privopt("predict", run, tmp_path / "new.csv")
    frame.drop(columns="age").to_csv(tmp_path / "new.csv", index=False)
    assert "'age'" in privopt("predict", run, tmp_path / "new.csv", code=2)


def test_the_installed_command_runs_and_refuses_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from privopt.cli.application import app; app()",
            "train",
            "nowhere.csv",
            "--target",
            "y",
            "--epsilon",
            "1",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert "no file nowhere.csv" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "other", ["--model=mlp:16", "--method=dp-sgd", "--method=dp-adam", "--alpha=1", "--neighbours=replace-one", "--epsilon=5"]
)
def test_a_run_goes_on_as_it_was_asked_for(tmp_path: Path, other: str) -> None:
    assert "leave FILE and the other options out" in privopt("train", "--resume", tmp_path, other, code=2)


def test_predictions_overwrite_neither_the_rows_nor_the_run(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv", 1000)
    run = tmp_path / "run"
    privopt("train", file, "--target", "readmitted", "--epsilon", 2, "--out", run)
    content = file.read_bytes()
    for out in (file, run / "model.json"):
        assert "Name another file" in privopt("predict", run, file, "--out", out, code=2)
    assert file.read_bytes() == content


def test_categories_with_leading_zeros_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.choice(["01", "02", "03"], 3000)
    pd.DataFrame({"zip": codes, "y": np.where(codes == "01", "yes", "no")}).to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps({"columns": {"zip": {"values": ["01", "02", "03"]}}}))
    asked = ["--target", "y", "--epsilon", 3, "--schema", tmp_path / "schema.json", "--out", tmp_path / "run"]
    privopt("train", tmp_path / "table.csv", *asked)
    printed = privopt("predict", tmp_path / "run", tmp_path / "table.csv", "--target", "y", "--out", tmp_path / "predictions.csv")
    assert "accuracy 1.0000" in printed


def test_a_file_that_is_no_run_is_not_to_be_resumed(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    (tmp_path / "notes.txt").write_text("years of work")
    for taken in (tmp_path / "notes.txt", tmp_path):
        arguments = ("train", file, "--target", "readmitted", "--epsilon", "1", "--out", taken)
        error = privopt(*arguments, code=2)
        assert "is not a run folder. Name another folder" in error
        assert "--resume" not in error
    assert (tmp_path / "notes.txt").read_text() == "years of work"


def test_errors_of_predict_name_the_file_and_advise_no_schema(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    privopt("train", file, "--target", "readmitted", "--epsilon", "1", "--rounds", "3", "--out", tmp_path / "run")
    assert "/dev/full: No space left" in privopt("predict", tmp_path / "run", file, "--out", "/dev/full", code=2)
    frame = pd.read_csv(file)
    frame.loc[3, "age"] = np.nan
    frame.to_csv(tmp_path / "new.csv", index=False)
    error = privopt("predict", tmp_path / "run", tmp_path / "new.csv", code=2)
    assert "'age' holds missing or infinite numbers" in error
    assert "leave these rows out" in error
    assert "schema" not in error
