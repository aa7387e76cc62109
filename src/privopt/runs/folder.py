"""Run folders: what a training run leaves behind, and what it needs to go on if it is killed.

run.json            what was asked for
ledger.jsonl        what was spent, written ahead; ledger.jsonl.tip is its anchor
checkpoint/         the randomness; as sensitive as the data, and removed when the run ends
statement.*         the guarantee in words, JSON and HTML, and the ledger's newest hash
model.safetensors   numbers
model.json          what they mean; written last, so a run that has it is finished
failed.json         why a run ended without a model, instead of the three above
report.html         all of it for people (`privopt.report`); written by commands when a run has ended
"""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

from privopt.checkpoint import Checkpoint
from privopt.datasets.readers import read_json
from privopt.datasets.schema import shortened
from privopt.durable import sync_directory, temporary, write_atomically
from privopt.errors import InputError, PrivoptError
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
        """Create the folder of a new run. It must be empty, but for what a run leaves that is killed at its very start."""
        half = temporary(path / "run.json")
        if path.exists() and (not path.is_dir() or any(held != half for held in path.iterdir())):
            if not (path / "run.json").is_file():
                raise InputError(f"{path} exists already, and is not a run folder. Name another folder with --out.")
            folder = cls(path)
            folder.tidy()
            if (failure := folder.failure) is not None:
                raise InputError(f"{path} exists already: {failure} Name another folder with --out.")
            raise InputError(f"{path} exists already. Continue it with --resume {path}, or name another folder with --out.")
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "run.json", json.dumps({"format": FORMAT, **asked}, indent=2).encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of an earlier run."""
        if not (path / "run.json").is_file():
            raise InputError(f"{path} is not a run folder: it has no run.json.")
        folder = cls(path)
        folder.tidy()
        return folder

    def tidy(self) -> None:
        """Remove the randomness of a run that has ended, if a kill left it."""
        if self.finished or self._failed.is_file():
            with contextlib.suppress(OSError):  # of a folder that may only be read
                Checkpoint(self.checkpoint, "").remove()

    def discard(self) -> None:
        """Remove a run that released nothing; run.json last, so that a kill leaves a run that can go on, or none."""
        for held in self.path.iterdir():
            if held.name != "run.json":
                shutil.rmtree(held) if held.is_dir() else held.unlink()
        shutil.rmtree(self.path)

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for."""
        value = _json(self.path / "run.json")
        if value.get("format") != FORMAT:
            raise InputError(f"{self.path / 'run.json'} has the format {shortened(value.get('format'))}, not {FORMAT!r}.")
        return value

    @property
    def command(self) -> str:
        """The command that began the run, and goes on with it."""
        return "federate" if self.asked.get("federation") else "train"

    @property
    def finished(self) -> bool:
        """Whether the model is there."""
        return (self.path / "model.json").is_file()

    @property
    def failure(self) -> str | None:
        """Why the run ended without a model, and what it spent; `None` if it did not."""
        if not self._failed.is_file():
            return None
        ledger, why = self.ledger(), str(_json(self._failed).get("why"))
        if ledger.budget is None:  # a run without privacy
            return why
        spent = f"ε = {ledger.epsilon():.4g} of {ledger.budget.epsilon:.4g} at δ = {ledger.budget.delta:.3g}"
        return f"{why} Spent: {spent}."

    def fail(self, error: PrivoptError) -> None:
        """Write why the run ended without a model, as it would again, and remove its randomness."""
        write_atomically(self._failed, json.dumps({"why": str(error)}).encode())
        sync_directory(self.path)
        Checkpoint(self.checkpoint, "").remove()

    @property
    def _failed(self) -> Path:
        return self.path / "failed.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    def ledger(self) -> Ledger:
        """What was spent, for reading: nothing, if the run was killed before its ledger began."""
        if not self.finished and not any(self.path.glob(f"{self.ledger_path.name}*")):
            return Ledger()
        return Ledger.read(self.ledger_path)

    def statement(self) -> Statement:
        """The guarantee, its ε computed anew."""
        path = self.path / "statement.json"
        try:
            return Statement.from_json(_json(path))
        except (PrivoptError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is damaged: {error}") from error

    @property
    def newest(self) -> str | None:
        """The newest hash of the ledger when the run was finished."""
        newest: str | None = _json(self.path / "statement.json").get("ledger")
        return newest

    def model(self) -> SavedModel:
        """The trained model."""
        if (failure := self.failure) is not None:
            raise InputError(f"{self.path} holds no model: {failure}")
        if not self.finished:
            raise InputError(f"{self.path} holds an unfinished run. Finish it: privopt {self.command} --resume {self.path}")
        return SavedModel.load(self.path)

    def finish(self, model: SavedModel, statement: Statement) -> None:
        """Write the statement, then the model."""
        said = statement.to_json() | {"ledger": self.ledger().newest}
        write_atomically(self.path / "statement.json", json.dumps(said, indent=2).encode())
        write_atomically(self.path / "statement.txt", (statement.text() + "\n").encode())
        write_atomically(self.path / "statement.html", statement.to_html().encode())
        model.save(self.path)
        sync_directory(self.path)  # before the randomness is removed that could make the model again


def _json(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing.") from None
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged: it is not a JSON object.")
    return value
