"""Training from a file: what is not public is surveyed, the columns are encoded, and a model is trained.

Everything happens in one run of one ledger, with one generator, whose state a checkpoint keeps: a killed run is resumed by doing
the same again, which repeats the answers that were paid for and then goes on.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from privopt import datasets
from privopt.checkpoint import Checkpoint
from privopt.datasets import Categorical, Encoding, Ignored, Kind, Numeric, Schema, Table, UnknownCategorical, UnknownNumeric
from privopt.errors import Diverged, InputError, LedgerError, PrivoptError, PrivoptWarning
from privopt.linear_model import side
from privopt.linear_model.refusals import check, check_settings
from privopt.linear_model.scaling import RANGES_SHARE, share_of
from privopt.linear_model.side import PublicTable
from privopt.linear_model.training import Observer, classes_in_words, drowned, train
from privopt.measure import surveys
from privopt.measure.randomness import Rng, generator
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial
from privopt.perexample.row_storage import CHUNK
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent
from privopt.privacy.ledger import Ledger, Run
from privopt.recipes import method as method_of
from privopt.runs.folder import RunFolder
from privopt.runs.model import SavedModel, Task
from privopt.runs.order import Order

MOST_CLASSES = 100
MOST_NAMED = 10  # columns in a message
NO_RANGE = "in which ranges {} lie: left out of the model. Declare them in a --schema if they are publicly known."
NO_CATEGORY = (
    "which values {} hold, which are read as text: left out of the model. If they are numbers, clean them (a decimal point, no "
    "other signs); if their categories are publicly known, list them in a --schema."
)
FAILURE_SHARE = 0.05  # of δ pays for naming categories


def start(order: Order, path: Path, observer: Observer | None = None) -> RunFolder:
    """A new run. Whatever is wrong with the order or the file is found before anything is written."""
    prepared = _prepare(order)
    folder = RunFolder.create(path, order.to_json())
    try:
        return _train(prepared, folder, observer)
    except LedgerError:
        raise
    except PrivoptError as error:  # it would end like this again
        if folder.ledger().entries:
            folder.fail(error)
        else:
            folder.discard()  # nothing was released: leave nothing half done
        raise


def resume(path: Path, observer: Observer | None = None) -> RunFolder:
    """Go on with a run that was killed; a finished one is left as it is, and one that ended without a model is refused."""
    folder = RunFolder.open(path)
    if folder.finished:
        return folder
    if (failure := folder.failure) is not None:
        raise InputError(f"{path} cannot go on: {failure}")
    try:
        return _train(_prepare(Order.from_json(folder.asked)), folder, observer)
    except Diverged as error:
        folder.fail(error)
        raise


@dataclass(frozen=True)
class _Prepared:
    """An order, and the table and target that it is about."""

    order: Order
    table: Table
    budget: Budget
    task: Task
    classes: tuple[str, ...]
    targets: Vector
    kinds: dict[str, Kind]
    public: tuple[Table, Vector] | None  # a table like the private one, and its targets


def _prepare(order: Order) -> _Prepared:
    text = datasets.as_written(_listed(order.schema, order.target))
    table = datasets.read(order.file, order.target, text=text)
    if table.frame is None and order.schema is not None and order.schema.columns:
        raise InputError(f"{order.file} has no named columns, so the schema can say nothing about them. Leave 'columns' out.")
    if table.frame is not None and order.settings.bounds is not None:
        raise InputError("--row-norm is for LIBSVM and npz files. For named columns, declare ranges in a --schema.")
    if order.schema is not None and order.target in order.schema.columns:
        raise InputError(f"the schema describes the target {order.target!r} under 'columns'. Describe it under 'target'.")
    if table.target is None:
        raise InputError(f"{order.file} has no target to learn. Name its column with --target.")
    budget = order.budget(len(table))
    task = order.task or _task(table.target, order.schema)
    classes, targets = _classes(table.target, order.schema) if task == "classify" else ((), _numbers(table.target))
    columns, public = len(table.names), order.public is not None
    if order.hidden:
        _check_network(order)
        check_settings(order.settings, budget)
        side.check(order.settings, public)
    else:
        check(order.settings, budget, _loss(task, len(classes))(1.0), size=len(table), columns=columns, public=public)
    kinds = {} if table.frame is None else datasets.kinds(table.frame, order.schema)
    for name, kind in kinds.items():
        if table.frame is not None and isinstance(kind, Numeric | UnknownNumeric):
            datasets.numbers(table.frame[name])  # an error, if there is one, comes before anything is written
    if budget.delta == 0:
        _check_declared(order, table, task, kinds)
    features = sum(len(kind.values) if isinstance(kind, Categorical) else 1 for kind in kinds.values()) if kinds else columns
    widths = (features, *order.hidden, len(classes) if len(classes) > 2 else 1)
    coefficients = sum((width + 1) * after for width, after in pairwise(widths))
    if reason := drowned(len(table), coefficients, budget):
        raise InputError(f"{reason} So would narrower layers, or --model linear." if order.hidden else reason)
    return _Prepared(order, table, budget, task, classes, targets, kinds, _public(order, table, task, classes, kinds))


def _listed(schema: Schema | None, target: str | None) -> dict[str, tuple[str, ...]]:
    """The values that the schema lists, by column."""
    if schema is None:
        return {}
    listed = {name: kind.values for name, kind in schema.columns.items() if isinstance(kind, Categorical)}
    return listed | ({target: schema.classes} if target is not None and schema.classes else {})


def _public(
    order: Order, table: Table, task: Task, classes: tuple[str, ...], kinds: dict[str, Kind]
) -> tuple[Table, Vector] | None:
    """The public rows, if they are like the private ones: the same columns and classes."""
    if order.public is None:
        return None
    text = datasets.as_written(_listed(order.schema, order.target))
    public = datasets.read(order.public, order.target, names=None if table.matrix is None else table.names, text=text)
    if (public.frame is None) != (table.frame is None):
        raise InputError(f"{order.public} is not like {order.file}: one names its columns, the other does not.")
    if public.target is None:
        raise InputError(f"{order.public} has no target: public rows need one, as private ones do.")
    if public.frame is not None:
        if missing := [name for name, kind in kinds.items() if name not in public.names and not isinstance(kind, Ignored)]:
            raise InputError(f"{order.public} lacks columns of {order.file}: {', '.join(map(repr, missing))}.")
        for name, kind in kinds.items():
            if isinstance(kind, Numeric | UnknownNumeric):
                datasets.numbers(public.frame[name])
    if task == "regress":
        return public, _numbers(public.target)
    places = datasets.codes(public.target, classes)
    if (places < 0).any():
        raise InputError(f"{order.public} has classes that {order.file} does not have; it has {', '.join(classes)}.")
    return public, places.astype(float)


def _check_network(order: Order) -> None:
    if any(find_spec(name) is None for name in ("torch", "numba")):
        raise InputError(f"--model {order.model} is a network, which needs torch: pip install 'privopt[torch]'")
    from privopt.nets.defaults import METHODS

    if order.settings.method not in METHODS:
        raise InputError(f"--method {order.settings.method} is not for --model {order.model}; {', '.join(METHODS)} are.")
    if order.settings.method == "dp-gd" and order.settings.batch_size is not None:
        raise InputError("dp-gd uses every row in every round: leave --batch-size out, or use dp-sgd.")


def _check_declared(order: Order, table: Table, task: Task, kinds: dict[str, Kind]) -> None:
    """Surveys add Gaussian noise, so without δ everything has to be known."""
    unknown = [repr(name) for name, kind in kinds.items() if isinstance(kind, UnknownNumeric | UnknownCategorical)]
    if task == "regress" and (order.schema is None or order.schema.target is None):
        unknown.append("the range of the target")
    if unknown:
        raise InputError(
            f"--delta is 0, so nothing can be estimated: declare {', '.join(unknown)} in a --schema, or leave it out."
        )
    if table.frame is None and order.settings.bounds is None:
        raise InputError("--delta is 0, so nothing can be estimated: declare how long a row may be, with --row-norm.")


def _task(target: Vector, schema: Schema | None) -> Task:
    """As the schema says; else by the target's type, and for numbers by whether there are two of them."""
    if schema is not None and (schema.classes or schema.target):
        return "classify" if schema.classes else "regress"
    if target.dtype.kind not in "iuf" or len(np.unique(target)) <= 2:
        return "classify"
    if target.dtype.kind == "f" and (target != np.round(target)).any():
        return "regress"
    raise InputError("the target holds whole numbers, which may be classes or amounts. Say --task classify or --task regress.")


def _classes(target: Vector, schema: Schema | None) -> tuple[tuple[str, ...], Vector]:
    known = schema.classes if schema is not None and schema.classes else tuple(sorted(set(datasets.texts(target))))
    if len(known) < 2:
        raise InputError("the target has one class only; a classifier needs at least two.")
    if len(known) > MOST_CLASSES:
        raise InputError(f"the target has more than {MOST_CLASSES} classes. If it is a number to predict, say --task regress.")
    places = datasets.codes(target, known)
    return known, np.where(places < 0, np.nan, places)  # an error would tell that a row has a class that is not listed


def _numbers(target: Vector) -> Vector:
    try:
        return np.asarray(target, dtype=float)
    except ValueError:
        raise InputError("the target holds text, so it cannot be regressed. Use --task classify.") from None


# ---------------------------------------------------------------- with the data, inside the budget


def _train(prepared: _Prepared, folder: RunFolder, observer: Observer | None) -> RunFolder:
    order, budget = prepared.order, prepared.budget
    checkpoint = Checkpoint(folder.checkpoint, _fingerprint(order))
    cap = budget if method_of(order.settings.method).private else None  # no budget holds a release without privacy
    with Ledger(cap, folder.ledger_path) as ledger:
        name, rng = checkpoint.begin(ledger.run().name, generator(order.seed))
        spending = ledger.run(name, budget=budget)
        table = prepared.table
        paid: list[str] = []
        public: list[str] = []
        settings = order.settings
        encoding = None
        matrix: Any = table.matrix
        if table.frame is not None:
            kinds, paid = _surveyed(table, prepared.kinds, budget, spending, rng)
            encoding = Encoding.of(kinds)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrivoptWarning)  # how many values were not listed is private here
                matrix = encoding.matrix(table.frame)
            numeric = any(isinstance(kind, Numeric | UnknownNumeric) for kind in prepared.kinds.values())  # as planned
            settings = replace(settings, bounds=(-1.0, 1.0) if numeric and budget.delta else encoding.row_bound)
            if declared := sum(isinstance(kind, Numeric | Categorical) for kind in prepared.kinds.values()):
                public.append(f"the ranges or categories that the schema declares, of {declared} of the columns")
        beside = None
        if prepared.public is not None and order.public is not None:
            known, answers = prepared.public
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrivoptWarning)
                rows = known.matrix if encoding is None or known.frame is None else encoding.matrix(known.frame)
            assert rows is not None
            beside = PublicTable(order.public.name, rows, answers)
        if prepared.task == "classify":
            declared = order.schema is not None and bool(order.schema.classes)
            public.append(classes_in_words(prepared.classes, declared=declared))
        if order.task is None and (order.schema is None or not (order.schema.classes or order.schema.target)):
            public.append(f"the task ({prepared.task}), read off the data")
        if order.schema is not None and order.schema.target is not None:
            settings = replace(settings, target_bounds=(order.schema.target.low, order.schema.target.high))
            public.append("the range of the target that the schema declares")
        shared: dict[str, Any] = {
            "spending": spending,
            "rng": rng,
            "seeded": order.seed is not None,
            "checkpoint": checkpoint,
            "observer": observer,
            "encoded": encoding is not None,
            "assumed_public": public,
            "paid_for": paid,
        }
        hidden: list[Any] = []
        if order.hidden:
            from privopt.runs.network import train_network

            classes = len(prepared.classes)
            hidden, trained = train_network(matrix, prepared.targets, order.hidden, classes, settings, budget, **shared)
        else:
            shared |= {"regression": prepared.task == "regress", "public": beside}
            trained = train(matrix, prepared.targets, _loss(prepared.task, len(prepared.classes)), settings, budget, **shared)
    names = tuple(encoding.names if encoding is not None else table.names)
    model = SavedModel(prepared.task, trained.slopes, trained.intercepts, names, prepared.classes, encoding, tuple(hidden))
    folder.finish(model, trained.statement)
    checkpoint.remove()
    return folder


def _loss(task: Task, classes: int) -> Callable[[float], Loss]:
    if task == "regress":
        return lambda unit: Huber(0.2)
    return lambda unit: Logistic() if classes == 2 else Multinomial(classes)


def _surveyed(table: Table, kinds: dict[str, Kind], budget: Budget, spending: Run, rng: Rng) -> tuple[dict[str, Kind], list[str]]:
    """The kinds with nothing unknown any more, and what was paid for."""
    frame = table.frame
    assert frame is not None
    numeric = [name for name, kind in kinds.items() if isinstance(kind, UnknownNumeric)]
    categorical = [name for name, kind in kinds.items() if isinstance(kind, UnknownCategorical)]
    questions = 2 * bool(numeric) + bool(categorical)
    if not questions:
        return kinds, []
    noise = share_of(calibrate(GaussianDpEvent, budget, spent=spending.since(0)), RANGES_SHARE, questions)
    found, paid = dict(kinds), []
    if numeric:
        values = [datasets.numbers(frame[name]) for name in numeric]
        ranges = surveys.column_ranges(
            lambda: _blocks(values), len(table), len(numeric), noise_multiplier=noise, spending=spending, rng=rng
        )
        for name, low, high, known in zip(numeric, ranges.low, ranges.high, ranges.known, strict=True):
            found[name] = Numeric(float(low), float(high)) if known else Ignored()
        paid.append(f"the ranges of {', '.join(numeric)}")
    if categorical:
        named = surveys.categories(
            [datasets.texts(frame[name]) for name in categorical],
            noise_multiplier=noise,
            failure=FAILURE_SHARE * budget.delta / (2 if budget.neighbours == "replace-one" else 1),
            spending=spending,
            rng=rng,
        )
        for name, frequent in zip(categorical, named, strict=True):
            found[name] = Categorical(tuple(frequent)) if frequent else Ignored()
        paid.append(f"the frequent categories of {', '.join(categorical)}")
    for names, hold in ((numeric, NO_RANGE), (categorical, NO_CATEGORY)):
        if lost := [repr(name) for name in names if found[name] == Ignored()]:
            few = ", ".join(lost[:MOST_NAMED]) + (f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else "")
            message = f"too few rows to learn privately, at this budget, {hold.format(few)}"
            warnings.warn(message, PrivoptWarning, stacklevel=2)
    if all(kind == Ignored() for kind in found.values()):
        raise InputError(
            "too few rows to learn privately, at this budget, what any of the columns hold: declare their ranges and categories "
            "in a --schema if they are publicly known."
        )
    return found, paid


def _blocks(columns: list[Vector]) -> Iterator[Vector]:
    step = max(1, CHUNK // len(columns))
    for start_ in range(0, len(columns[0]), step):
        yield np.stack([column[start_ : start_ + step] for column in columns], axis=1)


def _fingerprint(order: Order) -> str:
    """Of the file, of all that was asked and of what computes it: a replay is free only if it repeats the same answers.

    The checkpoint itself compares the versions of privopt, numpy and Python.
    """
    digest = hashlib.sha256(json.dumps(order.to_json(), sort_keys=True).encode())
    for package in ("scipy", "torch") if order.hidden else ("scipy",):
        digest.update(f"{package} {version(package)}".encode())
    for path in [order.file] if order.public is None else [order.file, order.public]:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
