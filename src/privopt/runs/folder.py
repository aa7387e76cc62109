"""Run folders: what a training run leaves behind, and what it needs to go on if it is killed.

run.json            what was asked for
ledger.jsonl        what was spent, written ahead
checkpoint/         the randomness; as sensitive as the data, and removed when the run ends
statement.*         the guarantee in words, JSON and HTML
model.safetensors   numbers
model.json          what they mean; written last, so a run that has it is finished
"""

import json
from pathlib import Path
from typing import Any

from privopt.checkpoint import write_atomically
from privopt.errors import InputError
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement
from privopt.runs.model import SavedModel

FORMAT = "privopt-run-1"


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, asked: dict[str, Any]) -> "RunFolder":
        """A folder for a new run; one that holds anything is refused."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} exists already. Continue it with --resume {path}, or name another folder with --out.")
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "run.json", json.dumps({"format": FORMAT, **asked}, indent=2).encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The folder of an earlier run."""
        if not (path / "run.json").is_file():
            raise InputError(f"{path} is not a run folder: it has no run.json.")
        return cls(path)

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for."""
        value = _json(self.path / "run.json")
        if value.get("format") != FORMAT:
            raise InputError(f"{self.path / 'run.json'} has the format {value.get('format')!r}, not {FORMAT!r}.")
        return value

    @property
    def finished(self) -> bool:
        """Whether the model is there."""
        return (self.path / "model.json").is_file()

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    def ledger(self) -> Ledger:
        """What was spent, for reading."""
        return Ledger.read(self.ledger_path)

    def statement(self) -> Statement:
        """The guarantee, its ε computed anew."""
        path = self.path / "statement.json"
        try:
            return Statement.from_json(_json(path))
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged: {error}.") from error

    def model(self) -> SavedModel:
        """The trained model."""
        if not self.finished:
            raise InputError(f"{self.path} holds an unfinished run. Finish it: privopt train --resume {self.path}")
        return SavedModel.load(self.path)

    def finish(self, model: SavedModel, statement: Statement) -> None:
        """Write the statement, then the model."""
        write_atomically(self.path / "statement.json", json.dumps(statement.to_json(), indent=2).encode())
        write_atomically(self.path / "statement.txt", (statement.text() + "\n").encode())
        write_atomically(self.path / "statement.html", statement.to_html().encode())
        model.save(self.path)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing.") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged: it is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged: it is not a JSON object.")
    return value
