"""Commands that somebody stops, or that end early: what they say, and what they leave."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from privopt.privacy.ledger import Ledger
from privopt.progress import Bar
from privopt.runs.folder import RunFolder
from tests.cli.typed import privopt
from tests.problems import patients

INTERRUPTED_IMPORT = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == interrupted:
            raise KeyboardInterrupt

interrupted = sys.argv[1]
sys.meta_path.insert(0, Interrupted())
from privopt.__main__ import main
sys.argv[:2] = ["privopt"]
main()
"""


@pytest.mark.parametrize("module", ["typer", "privopt.cli.train", "privopt.runs.execution"])
def test_stopped_while_modules_are_loaded_it_says_so_and_nothing_is_written(tmp_path: Path, module: str) -> None:
    command = ["train", "nowhere.csv", "--target", "y", "--epsilon", "1"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, *command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.split() == ["Stopped."]
    assert not list(tmp_path.iterdir())


def test_stopped_and_stopped_again_while_it_resumes_a_run_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = patients(tmp_path / "patients.csv", 1000)
    order = ["train", file, "--target", "readmitted", "--epsilon", 3, "--rounds", 30, "--seed", 1]
    privopt(*order, "--out", tmp_path / "whole")
    advance = Bar.advance

    def stopped(bar: Bar, done: int) -> None:
        advance(bar, done)
        if done == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "advance", stopped)
    last = 10
    run = tmp_path / "run"
    assert f"--resume {run}" in privopt(*order, "--out", run, code=130)
    last = 20
    printed = privopt("train", "--resume", run, code=130)
    assert "Stopped." in printed
    assert f"What was paid for is kept. The run goes on, and pays nothing twice: privopt train --resume {run}" in printed
    monkeypatch.undo()
    privopt("train", "--resume", run)
    for name in ("model.safetensors", "statement.txt"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (run / "checkpoint").exists()


def test_a_refusal_after_something_was_released_leaves_its_ledger_but_no_randomness(tmp_path: Path) -> None:
    """Too few rows for any column: found out by surveys, which were paid for."""
    frame = pd.DataFrame({"a": [f"only {row}" for row in range(60)], "y": ["no", "yes"] * 30})
    frame.to_csv(tmp_path / "rare.csv", index=False)
    run = tmp_path / "run"
    printed = privopt("train", tmp_path / "rare.csv", "--target", "y", "--epsilon", 8, "--out", run, code=2)
    assert "too few rows to learn privately" in printed
    assert not (run / "checkpoint").exists()
    assert RunFolder.open(run).ledger().entries


def test_show_compares_the_ledger_with_what_the_statement_knows(tmp_path: Path) -> None:
    """Both files of the ledger were replaced, so they agree: only the statement tells."""
    file, run = patients(tmp_path / "patients.csv", 1000), tmp_path / "run"
    privopt("train", file, "--target", "readmitted", "--epsilon", 3, "--rounds", 30, "--out", run)
    with Ledger(RunFolder.open(run).ledger().budget, tmp_path / "other") as other:
        spending = other.run("another run", budget=other.budget)
        for entry in RunFolder.open(run).ledger().entries:
            spending.pay([entry.event] * entry.count)
    (run / "ledger.jsonl").write_bytes((tmp_path / "other").read_bytes())
    (run / "ledger.jsonl.tip").write_bytes((tmp_path / "other.tip").read_bytes())
    assert "is not about what its ledger records" in privopt("show", run, code=2)
    assert "is not about what its ledger records" in privopt("show", run, "--json", code=2)


def test_show_and_resume_know_a_run_that_was_killed_before_its_ledger_began(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv", 1000), tmp_path / "run"
    privopt("train", file, "--target", "readmitted", "--epsilon", 3, "--rounds", 30, "--seed", 1, "--out", run)
    kept = (run / "run.json").read_bytes()
    for path in run.iterdir():
        path.unlink()
    (run / "run.json").write_bytes(kept)
    assert "Unfinished: nothing is spent yet" in privopt("show", run)
    assert json.loads(privopt("show", run, "--json"))["spent"] == 0.0
    privopt("train", "--resume", run)
