"""Pure privacy from the command line: `--delta 0 --method output-perturbation`."""

import json
from pathlib import Path

import pytest

from privopt.datasets import Numeric, Schema
from privopt.privacy.events import PureDpEvent
from privopt.privacy.ledger import Ledger
from tests.cli.typed import privopt
from tests.problems import PATIENTS, patients, sign_rows, write_rows

ORDER = ("--epsilon", 1, "--delta", 0, "--method", "output-perturbation")


def written(path: Path, schema: Schema) -> Path:
    path.write_text(json.dumps(schema.to_json()))
    return path


def test_a_table_that_a_schema_describes_is_learnt_without_delta(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv", 10_000), tmp_path / "run"
    schema = written(tmp_path / "schema.json", PATIENTS)
    printed = privopt("train", file, "--target", "readmitted", *ORDER, "--schema", schema, "--out", run)
    assert "δ = 0)-differentially private" in printed
    assert "output-perturbation" in printed
    event = Ledger.read(run / "ledger.jsonl").event
    assert isinstance(event, PureDpEvent)
    assert 0.99 <= event.epsilon <= 1.0
    printed = privopt("predict", run, file, "--target", "readmitted")
    assert float(printed.split("accuracy ")[1].split()[0].rstrip(",.")) > 0.7


def test_a_matrix_with_a_row_norm_is_learnt_without_delta(tmp_path: Path) -> None:
    write_rows(tmp_path, "npz", *sign_rows(2000))
    printed = privopt("train", tmp_path / "rows.npz", *ORDER, "--row-norm", 1.7, "--out", tmp_path / "run")
    assert "δ = 0)-differentially private" in printed
    assert "--row-norm" in privopt("train", tmp_path / "rows.npz", *ORDER, "--out", tmp_path / "other", code=2)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (None, ["--target", "readmitted"], "declare 'age', 'income', 'region', 'smoker', 'cost' in a --schema"),
        (
            Schema({"age": Numeric(18, 90)}),
            ["--target", "readmitted"],
            "declare 'income', 'region', 'smoker', 'cost' in a --schema",
        ),
        (PATIENTS, ["--target", "readmitted", "--method", "dp-adam"], "Without delta: output-perturbation"),
    ],
)
def test_without_delta_what_is_not_declared_is_asked_for_and_nothing_is_written(
    tmp_path: Path, schema: Schema | None, options: list[str], message: str
) -> None:
    file, run = patients(tmp_path / "patients.csv", 1000), tmp_path / "run"
    described = [] if schema is None else ["--schema", written(tmp_path / "schema.json", schema)]
    assert message in privopt("train", file, *ORDER, *options, *described, "--out", run, code=2)
    assert not run.exists()


def test_without_delta_a_regression_needs_the_range_of_its_target(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv", 1000), tmp_path / "run"
    known = {name: kind for name, kind in PATIENTS.columns.items() if name != "cost"}
    schema = written(tmp_path / "schema.json", Schema({**known, "readmitted": PATIENTS.columns["cost"]}))
    printed = privopt("train", file, "--target", "cost", *ORDER, "--schema", schema, "--out", run, code=2)
    assert "declare the range of the target in a --schema" in printed
    schema = written(
        tmp_path / "schema.json", Schema({**known, "readmitted": PATIENTS.columns["cost"]}, target=Numeric(0, 10_000))
    )
    assert "δ = 0)" in privopt("train", file, "--target", "cost", *ORDER, "--schema", schema, "--out", run)
