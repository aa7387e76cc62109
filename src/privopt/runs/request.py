"""Requests: what a user asks for when training from a file, in a form that a run folder keeps."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privopt.datasets import Schema
from privopt.errors import InputError
from privopt.privacy.budget import Budget, Neighbours, default_delta
from privopt.runs.model import Task
from privopt.training.settings import Settings


@dataclass(frozen=True)
class Request:
    """A private model of a file's target."""

    file: Path
    target: str | None
    epsilon: float
    delta: float | None = None
    neighbours: Neighbours = "add-remove"
    task: Task | None = None
    model: str = "linear"
    settings: Settings = field(default_factory=Settings)
    schema: Schema | None = None
    public: Path | None = None  # a file of rows that are not private
    seed: int | None = None

    def budget(self, size: int) -> Budget:
        """The budget, for a table of so many rows."""
        return Budget(self.epsilon, default_delta(size) if self.delta is None else self.delta, self.neighbours)

    @property
    def hidden(self) -> tuple[int, ...]:
        """The widths of the model's hidden layers; a linear model has none."""
        if self.model == "linear":
            return ()
        if not re.fullmatch(r"mlp:[1-9]\d{0,4}(,[1-9]\d{0,4})*", self.model):
            raise InputError(
                f"--model is {self.model!r}; it is linear, or mlp: and the widths of hidden layers, as in mlp:128,128."
            )
        return tuple(map(int, self.model[4:].split(",")))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {
            "file": str(self.file.absolute()),
            "target": self.target,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours,
            "task": self.task,
            "model": self.model,
            "settings": asdict(self.settings),
            "schema": None if self.schema is None else self.schema.to_json(),
            "public": None if self.public is None else str(self.public.absolute()),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Request":
        """The request that `to_json` wrote."""
        match value:
            case {
                "file": str(file),
                "target": str() | None as target,
                "epsilon": float() | int() as epsilon,
                "delta": float() | int() | None as delta,
                "neighbours": "add-remove" | "replace-one" as neighbours,
                "task": "classify" | "regress" | None as task,
                "model": str(model),
                "settings": dict(),
                "schema": dict() | None as schema,
                "public": str() | None as public,
                "seed": int() | None as seed,
            }:
                return cls(
                    file=Path(file),
                    target=target,
                    epsilon=epsilon,
                    delta=delta,
                    neighbours=neighbours,
                    task=task,
                    model=model,
                    settings=_settings(value["settings"]),
                    schema=None if schema is None else Schema.from_json(schema),
                    public=None if public is None else Path(public),
                    seed=seed,
                )
        raise InputError("run.json is damaged: an entry is missing, or is not what it should be. Start a new run.")


def _settings(value: dict[str, Any]) -> Settings:
    """What is not checked here is checked when the run is prepared, as it is for a new run."""
    match value:
        case {"method": str(), "fit_intercept": bool(), "accountant": str(), "options": dict()}:
            given: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
            try:
                return Settings(**given)
            except TypeError:  # an entry that settings have not
                pass
    raise InputError("run.json is damaged: its settings are not those of a run. Start a new run.")
