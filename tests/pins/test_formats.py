"""Files that an earlier version wrote are read as they were meant, and files that this one writes have the same parts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from privopt.datasets import read
from privopt.runs.folder import RunFolder
from tests.pins.cases import train, write_table

EARLIER = Path(__file__).with_name("run")  # by `train(folder)` of cases.py; run.json names no folder
FIRST = [0.4816, 0.5422, 0.757]  # what its model says of the first rows


@pytest.fixture
def earlier(tmp_path: Path) -> RunFolder:
    shutil.copytree(EARLIER, tmp_path / "earlier")
    return RunFolder.open(tmp_path / "earlier")


def test_a_run_of_an_earlier_version_is_read(earlier: RunFolder, tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv")
    probabilities = earlier.model().probabilities(read(tmp_path / "table.csv", "outcome"))
    assert probabilities[:3, 1].round(4).tolist() == FIRST
    ledger, statement = earlier.ledger(), earlier.statement()
    assert 3.9 < statement.epsilon <= 4.0
    assert ledger.epsilon() == pytest.approx(statement.epsilon, rel=1e-6)
    assert earlier.newest == ledger.newest


def shape(value: Any) -> Any:
    """The keys of JSON, and the kinds of what they hold."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return type(value).__name__


def parts(folder: Path) -> dict[str, Any]:
    """What each file of a run folder is made of."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            found[path.name] = shape(json.loads(path.read_text()))
            if path.name == "statement.json":  # what a method shows of its settings is its own
                found[path.name]["settings"] = None
        elif path.suffix == ".jsonl":
            found[path.name] = sorted({str(shape(json.loads(line))) for line in path.read_text().splitlines()})
        else:
            found[path.name] = None
    return found


def test_a_run_folder_has_the_files_and_keys_of_an_earlier_one(tmp_path: Path) -> None:
    assert parts(train(tmp_path).path) == parts(EARLIER)
