"""Training from a file: what is not public is surveyed, the columns are encoded, and a model is trained.

Everything happens in one run of one ledger, with one generator, whose state a checkpoint keeps: a killed run is resumed by doing
the same again, which repeats the answers that were paid for and then goes on.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from privopt import datasets
from privopt.checkpoint import Checkpoint
from privopt.datasets import Columns, Encoding, Ignored, Kind, Known, Schema, Table
from privopt.datasets.schema import UnknownCategorical
from privopt.datasets.table import suggest_names
from privopt.datasets.unknown_columns import count_features, feature_kinds, find_encoding, length_bound
from privopt.errors import Diverged, InputError, LedgerError, PrivoptError, RankFailed
from privopt.measure.units import Unit, each_person, each_row
from privopt.methods import find_method, own_files
from privopt.methods.problem import LossFacts
from privopt.methods.rules import network_pays
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial
from privopt.perexample.persons import Persons
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.ledger import Ledger
from privopt.runs.evaluation import check_held_out, read_table, set_aside, take_rows
from privopt.runs.folder import RunFolder
from privopt.runs.model import SavedModel, Task
from privopt.runs.request import AUTO, FederationRequest, Request
from privopt.training.linear import check_linear, check_public, describe_classes, loss_facts, too_noisy, train_linear
from privopt.training.scaling import PublicTable, TrainingRows, draw_rows_of_persons
from privopt.training.search import Search, check_search, search_linear
from privopt.training.session import Observer, Session, single_release
from privopt.training.settings import check_settings

MOST_CLASSES = 100
NETWORK = "mlp:64"  # where a network is expected to be better than a linear model


def start(
    request: Request, path: Path, observer: Observer | None = None, announce: Callable[[str], None] | None = None
) -> RunFolder:
    """A new run. Whatever is wrong with the request or the file is found before anything is written.

    `announce` is told what a search costs, before it begins.
    """
    prepared = _prepare(request)
    if request.search is not None and announce is not None:
        announce(request.search.describe_price(prepared.budget))
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
    model_reason: str  # which model was chosen, and why; empty if the request says which

    @property
    def size(self) -> int:
        """The number of rows, or of persons."""
        return len(self.table) if self.persons is None else self.persons.size


def _prepare(request: Request) -> _Prepared:
    _check_person(request)
    table, ids = read_table(request)
    persons = None if ids is None else Persons.of(ids, len(table))
    if table.frame is None and request.schema is not None and request.schema.columns:
        raise InputError(f"{request.file} has no named columns, so the schema can say nothing about them. Leave 'columns' out.")
    if table.frame is None and request.drop:
        raise InputError(f"{request.file} has no named columns, so --drop has none to leave out.")
    if table.frame is not None and request.settings.bounds is not None:
        raise InputError("--row-norm is for LIBSVM and npz files. For named columns, declare ranges in a --schema.")
    if request.schema is not None and request.target in request.schema.columns:
        raise InputError(f"the schema describes the target {request.target!r} under 'columns'. Describe it under 'target'.")
    if table.target is None:
        raise InputError(f"{request.file} has no target to learn. Name its column with --target.")
    held_out, held_out_size = None, 0
    if request.holdout is not None:
        trained, rows = set_aside(len(table), request.holdout, persons)
        table, held_out, held_out_size = take_rows(table, trained), take_rows(table, rows), len(rows)
        if ids is not None and persons is not None:
            everybody, persons = persons.size, Persons.of(ids[trained], len(trained))
            held_out_size = everybody - persons.size
    assert table.target is not None
    size, unit = (len(table), each_row()) if persons is None else (persons.size, each_person())
    budget = request.budget(size)
    task = request.task or find_task(table.target, request.schema)
    classes, targets = (
        find_classes(table.target, request.schema) if task == "classify" else ((), datasets.target_numbers(table.target))
    )
    kinds = {} if table.frame is None else _kinds(request, table.frame)
    columns, public = len(table.names), request.public is not None
    features = count_features(kinds) if kinds else columns
    unlisted = any(isinstance(kind, UnknownCategorical) for kind in kinds.values())
    request, reason = _choose_model(request, size, features, budget, unlisted=unlisted)
    facts = loss_facts(loss_of_task(task, len(classes))(1.0))
    if request.hidden:
        _check_network(request, facts, budget.delta, public=public)
    else:
        check_linear(request.settings, facts, size=size, columns=columns, budget=budget, public=public, unit=unit)
        if request.search is not None:
            _check_search(request, request.search, task, facts, size=size, columns=columns, budget=budget, unit=unit)
    if table.frame is not None:
        datasets.check_columns(table.frame, kinds)  # an error, if there is one, comes before anything is written
    if held_out is not None:
        check_held_out(request, held_out, held_out_size, task, len(classes), kinds)
    if budget.delta == 0:
        _check_declared(request, table, task, kinds)
    widths = (features, *request.hidden, len(classes) if len(classes) > 2 else 1)
    coefficients = sum((width + 1) * after for width, after in pairwise(widths))
    if noisy := too_noisy(size, coefficients, budget):
        raise InputError(f"{noisy} So would narrower layers, or --model linear." if request.hidden else noisy)
    known = _public(request, table, task, classes, kinds)
    return _Prepared(request, table, budget, task, classes, targets, kinds, known, persons, reason)


def _choose_model(request: Request, size: int, columns: int, budget: Budget, *, unlisted: bool) -> tuple[Request, str]:
    """The request with a model, and why it is that one if the request left it open; only public numbers count.

    If some column's categories are `unlisted`, they may be many, and a network would learn all their interactions.
    """
    if request.model != AUTO:
        return request, ""
    model, why = "linear", f"{size} {'rows' if request.person is None else 'persons'} and {columns} column{'s' * (columns != 1)}"
    plain = find_method(request.settings.method).tables and request.public is None and request.search is None and budget.delta > 0
    if unlisted:
        why += ", some with any number of categories"
    elif plain and network_pays(size, columns, calibrate(single_release(budget), budget)):
        if _network_installed():
            model = NETWORK
        else:
            why += (
                f", for which {NETWORK} would be expected to be better, but torch is not installed: pip install 'privopt[torch]'"
            )
    return replace(request, model=model), f"the choice of the model: {model}, by a public rule, for {why}"


def _network_installed() -> bool:
    return all(find_spec(name) is not None for name in ("torch", "numba"))


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
    if request.schema is not None and not isinstance(request.schema.columns.get(request.person, Ignored()), Ignored):
        raise InputError(f"the schema describes {request.person!r}, which is no feature: it says whose row it is. Leave it out.")


def _kinds(request: Request, frame: Any) -> dict[str, Kind]:
    """The kinds of the columns; what --drop names, and what is named like an identifier, is ignored."""
    columns = Columns.of(frame)
    for name in request.drop:
        if name in (request.target, request.person):
            role = "--target" if name == request.target else "--person"
            raise InputError(f"--drop names {name!r}, which {role} names too: it is never a feature. Leave that --drop out.")
        if name not in columns:
            raise InputError(f"--drop names {name!r}, which {request.file} does not have. {suggest_names(name, columns.names)}")
    dropped = {name: Ignored() for name in request.drop}
    declared = {name: kind for name, kind in (request.schema or Schema()).columns.items() if name != request.person}
    schema = replace(request.schema or Schema(), columns={**declared, **dropped})
    protect = "" if request.person is not None else "--person {}"
    return feature_kinds(columns, schema, protect=protect)


def _public(
    request: Request, table: Table, task: Task, classes: tuple[str, ...], kinds: dict[str, Kind]
) -> tuple[Table, Vector] | None:
    """The public rows, if they are like the private ones: the same columns and classes."""
    if request.public is None:
        return None
    text = datasets.text_columns(request.schema, request.target)
    public = datasets.read(request.public, request.target, names=None if table.matrix is None else table.names, text=text)
    if (public.frame is None) != (table.frame is None):
        raise InputError(f"{request.public} is not like {request.file}: one names its columns, the other does not.")
    if public.target is None:
        raise InputError(f"{request.public} has no target: public rows need one, as private ones do.")
    if public.frame is not None:
        if missing := [name for name, kind in kinds.items() if name not in public.names and not isinstance(kind, Ignored)]:
            raise InputError(f"{request.public} lacks columns of {request.file}: {', '.join(map(repr, missing))}.")
        datasets.check_columns(public.frame, {name: kind for name, kind in kinds.items() if not isinstance(kind, Ignored)})
    if task == "regress":
        return public, datasets.target_numbers(public.target)
    places = datasets.codes(public.target, classes)
    if (places < 0).any():
        raise InputError(f"{request.public} has classes that {request.file} does not have; it has {', '.join(classes)}.")
    return public, places.astype(float)


def _check_search(
    request: Request, search: Search, task: Task, facts: LossFacts, *, size: int, columns: int, budget: Budget, unit: Unit
) -> None:
    public = request.public is not None
    check_search(search, request.settings, facts, size=size, columns=columns, budget=budget, public=public, unit=unit)
    if task == "regress" and (request.schema is None or request.schema.target is None):
        raise InputError("a search scores errors in units of the target's range: declare the target's range in a --schema.")


def _check_network(request: Request, facts: LossFacts, delta: float, *, public: bool) -> None:
    if not _network_installed():
        raise InputError(f"--model {request.model} is a network, which needs torch: pip install 'privopt[torch]'")
    method = check_settings(request.settings, facts, "network", delta=delta, public=public)
    if method.uses_public or not method.private:
        raise InputError(f"--method {method.name} is not for --model {request.model}: it is offered for linear models only.")
    check_public(method, request.settings.options, public=public)


def _check_declared(request: Request, table: Table, task: Task, kinds: dict[str, Kind]) -> None:
    """Surveys add Gaussian noise, so without δ everything has to be known."""
    unknown = [repr(name) for name, kind in kinds.items() if datasets.is_unknown(kind)]
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
            train = train_linear if request.search is None else partial(search_linear, search=request.search)
            trained = train(rows, loss_of_task(prepared.task, len(prepared.classes)), settings, session)
    columns = trained.columns
    if encoding is not None:
        names = encoding.features(columns)
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
        columns = Columns.of(table.frame)
        encoding, paid = find_encoding(columns, prepared.kinds, session, persons)
        matrix = datasets.encode_quietly(encoding, columns)
        bounds = length_bound(encoding, prepared.kinds, session)
    public = None
    if prepared.public is not None and prepared.request.public is not None:
        known, targets = prepared.public
        rows = known.matrix if encoding is None or known.frame is None else datasets.encode_quietly(encoding, known.frame)
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


def _taken_as_public(prepared: _Prepared) -> list[str]:
    """What a statement says of the schema, the classes and the task."""
    request, schema, found = prepared.request, prepared.request.schema, [prepared.model_reason] if prepared.model_reason else []
    if declared := sum(isinstance(kind, Known) for kind in prepared.kinds.values()):
        found.append(f"the ranges or categories that the schema declares, of {declared} of the columns")
    if request.holdout is not None:
        unit = "row" if request.person is None else "person"
        found.append(
            f"which {unit}s these are: {request.holdout.share:.3g} of the file's {unit}s were set aside at random, unseen, for "
            f"an evaluation at ε = {request.holdout.epsilon:g}; a {unit} has spent either this budget or that one"
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
        return lambda unit: Huber(1.0)  # squared loss but for what lies beyond the range of almost all targets
    return lambda unit: Logistic() if classes == 2 else Multinomial(classes)


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
