"""What reports are made of: the released parts of a run folder, and what follows from them.

Everything is computed from released numbers, so it is post-processing and costs nothing.
"""

import datetime
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from privopt import __version__
from privopt.datasets import Categorical, Date, Known, Numeric
from privopt.datasets.schema import INDICATOR
from privopt.errors import InputError, PrivoptError
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import UNITS, describe_strength, strongest_attacker
from privopt.privacy.events import (
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
    atoms,
    compose,
)
from privopt.privacy.ledger import Entry
from privopt.privacy.statement import Statement
from privopt.runs.folder import RunFolder
from privopt.runs.model import SavedModel
from privopt.training.scaling import INTERCEPT

EXACT_MARKS, SLOW_MARKS = 12, 4  # how many parts of a run are priced: where ε has a closed form, and where it takes long
COVERAGE, DEVIATIONS = 0.95, 1.959963984540054  # of a noise interval, and its half width in standard deviations
NO_CATEGORIES_SHOWN = 12
MOST_EVALUATIONS = 20  # in one report


class Spent(NamedTuple):
    """ε after so many releases."""

    releases: int
    epsilon: float


class Coefficient(NamedTuple):
    """A number of a linear model, for one of its outputs."""

    feature: str
    output: str  # the class, or "" if there is one output only
    value: float
    deviation: float | None  # standard deviation of the privacy noise, if it is known


class Feature(NamedTuple):
    """A column of the model, what is known of its values, and how."""

    name: str
    values: str
    origin: str


class Number(NamedTuple):
    """A number that tells how good the model is, and its interval; None stands for one that is not finite."""

    name: str
    value: float | None
    low: float | None
    high: float | None

    @property
    def words(self) -> tuple[str, str, str]:
        """Its name, its value and its interval."""
        value, low, high = ("∞" if one is None else f"{one:.4g}" for one in self[1:])
        return self.name, value, f"{low if self.low is not None else '−∞'} to {high}"


class Evaluation(NamedTuple):
    """How good the model is on rows of a file, by one release with a price of its own."""

    name: str  # of the file that holds it
    data: str
    size: int
    confidence: float
    numbers: tuple[Number, ...]
    statement: Statement
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[float, ...], ...] = ()  # noisy numbers, by true class and by predicted class
    held_out: bool = False  # whether training set these units aside

    @property
    def cost(self) -> str:
        """The price of the evaluation, which each unit in its rows has paid."""
        if not self.statement.private:
            return "no guarantee: it is not private"
        return f"ε = {self.statement.epsilon:.4g}, δ = {self.statement.budget.delta:.3g}, for {UNITS[self.statement.budget.unit]}"


@dataclass(frozen=True)
class Contents:
    """The released parts of a finished run."""

    statement: Statement
    model: SavedModel
    entries: tuple[Entry, ...]
    asked: Mapping[str, Any]
    made: int | None = None  # when its ledger was begun
    newest: str | None = None  # the ledger's newest hash
    evaluations: tuple[Evaluation, ...] = ()

    @classmethod
    def of(cls, folder: RunFolder) -> "Contents":
        """Read them; a run without a model is refused."""
        model, ledger = folder.model(), folder.ledger()
        return cls(folder.statement(), model, ledger.entries, folder.asked, ledger.made, ledger.newest, _evaluations(folder))

    # ------------------------------------------------------------ what it is about

    @property
    def data_name(self) -> str:
        """The name of the data: a file without its folder, which may tell more than it should."""
        file = self.asked.get("file")
        return PurePath(file).name if isinstance(file, str) else "rows on the nodes of a federation"

    @property
    def target(self) -> str:
        """What is predicted."""
        target = self.asked.get("target")
        return target if isinstance(target, str) else "the target"

    @property
    def date(self) -> str:
        """The day, in UTC, on which the first charge was written."""
        try:
            day = datetime.datetime.fromtimestamp(self.made, datetime.UTC)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError, OSError):
            return "unknown"
        return day.date().isoformat()

    @property
    def federated(self) -> bool:
        """Whether users' rows stayed on nodes."""
        return bool(self.asked.get("federation"))

    @property
    def kind(self) -> str:
        """What kind of model it is, in words."""
        if self.model.hidden:
            widths = ", ".join(str(len(biases)) for _, biases in self.model.hidden)
            shape = f"a network with hidden layers of {widths} units"
        else:
            shape = "a linear model"
        return f"{shape} that predicts {'classes' if self.model.task == 'classify' else 'numbers'}"

    # ------------------------------------------------------------ how sure

    @property
    def guess(self) -> float | None:
        """The largest probability with which an attacker guesses whether a unit is in the data, if a fair coin decided that."""
        if not self.statement.private:
            return None
        return strongest_attacker(self.statement.epsilon, self.statement.budget.delta).success

    @property
    def strength(self) -> str:
        """How strong such an ε is, in words."""
        return describe_strength(self.statement.epsilon)

    @cached_property
    def spending(self) -> tuple[Spent, ...]:
        """ε at the statement's δ after parts of the releases, priced like the whole; the last one is the statement's."""
        parts = list(atoms(self.statement.event))
        total = sum(count for _, count in parts)
        budget, found = self.statement.budget, [Spent(0, 0.0)]
        for mark in _marks([count for _, count in parts], EXACT_MARKS if _has_closed_form(parts) else SLOW_MARKS):
            event, whole = _take_first(parts, mark), mark == total
            price = (
                self.statement.epsilon
                if whole
                else epsilon(event, budget.delta, budget.neighbours, accountant=self.statement.accountant)
            )
            found.append(Spent(mark, price))
        return tuple(found)

    # ------------------------------------------------------------ the model

    @property
    def deviation_known(self) -> bool:
        """Whether the noise of each coefficient is known."""
        return not isinstance(self._noise, str)

    @property
    def why_no_deviation(self) -> str:
        """Why the noise of a coefficient is not known."""
        return self._noise if isinstance(self._noise, str) else ""

    @cached_property
    def _noise(self) -> tuple[float, float] | str:
        """The standard deviations of the noise on a slope and on an intercept, or why they are not known.

        Output perturbation releases w + z once, z ~ N(0, (noise multiplier × bound)²) on every coefficient of framed rows, and
        both numbers are released in the settings. Rows of an encoded table are framed by nothing but the constant
        ½ × typical row norm of the intercept (`Frame.unfold`), and a regression multiplies by half the range of its target: a
        deviation is multiplied by the same. Every other method adds noise in many rounds, each of which answers a point that
        depends on the noise before it.
        """
        settings = self.statement.settings
        if settings.get("method") != "output-perturbation":
            return _MANY_ROUNDS
        encoding = self.model.encoding
        if encoding is None or any(type(kind) not in (Numeric, Categorical) for _, kind in encoding.columns):
            return "Columns were put on a common scale by numbers that the run folder does not keep."
        *_, (last, _) = atoms(self.statement.event)
        if not isinstance(last, GaussianDpEvent):
            return "The noise has a Gamma-distributed length (δ = 0), and no normal intervals."
        unit = _half_range(self.asked) if self.model.task == "regress" else 1.0
        bound, norm = settings.get("one example moves the solution by"), settings.get("typical row norm")
        if unit is None or not isinstance(bound, float) or not isinstance(norm, float):
            return "The target was put on a scale that the run folder does not keep."
        slope = float(last.noise_multiplier) * bound * unit
        return slope, slope * INTERCEPT * norm

    @cached_property
    def coefficients(self) -> tuple[Coefficient, ...]:
        """The coefficients of a linear model, the largest first, then the intercepts; none of a network."""
        if self.model.hidden:
            return ()
        outputs = self.model.classes if len(self.model.slopes) > 1 else ("",)
        slope, constant = (None, None) if isinstance(self._noise, str) else self._noise
        found = [
            Coefficient(self.model.names[column], outputs[row], float(self.model.slopes[row, column]), slope)
            for row, column in np.argwhere(np.ones_like(self.model.slopes, dtype=bool)).tolist()
        ]
        found.sort(key=lambda one: -abs(one.value))
        found += [
            Coefficient("(intercept)", output, float(value), constant)
            for output, value in zip(outputs, self.model.intercepts, strict=True)
        ]
        return tuple(found)

    @property
    def hats(self) -> bool:
        """Whether coefficients are the heights of piecewise linear curves of the numeric columns."""
        return self.model.encoding is not None and self.model.names != self.model.encoding.names

    @property
    def features(self) -> tuple[Feature, ...]:
        """The columns of an encoded table, and where their ranges come from."""
        if self.model.encoding is None:
            return ()
        declared = _declared_columns(self.asked)
        estimated = "estimated privately, inside this budget" if self.statement.private else "read off the data, without privacy"
        return tuple(
            Feature(name, _values(kind), _origin(kind, declared.get(name), estimated))
            for name, kind in self.model.encoding.columns
        )

    @property
    def ignored(self) -> tuple[str, ...]:
        """Columns that the schema leaves out."""
        columns = _declared_columns(self.asked).items()
        return tuple(name for name, entry in columns if isinstance(entry, Mapping) and entry.get("ignore"))

    # ------------------------------------------------------------ how it was made

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the programs that write the report: those that trained, if it is written when training ends."""
        found = {"privopt": __version__, "Python": platform.python_version()}
        for name in (
            "numpy",
            "scipy",
            "dp-accounting",
            *(("torch",) if self.model.hidden else ()),
            *(("flwr",) * self.federated),
        ):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        return found


_MANY_ROUNDS = (
    "Noise was added in many rounds, and each round answers a point that depends on the noise of the rounds before. How that "
    "noise adds up in a coefficient depends on the curvature of the private loss, which was not released."
)


def _evaluations(folder: RunFolder) -> tuple[Evaluation, ...]:
    """Read evaluation.json, evaluation-2.json, …, in the order in which they were written."""
    named = [(re.fullmatch(r"evaluation(?:-(\d{1,9}))?\.json", path.name), path) for path in folder.path.iterdir()]
    ordered = sorted((int(name[1] or 1), path) for name, path in named if name)
    found = []
    for _, path in ordered[:MOST_EVALUATIONS]:
        try:
            found.append(_parse_evaluation(path.name, json.loads(path.read_bytes())))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, PrivoptError) as error:
            why = str(error) if isinstance(error, PrivoptError) else f"{type(error).__name__}."
            raise InputError(f"{path} is damaged: {why}") from None
    return tuple(found)


def _parse_evaluation(name: str, value: dict[str, Any]) -> Evaluation:
    data = value.get("file")
    classes, confusion = value.get("classes", []), value.get("confusion", [])
    return Evaluation(
        name,
        PurePath(data).name if isinstance(data, str) else "unknown rows",
        int(value["size"]),
        float(value["confidence"]),
        tuple(
            Number(str(key), *(_optional(held[part]) for part in ("value", "low", "high")))
            for key, held in value["numbers"].items()
        ),
        Statement.from_json(value["statement"]),
        tuple(map(str, classes)),
        tuple(tuple(map(float, row)) for row in confusion),
        value.get("holdout") is not None,
    )


def _optional(number: object) -> float | None:
    return None if number is None else float(number)  # type: ignore[arg-type]


def _declared_columns(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns that the schema of a request describes."""
    match asked.get("schema"):
        case {"columns": dict() as columns}:
            return columns
    return {}


def _origin(kind: Known, entry: object, estimated: str) -> str:
    """Where the range or the values of a column come from: `entry` is what the schema says of it, which may be its type only."""
    said = entry if isinstance(entry, Mapping) else {}
    public = "declared in the schema: assumed public"
    if isinstance(kind, Categorical):
        return public if said.get("values") is not None else estimated
    ends = kind.years if isinstance(kind, Date) else kind
    if ends is None:
        return public
    if said.get("low") is None:
        return estimated
    return public if (said["low"], said.get("high")) == (ends.low, ends.high) else f"{estimated}, within the declared range"


def _half_range(asked: Mapping[str, Any]) -> float | None:
    match asked.get("schema"):
        case {"target": {"low": int() | float() as low, "high": int() | float() as high}}:
            return (high - low) / 2
    return None


def _values(kind: Known) -> str:
    """What a column holds, in words."""
    if isinstance(kind, Categorical):
        more = len(kind.values) - NO_CATEGORIES_SHOWN
        return ", ".join(kind.values[:NO_CATEGORIES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    ends = kind.years if isinstance(kind, Date) else kind
    held = "" if ends is None else f"{ends.low:.6g} to {ends.high:.6g}"
    if isinstance(kind, Date):
        held = f"dates: {', '.join(kind.parts)}{held and f'; years {held}'}"
    said = "are marked" if kind.missing == INDICATOR else f"count as {kind.missing}"
    return held + ("" if kind.missing is None else f"; missing ones {said}")


def _has_closed_form(parts: list[tuple[DpEvent, int]]) -> bool:
    gaussian = all(isinstance(part, GaussianDpEvent | FailureDpEvent) for part, _ in parts)
    return gaussian or all(isinstance(part, LaplaceDpEvent | PureDpEvent) for part, _ in parts)


def _marks(counts: list[int], most: int) -> list[int]:
    """Numbers of releases at which ε is computed: evenly, and at the ends of parts that differ if those are few.

    >>> _marks([3, 1, 200], 6)
    [3, 4, 34, 68, 102, 136, 170, 204]
    """
    total = sum(counts)
    ends = np.cumsum(counts).tolist()
    even = [total * step // most for step in range(1, most + 1)]
    few = ends if len(ends) <= most // 2 else []
    return sorted({mark for mark in (*few, *even) if mark > 0})


def _take_first(parts: list[tuple[DpEvent, int]], releases: int) -> DpEvent:
    """The first releases, as many as `releases` says, as one event."""
    taken, left = [], releases
    for part, count in parts:
        if left <= 0:
            break
        taken.append(SelfComposedDpEvent(part, min(count, left)))
        left -= count
    return compose(taken)
