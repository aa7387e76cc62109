"""Requests: what a user asks for when training from a file, in a form that a run folder keeps."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privopt.datasets import Schema
from privopt.errors import InputError
from privopt.federated.training import FederatedSettings
from privopt.limits import MOST_EXAMPLES
from privopt.methods import find_method
from privopt.privacy.budget import Budget, Neighbours, UnitName, default_delta
from privopt.runs.model import Task
from privopt.training.search import Search
from privopt.training.settings import Settings, check_model

AUTO = "auto"  # a model that is chosen by a rule of the number of rows and columns, and of the budget
MOST_NODES, MOST_ROUNDS_SENT = 64, 10_000  # of a federation: each node is two processes, and each round a message to all


@dataclass(frozen=True)
class HoldOut:
    """Rows, or persons, set aside at random to evaluate the model on: their share, the budget, and the key of the draw."""

    share: float
    epsilon: float
    key: int  # public: nothing is hidden by it

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(
                f"--holdout is {self.share:g}, but it is a share of the rows (or persons), between 0 and 1, such as 0.2."
            )
        Budget(self.epsilon)  # validates it

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {"share": self.share, "epsilon": self.epsilon, "key": f"{self.key:x}"}

    @classmethod
    def from_json(cls, value: Any) -> "HoldOut":
        """What `to_json` wrote."""
        match value:
            case {"share": float(share), "epsilon": float() | int() as epsilon, "key": str(key)} if re.fullmatch(
                r"[0-9a-f]{1,64}", key
            ):
                return cls(share, epsilon, int(key, 16))
        raise InputError("run.json is damaged: what it says about --holdout cannot be read. Start a new run.")


@dataclass(frozen=True)
class Request:
    """A request to train a private model that predicts a column of a file."""

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
    processes: int | None = None  # of a torchrun job; None: this process trains
    person: str | None = None  # the column that says whose row it is; None: each row is protected by itself
    rows_per_person: int | None = None
    holdout: HoldOut | None = None
    drop: tuple[str, ...] = ()  # columns that are not used
    search: Search | None = None  # settings to choose among

    def budget(self, size: int) -> Budget:
        """The budget, for a table of so many rows, or persons."""
        delta = default_delta(size) if self.delta is None else self.delta
        return Budget(self.epsilon, delta, self.neighbours, self.unit)

    @property
    def unit(self) -> UnitName:
        """Who is protected."""
        return "example" if self.person is None else "person"

    @property
    def hidden(self) -> tuple[int, ...]:
        """The widths of the model's hidden layers; a linear model has none, nor has one that is still to be chosen."""
        return _hidden_widths(self.model, ("linear", AUTO))

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
            "settings": {name: value for name, value in asdict(self.settings).items() if (name, value) != ("numeric", "auto")},
            "schema": None if self.schema is None else self.schema.to_json(),
            "public": None if self.public is None else str(self.public.absolute()),
            "seed": self.seed,
            **({} if self.processes is None else {"processes": self.processes}),
            **({} if self.person is None else {"person": self.person, "rows_per_person": self.rows_per_person}),
            **({} if self.holdout is None else {"holdout": self.holdout.to_json()}),
            **({"drop": list(self.drop)} if self.drop else {}),
            **({} if self.search is None else {"search": self.search.to_json()}),
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
            } if (
                isinstance(value.get("processes"), int | None)
                and isinstance(value.get("person"), str | None)
                and isinstance(value.get("rows_per_person"), int | None)
                and isinstance(value.get("drop", []), list)
            ):
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
                    processes=value.get("processes"),
                    person=value.get("person"),
                    rows_per_person=value.get("rows_per_person"),
                    holdout=None if value.get("holdout") is None else HoldOut.from_json(value["holdout"]),
                    drop=tuple(map(str, value.get("drop", []))),
                    search=None if value.get("search") is None else Search.from_json(value["search"]),
                )
        raise InputError("run.json is damaged: an entry is missing, or is not what it should be. Start a new run.")


@dataclass(frozen=True)
class FederationRequest:
    """A request to train a private model with the users of a table, in a federation."""

    users: str  # the column that says whose row it is
    target: str
    epsilon: float
    file: Path | None = None  # None: the rows are on nodes only
    delta: float | None = None
    task: Task | None = None
    model: str | None = None  # None: logistic or ridge, by the task
    nodes: int = 2
    settings: FederatedSettings = field(default_factory=FederatedSettings)
    schema: Schema | None = None
    public: Path | None = None  # a file of rows that are not private
    wait: float = 60.0  # seconds for all nodes to come
    timeout: float = 120.0  # seconds for the first answer of a node; later ones are compared with that
    seed: int | None = None

    def __post_init__(self) -> None:
        Budget(self.epsilon, 1e-9 if self.delta is None else self.delta, unit="user")  # validates them
        method = find_method(self.settings.method)
        check_model(method, "federated")
        assert isinstance(self.hidden, tuple)  # validates the model
        for name, value, most in (
            ("nodes", self.nodes, MOST_NODES),
            ("rounds", self.settings.rounds, MOST_ROUNDS_SENT),
            ("cohort", self.settings.cohort, MOST_EXAMPLES),
        ):
            if value is not None and not (isinstance(value, int) and 1 <= value <= most):
                raise InputError(f"--{name} is {value}, but it is a whole number from 1 to {most}.")
        numbers = {"clip-bound": self.settings.clip_bound, "learning-rate": self.settings.learning_rate}
        for name, number in (numbers | {"wait": self.wait, "timeout": self.timeout}).items():
            if number is not None and not 0 < float(number) < math.inf:  # type: ignore[arg-type]
                raise InputError(f"--{name} is {number}, but it is a finite number > 0.")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"--seed is {self.seed}, but it is a whole number ≥ 0.")
        if "scale" in self.settings.options:
            raise InputError("--option scale: the scale of a federation's columns is that of public rows. Use --public FILE.")
        if self.public is not None and (not method.uses_public or self.hidden):
            raise InputError("--public is for --method fed-adadps, with a linear --model. Leave it out.")
        if self.public is None and method.uses_public:
            raise InputError(f"{method.name} needs rows that are not private: --public FILE.")
        if (self.model, self.task) in (("logistic", "regress"), ("ridge", "classify")):
            raise InputError(f"--model {self.model} does not fit --task {self.task}. Leave one of them out.")

    @property
    def hidden(self) -> tuple[int, ...]:
        """The widths of a network's hidden layers; a linear model has none."""
        return () if self.model is None else _hidden_widths(self.model, ("logistic", "ridge"))

    def budget(self, users: int) -> Budget:
        """The budget, for so many users."""
        return Budget(self.epsilon, default_delta(users) if self.delta is None else self.delta, unit="user")

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {
            "federation": True,
            **{name: getattr(self, name) for name in _PLAIN},
            "file": None if self.file is None else str(self.file.absolute()),
            "settings": asdict(self.settings),
            "schema": None if self.schema is None else self.schema.to_json(),
            "public": None if self.public is None else str(self.public.absolute()),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FederationRequest":
        """The request that `to_json` wrote."""
        try:
            return cls(
                **{name: value[name] for name in _PLAIN},
                file=None if value["file"] is None else Path(value["file"]),
                settings=FederatedSettings(**value["settings"]),
                schema=None if value["schema"] is None else Schema.from_json(value["schema"]),
                public=None if value["public"] is None else Path(value["public"]),
            )
        except (KeyError, TypeError, AttributeError):
            raise InputError("run.json is damaged: an entry is missing, or is not what it should be. Start a new run.") from None


_PLAIN = ("users", "target", "epsilon", "delta", "task", "model", "nodes", "wait", "timeout", "seed")


def _hidden_widths(model: str, linear: tuple[str, ...]) -> tuple[int, ...]:
    """The widths that a model's name says: none, for the names of linear models."""
    if model in linear:
        return ()
    if not re.fullmatch(r"mlp:[1-9]\d{0,4}(,[1-9]\d{0,4})*", model):
        names = ", ".join(linear)
        raise InputError(f"--model is {model!r}; it is {names}, or mlp: and the widths of hidden layers, as in mlp:128,128.")
    return tuple(map(int, model[4:].split(",")))


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
