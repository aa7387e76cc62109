"""Orders: what a user asks for when training from a file, in a form that a run folder keeps."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privopt.datasets import Schema
from privopt.errors import InputError
from privopt.linear_model.problem import Settings
from privopt.privacy.budget import Budget, Neighbours, default_delta
from privopt.runs.model import Task


@dataclass(frozen=True)
class Order:
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
    def from_json(cls, value: Mapping[str, Any]) -> "Order":
        """The order that `to_json` wrote."""
        try:
            settings: dict[str, Any] = {
                key: tuple(item) if isinstance(item, list) else item for key, item in value["settings"].items()
            }
            return cls(
                file=Path(value["file"]),
                target=value["target"],
                epsilon=value["epsilon"],
                delta=value["delta"],
                neighbours=value["neighbours"],
                task=value["task"],
                model=value["model"],
                settings=Settings(**settings),
                schema=None if value["schema"] is None else Schema.from_json(value["schema"]),
                public=None if value["public"] is None else Path(value["public"]),
                seed=value["seed"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"run.json is damaged: {error}.") from error
