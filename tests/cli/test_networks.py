"""`privopt train --model mlp:…` as a user types it."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.typed import privopt
from tests.problems import PATIENTS, patients

pytest.importorskip("torch")


def test_a_network_is_trained_shown_used_and_resumed(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv", 2000), tmp_path / "run"
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    asked = ["--target", "readmitted", "--epsilon", 2, "--schema", tmp_path / "schema.json", "--model", "mlp:16", "--rounds", 80]
    printed = privopt("train", file, *asked, "--out", run)
    assert "80/80 rounds" in printed
    assert "network, hidden layers of 16 tanh units" in printed
    assert "loss" not in printed
    assert "Spent, from the ledger: ε = 1.99" in privopt("show", run)
    new = patients(tmp_path / "new.csv", 500, seed=5)
    printed = privopt("predict", run, new, "--out", tmp_path / "predictions.csv", "--target", "readmitted")
    assert float(printed.split("accuracy ")[1].split(",")[0]) > 0.7
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == 500
    assert "network" in privopt("train", "--resume", run)  # finished: left as it is, and shown


def test_help_says_what_a_network_is() -> None:
    printed = privopt("train", "--help")
    assert "mlp:128,128" in printed
    assert "tanh" in printed


@pytest.mark.parametrize(
    ("model", "message"), [("mlp:no", "mlp:128,128"), ("transformer", "it is linear, auto, or mlp")], ids=["widths", "kind"]
)
def test_a_model_that_is_none_is_one_clear_line(tmp_path: Path, model: str, message: str) -> None:
    file = patients(tmp_path / "patients.csv", 500)
    printed = privopt("train", file, "--target", "readmitted", "--epsilon", 1, "--model", model, "--out", tmp_path / "r", code=2)
    assert message in printed
    assert not (tmp_path / "r").exists()
