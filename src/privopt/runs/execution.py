"""Training from a file: what is not public is surveyed, the columns are encoded, and a model is trained.

Everything happens in one run of one ledger, with one generator, whose state a checkpoint keeps: a killed run is resumed by doing
the same again, which repeats the answers that were paid for and then goes on.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable
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
from privopt.errors import Diverged, InputError, LedgerError, PrivoptError, PrivoptWarning, RankFailed, warn
from privopt.measure import surveys
from privopt.measure.units import each_person, each_row
from privopt.methods import find_method, own_files
from privopt.methods.problem import LossFacts
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial
from privopt.perexample.persons import Persons
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent
from privopt.privacy.ledger import Ledger
from privopt.runs.evaluation import check_held_out, set_aside
from privopt.runs.folder import RunFolder
from privopt.runs.model import SavedModel, Task, feature_names
from privopt.runs.request import FederationRequest, Request
from privopt.runs.table_users import take_ids
from privopt.training.linear import check_linear, check_public, describe_classes, loss_facts, too_noisy, train_linear
from privopt.training.scaling import (
    RANGES_SHARE,
    PublicTable,
    TrainingRows,
    draw_rows_of_persons,
    share_of,
    survey_ranges,
)
from privopt.training.session import Observer, Session
from privopt.training.settings import check_settings

MOST_CLASSES = 100
MOST_NAMED = 10  # columns in a message
NOTHING_LEARNT = (
    "too few rows to learn privately, at this budget, what any of the columns hold: declare their ranges and categories in a "
    "--schema if they are publicly known."
)
NO_RANGE = "in which ranges {} lie: left out of the model. Declare them in a --schema if they are publicly known."
NO_CATEGORY = (
    "which values {} hold, which are read as text: left out of the model. If they are numbers, clean them (a decimal point, no "
    "other signs); if their categories are publicly known, list them in a --schema."
)
INSIST = "Declare what it holds in a --schema to train on it."
FAILURE_SHARE = 0.05  # of δ pays for naming categories


def start(request: Request, path: Path, observer: Observer | None = None) -> RunFolder:
    """A new run. Whatever is wrong with the request or the file is found before anything is written."""
    prepared = _prepare(request)
    folder = RunFolder.create(path, request.to_json())
    try:
        return _train(prepared, folder, observer)
    except (LedgerError, RankFailed):  # after which the run can go on
        raise
    except PrivoptError as error:  # it would end like this again
        if folder.ledger().entries:
            folder.fail(error)
        else:
            folder.discard()  # nothing was released: leave nothing half done
        raise


def open_unfinished(path: Path, command: str) -> RunFolder:
    """The folder of a run that this command goes on with; one that ended without a model is refused."""
    folder = RunFolder.open(path)
    if folder.command != command:
        raise InputError(f"{path} was begun by another command. Go on with it: privopt {folder.command} --resume {path}")
    if not folder.finished and (failure := folder.failure) is not None:
        raise InputError(f"{path} cannot go on: {failure}")
    return folder


def resume(path: Path, observer: Observer | None = None) -> RunFolder:
    """Go on with a run that was killed; a finished one is left as it is, and one that ended without a model is refused."""
    folder = open_unfinished(path, "train")
    if folder.finished:
        return folder
    try:
        return _train(_prepare(Request.from_json(folder.asked)), folder, observer)
    except Diverged as error:
        folder.fail(error)
        raise


@dataclass(frozen=True)
class _Prepared:
    """A request, and the table and target that it is about."""

    request: Request
    table: Table
    budget: Budget
    task: Task
    classes: tuple[str, ...]
    targets: Vector
    kinds: dict[str, Kind]
    public: tuple[Table, Vector] | None  # a table like the private one, and its targets
    persons: Persons | None  # whose rows they are, if persons are protected

    @property
    def size(self) -> int:
        """The number of rows, or of persons."""
        return len(self.table) if self.persons is None else self.persons.size


def _prepare(request: Request) -> _Prepared:
    text = datasets.as_written(datasets.listed_values(request.schema, request.target))
    _check_person(request)
    table = datasets.read(request.file, request.target, text=[*text, *filter(None, [request.person])])
    persons = None
    if request.person is not None:
        table, ids = take_ids(table, request.file, request.person, "person")
        persons = Persons.of(ids, len(table))
    if table.frame is None and request.schema is not None and request.schema.columns:
        raise InputError(f"{request.file} has no named columns, so the schema can say nothing about them. Leave 'columns' out.")
    if table.frame is not None and request.settings.bounds is not None:
        raise InputError("--row-norm is for LIBSVM and npz files. For named columns, declare ranges in a --schema.")
    if request.schema is not None and request.target in request.schema.columns:
        raise InputError(f"the schema describes the target {request.target!r} under 'columns'. Describe it under 'target'.")
    if table.target is None:
        raise InputError(f"{request.file} has no target to learn. Name its column with --target.")
    held_out = None
    if request.holdout is not None:
        table, held_out = set_aside(table, request.holdout)
    assert table.target is not None
    size, unit = (len(table), each_row()) if persons is None else (persons.size, each_person())
    budget = request.budget(size)
    task = request.task or find_task(table.target, request.schema)
    classes, targets = (
        find_classes(table.target, request.schema) if task == "classify" else ((), datasets.target_numbers(table.target))
    )
    columns, public = len(table.names), request.public is not None
    facts = loss_facts(loss_of_task(task, len(classes))(1.0))
    if request.hidden:
        _check_network(request, facts, budget.delta, public=public)
    else:
        check_linear(request.settings, facts, size=size, columns=columns, budget=budget, public=public, unit=unit)
    kinds = {} if table.frame is None else _kinds(request, table.frame)
    for name, kind in kinds.items():
        if table.frame is not None and isinstance(kind, Numeric | UnknownNumeric):
            datasets.numbers(table.frame[name])  # an error, if there is one, comes before anything is written
    if held_out is not None:
        check_held_out(request, held_out, task, len(classes), kinds)
    if budget.delta == 0:
        _check_declared(request, table, task, kinds)
    features = sum(len(kind.values) if isinstance(kind, Categorical) else 1 for kind in kinds.values()) if kinds else columns
    widths = (features, *request.hidden, len(classes) if len(classes) > 2 else 1)
    coefficients = sum((width + 1) * after for width, after in pairwise(widths))
    if reason := too_noisy(size, coefficients, budget):
        raise InputError(f"{reason} So would narrower layers, or --model linear." if request.hidden else reason)
    known = _public(request, table, task, classes, kinds)
    return _Prepared(request, table, budget, task, classes, targets, kinds, known, persons)


def _check_person(request: Request) -> None:
    """Refuse a column of persons that cannot be one; the file has not been read."""
    if request.person is None:
        if request.rows_per_person is not None:
            raise InputError("--rows-per-person is for persons. Say which column names them, with --person.")
        return
    if request.person == request.target:
        raise InputError(
            f"--person and --target are the same column, {request.person!r}: one says whose row it is, the other what to learn."
        )
    if request.holdout is not None:
        raise InputError(
            "--holdout sets rows aside, not persons. Leave it out, and use privopt evaluate on rows of other persons."
        )
    if request.hidden:
        raise InputError(f"--person is for linear models so far. Leave --model {request.model} out.")
    if request.schema is not None and request.person in request.schema.columns:
        raise InputError(f"the schema describes {request.person!r}, which is no feature: it says whose row it is. Leave it out.")


def _kinds(request: Request, frame: Any) -> dict[str, Kind]:
    """The kinds of the columns; one that is named like an identifier is ignored, unless the schema declares it."""
    declared = {} if request.schema is None else request.schema.columns
    named = [str(name) for name in frame.columns if str(name) not in declared and datasets.looks_like_identifier(str(name))]
    kinds = datasets.kinds(frame.drop(columns=named), request.schema)
    if not named:
        return kinds
    if not kinds:
        raise InputError(f"{request.file} has no columns to learn from: their names say that they are identifiers. {INSIST}")
    few = ", ".join(map(repr, named[:MOST_NAMED])) + (f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else "")
    hint = "" if request.person is not None else f" If people have several rows, protect people: --person {named[0]}."
    warn(f"left out of the model: {few}, by the name an identifier. {INSIST}{hint}")
    return {str(name): kinds.get(str(name)) or Ignored() for name in frame.columns}


def _public(
    request: Request, table: Table, task: Task, classes: tuple[str, ...], kinds: dict[str, Kind]
) -> tuple[Table, Vector] | None:
    """The public rows, if they are like the private ones: the same columns and classes."""
    if request.public is None:
        return None
    text = datasets.as_written(datasets.listed_values(request.schema, request.target))
    public = datasets.read(request.public, request.target, names=None if table.matrix is None else table.names, text=text)
    if (public.frame is None) != (table.frame is None):
        raise InputError(f"{request.public} is not like {request.file}: one names its columns, the other does not.")
    if public.target is None:
        raise InputError(f"{request.public} has no target: public rows need one, as private ones do.")
    if public.frame is not None:
        if missing := [name for name, kind in kinds.items() if name not in public.names and not isinstance(kind, Ignored)]:
            raise InputError(f"{request.public} lacks columns of {request.file}: {', '.join(map(repr, missing))}.")
        for name, kind in kinds.items():
            if isinstance(kind, Numeric | UnknownNumeric):
                datasets.numbers(public.frame[name])
    if task == "regress":
        return public, datasets.target_numbers(public.target)
    places = datasets.codes(public.target, classes)
    if (places < 0).any():
        raise InputError(f"{request.public} has classes that {request.file} does not have; it has {', '.join(classes)}.")
    return public, places.astype(float)


def _check_network(request: Request, facts: LossFacts, delta: float, *, public: bool) -> None:
    if any(find_spec(name) is None for name in ("torch", "numba")):
        raise InputError(f"--model {request.model} is a network, which needs torch: pip install 'privopt[torch]'")
    method = check_settings(request.settings, facts, "network", delta=delta, public=public)
    if method.uses_public or not method.private:
        raise InputError(f"--method {method.name} is not for --model {request.model}: it is offered for linear models only.")
    check_public(method, request.settings.options, public=public)


def _check_declared(request: Request, table: Table, task: Task, kinds: dict[str, Kind]) -> None:
    """Surveys add Gaussian noise, so without δ everything has to be known."""
    unknown = [repr(name) for name, kind in kinds.items() if isinstance(kind, UnknownNumeric | UnknownCategorical)]
    if task == "regress" and (request.schema is None or request.schema.target is None):
        unknown.append("the range of the target")
    if unknown:
        raise InputError(
            f"--delta is 0, so nothing can be estimated: declare {', '.join(unknown)} in a --schema, or leave it out."
        )
    if table.frame is None and request.settings.bounds is None:
        raise InputError("--delta is 0, so nothing can be estimated: declare how long a row may be, with --row-norm.")


def find_task(target: Vector, schema: Schema | None) -> Task:
    """As the schema says; else by the target's type, and for numbers by whether there are two of them."""
    if schema is not None and (schema.classes or schema.target):
        return "classify" if schema.classes else "regress"
    if target.dtype.kind not in "iuf" or len(np.unique(target)) <= 2:
        return "classify"
    if target.dtype.kind == "f" and (target != np.round(target)).any():
        return "regress"
    raise InputError("the target holds whole numbers, which may be classes or amounts. Say --task classify or --task regress.")


def find_classes(target: Vector, schema: Schema | None) -> tuple[tuple[str, ...], Vector]:
    known = schema.classes if schema is not None and schema.classes else tuple(sorted(set(datasets.texts(target))))
    if len(known) < 2:
        raise InputError("the target has one class only; a classifier needs at least two.")
    if len(known) > MOST_CLASSES:
        raise InputError(f"the target has more than {MOST_CLASSES} classes. If it is a number to predict, say --task regress.")
    places = datasets.codes(target, known)
    return known, np.where(places < 0, np.nan, places)  # an error would tell that a row has a class that is not listed


# ---------------------------------------------------------------- with the data, inside the budget


def _train(prepared: _Prepared, folder: RunFolder, observer: Observer | None) -> RunFolder:
    request, budget, settings = prepared.request, prepared.budget, prepared.request.settings
    checkpoint = Checkpoint(folder.checkpoint, fingerprint(request))
    cap = budget if find_method(settings.method).private else None  # no budget holds a release without privacy
    with Ledger(cap, folder.ledger_path) as ledger:
        session = Session(
            budget,
            prepared.size,
            ledger=ledger,
            seed=request.seed,
            accountant=settings.accountant,
            checkpoint=checkpoint,
            observer=observer,
            surveys=True,
        )
        rows, encoding = _rows(prepared, session)
        hidden: list[Any] = []
        if request.hidden:
            from privopt.nets.table_network import train_table_network

            hidden, trained = train_table_network(rows, request.hidden, len(prepared.classes), settings, session)
        else:
            trained = train_linear(rows, loss_of_task(prepared.task, len(prepared.classes)), settings, session)
    columns = trained.columns
    if encoding is not None:
        names = feature_names(encoding, columns)
    else:
        names = tuple(prepared.table.names if columns is None else columns.names(prepared.table.names))
    model = SavedModel(
        prepared.task, trained.slopes, trained.intercepts, names, prepared.classes, encoding, columns, tuple(hidden)
    )
    folder.finish(model, trained.statement)
    checkpoint.remove()
    return folder


def _rows(prepared: _Prepared, session: Session) -> tuple[TrainingRows, Encoding | None]:
    """The table as rows of numbers: what the schema leaves out is surveyed, then columns are encoded."""
    table, paid, encoding = prepared.table, list[str](), None
    matrix: Any = table.matrix
    bounds = prepared.request.settings.bounds
    persons = None
    if prepared.persons is not None:
        persons = draw_rows_of_persons(prepared.persons, prepared.request.rows_per_person, session)
    if table.frame is not None:
        surveyed = table if persons is None else replace(table, frame=table.frame.iloc[persons.surveyed])
        kinds, paid = survey_columns(surveyed, prepared.kinds, session, inside_declared=True)
        encoding = Encoding.of(kinds)
        matrix = _encode(encoding, table)
        numeric = any(isinstance(kind, Numeric | UnknownNumeric) for kind in prepared.kinds.values())  # as planned
        bounds = None if numeric and session.budget.delta else encoding.row_bound  # None: the length of a row is surveyed
    public = None
    if prepared.public is not None and prepared.request.public is not None:
        known, targets = prepared.public
        rows = known.matrix if encoding is None or known.frame is None else _encode(encoding, known)
        assert rows is not None
        public = PublicTable(prepared.request.public.name, rows, targets)
    schema = prepared.request.schema
    found = TrainingRows(
        matrix,
        prepared.targets,
        prepared.task == "regress",
        bounds=bounds,
        target_bounds=None if schema is None or schema.target is None else (schema.target.low, schema.target.high),
        encoded=encoding is not None,
        public=public,
        persons=persons,
        assumed_public=_taken_as_public(prepared),
        paid_for=paid,
        numeric=() if encoding is None else encoding.numeric,
    )
    return found, encoding


def _encode(encoding: Encoding, table: Table) -> Any:
    assert table.frame is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)  # how many values were not listed is private here
        return encoding.matrix(table.frame)


def _taken_as_public(prepared: _Prepared) -> list[str]:
    """What a statement says of the schema, the classes and the task."""
    request, schema, found = prepared.request, prepared.request.schema, list[str]()
    if declared := sum(isinstance(kind, Numeric | Categorical) for kind in prepared.kinds.values()):
        found.append(f"the ranges or categories that the schema declares, of {declared} of the columns")
    if request.holdout is not None:
        found.append(
            f"which rows these are: {request.holdout.share:.3g} of the file's rows were set aside at random, unseen, for an "
            f"evaluation at ε = {request.holdout.epsilon:g}; a row has spent either this budget or that one"
        )
    if prepared.task == "classify":
        found.append(describe_classes(prepared.classes, declared=schema is not None and bool(schema.classes)))
    if request.task is None and (schema is None or not (schema.classes or schema.target)):
        found.append(f"the task ({prepared.task}), read off the data")
    if schema is not None and schema.target is not None:
        found.append("the range of the target that the schema declares")
    return found


def loss_of_task(task: Task, classes: int) -> Callable[[float], Loss]:
    if task == "regress":
        return lambda unit: Huber(0.2)
    return lambda unit: Logistic() if classes == 2 else Multinomial(classes)


def survey_columns(
    table: Table, kinds: dict[str, Kind], session: Session, *, inside_declared: bool = False
) -> tuple[dict[str, Kind], list[str]]:
    """Resolve unknown columns by private surveys. The kinds of all columns, and what was paid for.

    With `inside_declared`, where almost all values of a column lie is surveyed within a declared range too, if there is δ for it.
    """
    frame = table.frame
    assert frame is not None
    declared = [name for name, kind in kinds.items() if isinstance(kind, Numeric)]
    numeric = [name for name, kind in kinds.items() if isinstance(kind, UnknownNumeric)]
    unknown = len(numeric)
    numeric += declared if inside_declared and session.budget.delta else []
    categorical = [name for name, kind in kinds.items() if isinstance(kind, UnknownCategorical)]
    questions = 2 * bool(numeric) + bool(categorical)
    if not questions:
        return kinds, []
    noise = share_of(session.noise_for(GaussianDpEvent), RANGES_SHARE, questions)
    failure = FAILURE_SHARE * session.budget.delta / (2 if session.budget.neighbours == "replace-one" else 1)
    found, paid = dict(kinds), []
    if unknown + len(categorical) == len(kinds):
        needed = [surveys.rows_for_a_range(len(numeric), noise)] if numeric else []
        needed += [surveys.rows_for_a_category(len(categorical), noise, failure)] if categorical else []
        if len(frame) < min(needed):
            raise InputError(
                f"{NOTHING_LEARNT} About {math.ceil(min(needed))} rows that are alike would be enough. Nothing was spent."
            )
    if numeric:
        found |= _survey_numeric(frame, {name: kinds[name] for name in numeric}, noise, session)
        paid.append(f"the ranges of {', '.join(numeric)}")
    if categorical:
        named = surveys.categories(
            [datasets.texts(frame[name]) for name in categorical],
            noise_multiplier=noise,
            failure=failure,
            spending=session.spending,
            rng=session.rng,
        )
        for name, frequent in zip(categorical, named, strict=True):
            found[name] = Categorical(tuple(frequent)) if frequent else Ignored()
        paid.append(f"the frequent categories of {', '.join(categorical)}")
    for names, hold in ((numeric, NO_RANGE), (categorical, NO_CATEGORY)):
        if lost := [repr(name) for name in names if found[name] == Ignored()]:
            few = ", ".join(lost[:MOST_NAMED]) + (f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else "")
            warn(f"too few rows to learn privately, at this budget, {hold.format(few)}")
    if all(kind == Ignored() for kind in found.values()):
        raise InputError(NOTHING_LEARNT)
    return found, paid


def _survey_numeric(frame: Any, kinds: dict[str, Kind], noise: float, session: Session) -> dict[str, Kind]:
    """Ranges of almost all values, within the declared ones; a column that has too few rows to tell keeps what is declared."""
    ends = [(kind.low, kind.high) if isinstance(kind, Numeric) else (-math.inf, math.inf) for kind in kinds.values()]
    low, high = np.array(ends, dtype=float).T
    ranges = survey_ranges([datasets.numbers(frame[name])[:, None] for name in kinds], noise, session, (low, high))
    found: dict[str, Kind] = {}
    for (name, kind), *ends_found, known in zip(kinds.items(), ranges.low, ranges.high, ranges.known, strict=True):
        found[name] = Numeric(*map(float, ends_found)) if known or isinstance(kind, Numeric) else Ignored()
    return found


def _arithmetic_of_ranks() -> str:
    """What decides how the sums of a torchrun job are rounded."""
    from privopt.nets.ranks import arithmetic, join

    if join() is None:
        raise InputError("this run is one of several processes: privopt train --resume starts them.")
    return arithmetic()


def fingerprint(request: Request | FederationRequest) -> str:
    """Of the file, of all that was asked and of what computes it: a replay is free only if it repeats the same answers.

    A method of the user's own counts with the files of all modules of the user's that it reaches.

    Of the processes it does not count how many there are: the sums of a torchrun job do not depend on that.

    The checkpoint itself compares the versions of privopt, numpy and Python.
    """
    ranked = isinstance(request, Request) and request.processes is not None
    asked = request.to_json() | {"processes": _arithmetic_of_ranks() if ranked else None}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for source in own_files(find_method(request.settings.method)):
        digest.update(source.read_bytes())
    for package in ("scipy", "torch") if request.hidden else ("scipy",):
        digest.update(f"{package} {version(package)}".encode())
    for path in filter(None, (request.file, request.public)):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
