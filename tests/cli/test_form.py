"""`privopt schema`: a form to fill in, and a dialogue that fills it in."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privopt.cli.application import app
from privopt.datasets import Categorical, Ignored, Numeric, Schema, UnknownCategorical, UnknownNumeric
from tests.cli.typed import privopt

STAYS = pd.DataFrame(
    {
        "patient_id": [f"P{place // 2}" for place in range(3000)],
        "age": np.arange(3000) % 70 + 18,
        "ward": np.arange(3000) % 3 + 1,
        "weight": np.where(np.arange(3000) % 5 == 0, np.nan, 50.0 + np.arange(3000) % 60),
        "day": [f"2024-{month:02}-15" for month in np.arange(3000) % 12 + 1],
        "smoker": np.arange(3000) % 4 == 0,
        "again": np.where((np.arange(3000) % 70 > 30) ^ (np.arange(3000) % 11 == 0), "yes", "no"),
    }
)


@pytest.fixture
def stays(tmp_path: Path) -> Path:
    STAYS.to_csv(tmp_path / "stays.csv", index=False)
    return tmp_path / "stays.csv"


def form(file: Path, *options: object, answers: str | None = None) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["schema", str(file), *map(str, options)], input=answers)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_form_is_a_line_for_each_column_and_is_accepted_as_it_is(stays: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["schema", str(stays), "--target", "again"])
    assert sum(line.startswith('    "ward": {"type": "number", "low": null') for line in result.stdout.splitlines()) == 1
    blank = form(stays, "--target", "again")
    assert Schema.from_json(blank).columns["ward"] == UnknownNumeric()
    blank["columns"]["weight"]["missing"] = "indicator"
    (tmp_path / "schema.json").write_text(json.dumps(blank))
    options = ("--target", "again", "--epsilon", 3, "--seed", 1, "--rounds", 20, "--schema", tmp_path / "schema.json")
    printed = privopt("train", stays, *options, "--out", tmp_path / "run")
    assert "the ranges of age, ward, weight" in printed
    model = json.loads((tmp_path / "run" / "model.json").read_text())
    assert "weight=(missing)" in model["names"]
    assert not any("patient" in name for name in model["names"])
    assert "3000 predictions" in privopt("predict", tmp_path / "run", stays, "--out", tmp_path / "predictions.csv")


def test_a_filled_in_form_trains_on_codes_dates_and_missing_numbers(stays: Path, tmp_path: Path) -> None:
    filled = form(stays, "--target", "again")
    filled["columns"]["ward"] = {"type": "category"}
    filled["columns"]["day"] = {"type": "date", "parts": ["month"]}
    filled["columns"]["weight"] |= {"low": 40, "high": 150, "missing": 80}
    (tmp_path / "schema.json").write_text(json.dumps(filled))
    options = ("--target", "again", "--epsilon", 3, "--seed", 1, "--rounds", 20, "--drop", "smoker", "--out", tmp_path / "run")
    printed = privopt("train", stays, *options, "--schema", tmp_path / "schema.json")
    names = json.loads((tmp_path / "run" / "model.json").read_text())["names"]
    assert {"ward=1", "ward=2", "ward=3", "day.month=January"} <= set(names)
    assert any(name.startswith("weight at ") for name in names)
    assert not any("smoker" in name for name in names)
    assert "the frequent categories of ward" in printed
    report = (tmp_path / "run" / "report.html").read_text()
    assert "month" in report
    assert privopt("train", "--resume", tmp_path / "run")


def test_a_number_that_is_missing_is_refused_with_what_to_declare(stays: Path) -> None:
    said = privopt("train", stays, "--target", "again", "--epsilon", 1, code=2)
    assert "column 'weight' holds missing or infinite numbers" in said
    assert '{"missing": "indicator"}' in said


def test_the_dialogue_asks_about_amounts_and_codes(stays: Path) -> None:
    answers = ["no, yes"]  # the target
    answers += ["l"]  # patient_id
    answers += ["a", "90", "18", "", "a", "18", "90", ""]  # age: the wrong way round, then right
    answers += ["c", "1, 2, 3"]  # ward
    answers += ["a", "", "indicator"]  # weight
    answers += ["d", "", ""]  # day
    filled = form(stays, "--target", "again", "--ask", answers="\n".join([*answers, ""]))
    schema = Schema.from_json(filled)
    assert schema.classes == ("no", "yes")
    assert schema.columns["patient_id"] == Ignored()
    assert schema.columns["age"] == Numeric(18, 90)
    assert schema.columns["ward"] == Categorical(("1", "2", "3"))
    assert schema.columns["weight"] == UnknownNumeric("indicator")
    assert schema.columns["smoker"] == Categorical(("False", "True"))


def test_a_form_is_written_once(stays: Path, tmp_path: Path) -> None:
    privopt("schema", stays, "--out", tmp_path / "schema.json")
    assert Schema.from_json(json.loads((tmp_path / "schema.json").read_text())).columns["day"] == UnknownCategorical()
    assert "exists already" in privopt("schema", stays, "--out", tmp_path / "schema.json", code=2)
    assert "Closest: again" in privopt("schema", stays, "--target", "agian", code=2)


def test_what_is_not_there_cannot_be_dropped(stays: Path) -> None:
    said = privopt("train", stays, "--target", "again", "--epsilon", 1, "--drop", "smokes", code=2)
    assert "--drop names 'smokes'" in said
    assert "Closest: smoker" in said


def test_the_target_is_no_feature_to_drop(stays: Path) -> None:
    said = privopt("train", stays, "--target", "again", "--epsilon", 1, "--drop", "again", code=2)
    assert "'again', which --target names too" in said


@pytest.mark.parametrize("entry", [{"type": "date", "parts": ["month"]}, {"low": 40, "high": 150, "missing": 80}])
def test_a_federation_refuses_what_it_does_not_know(stays: Path, tmp_path: Path, entry: Any) -> None:
    column = "day" if "parts" in entry else "weight"
    (tmp_path / "schema.json").write_text(json.dumps({"columns": {column: entry}}))
    options = ("--users", "patient_id", "--target", "again", "--epsilon", 5, "--schema", tmp_path / "schema.json")
    assert "which federations do not know" in privopt("federate", stays, *options, code=2)
