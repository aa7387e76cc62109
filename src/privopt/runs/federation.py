"""Federations of a table: users on nodes train one model of their rows.

The server surveys what the schema leaves out, on one row of each user, so that a user counts once there, too. Everything else it
asks of nodes, which read the rows of their own users. With a schema that leaves nothing out it needs no rows at all.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from privopt import datasets
from privopt.checkpoint import Checkpoint
from privopt.datasets import Categorical, Columns, Date, Encoding, Ignored, Kind, Numeric, Table, UnknownNumeric
from privopt.datasets.unknown_columns import survey_columns
from privopt.durable import write_atomically
from privopt.errors import Diverged, InputError, LedgerError, NodesMissing, PrivoptError
from privopt.federated.nodes import Nodes, NodesInProcess, Reply, Request
from privopt.federated.training import ModelFacts, check_federation, train_federation
from privopt.loop import check_finite
from privopt.methods import Method
from privopt.methods.problem import Problem, SideFacts
from privopt.perexample.design import Frame
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Logistic, Loss, Multinomial, Squared
from privopt.perexample.user_vectors import group_rows
from privopt.privacy.ledger import Ledger
from privopt.runs.execution import find_classes, find_task, fingerprint
from privopt.runs.folder import RunFolder
from privopt.runs.model import SavedModel, Task
from privopt.runs.request import FederationRequest
from privopt.runs.table_users import find_users, read_users
from privopt.training.linear import HOPELESS, describe_classes, loss_facts, too_noisy
from privopt.training.scaling import INTERCEPT, Scales, TrainingRows, find_scales
from privopt.training.session import Observer, Session

Plan = dict[str, Any]  # the public facts that nodes are sent, as JSON
PROGRESS, STOPPED = "progress.json", "stopped.json"  # in a run folder, for the process that waits for the run


class Prepared(NamedTuple):
    """A request, and what is known of its columns before anything is measured."""

    request: FederationRequest
    task: Task
    classes: tuple[str, ...]
    kinds: dict[str, Kind]
    table: Table | None = None  # without the column of users
    groups: Sequence[Vector] = ()  # the rows of each user

    @property
    def plan(self) -> Plan:
        """The plan that nodes are sent first: where their users' rows are."""
        request = self.request
        return {
            "file": None if request.file is None else str(request.file),
            "users": request.users,
            "target": request.target,
            "schema": None if request.schema is None else request.schema.to_json(),
            "parts": request.nodes,
        }


def prepare(request: FederationRequest) -> Prepared:
    """Read the file, if there is one, and refuse what cannot be trained; nothing is paid."""
    _check_kinds(request)
    if request.file is None:
        return _prepare_declared(request)
    table, ids = read_users(request.file, request.users, request.target, request.schema)
    named: dict[str | None, Task] = {"logistic": "classify", "ridge": "regress"}
    task = request.task or named.get(request.model) or find_task(table.target, request.schema)
    classes = find_classes(table.target, request.schema)[0] if task == "classify" else ()
    if task == "regress":
        datasets.target_numbers(table.target)
    kinds = datasets.kinds(table.frame, request.schema)
    for name, kind in kinds.items():
        if isinstance(kind, Numeric | UnknownNumeric):
            datasets.numbers(table.frame[name])  # an error, if there is one, comes before anything is written
    prepared = Prepared(request, task, classes, kinds, table, group_rows(ids))
    check_size(prepared, len(prepared.groups))
    if request.nodes > len(prepared.groups):
        raise InputError(f"--nodes is {request.nodes}, but there are {len(prepared.groups)} users. Say fewer nodes.")
    return prepared


def _check_kinds(request: FederationRequest) -> None:
    """Refuse a schema that federations do not support: dates, missing numbers, and unknown columns where there is no file."""
    for name, kind in ({} if request.schema is None else request.schema.columns).items():
        if isinstance(kind, Date) or getattr(kind, "missing", None) is not None:
            raise InputError(
                f"the schema declares dates or missing numbers in column {name!r}, which federations do not know: a row without "
                'a number is left out there. Leave "missing" out; convert dates, or ignore them.'
            )
        if request.file is None and datasets.is_unknown(kind):
            raise InputError(f"without a file, a --schema says all, but nothing is known about column {name!r}.")


def _prepare_declared(request: FederationRequest) -> Prepared:
    schema = request.schema
    if schema is None or not (schema.classes or schema.target) or not schema.columns:
        raise InputError("without a file, a --schema says all: the columns, and the classes or the range of the target.")
    task: Task = "classify" if schema.classes else "regress"
    if request.task not in (None, task) or request.model == ("ridge" if schema.classes else "logistic"):
        kind = "classes" if schema.classes else "the range of a number"
        raise InputError(f"the schema declares {kind} for the target, which does not fit --task or --model. Leave them out.")
    return Prepared(request, task, tuple(schema.classes or ()), dict(schema.columns))


def check_size(prepared: Prepared, users: int) -> None:
    """Refuse a model that so many users cannot train within the budget, and settings that do not fit."""
    request, features = prepared.request, 0
    for kind in prepared.kinds.values():
        features += len(kind.values) if isinstance(kind, Categorical) else 0 if isinstance(kind, Ignored) else 1
    budget = request.budget(users)
    dimension = _count_parameters(prepared, features)
    if reason := too_noisy(users, dimension, budget):
        raise InputError(reason)
    side, settings = None, request.settings
    if request.public is not None:
        _read_public(prepared, request.public)
        side = SideFacts(None, np.ones(dimension), 1.0, 0.0)
        settings = replace(settings, options={**settings.options, "scale": "of the public rows"})
    facts = ModelFacts(loss_facts(_loss(prepared)), features + 1, dimension, 1.0, side)
    session = Session(budget, users)
    method, problem = check_federation(settings, facts, session, users)
    if settings.cohort is not None and settings.cohort < users:
        _check_cohort(method, problem, session, settings.cohort)


def _check_cohort(method: Method, problem: Problem, session: Session, cohort: int) -> None:
    """Refuse a cohort so small that the noise on the mean of all rounds would drown the model; name one that is large enough."""

    def is_drowned(cohort: int) -> bool:
        asked = replace(problem, chosen=replace(problem.chosen, batch_size=cohort))
        noise = session.noise_for(lambda z: method.build(asked, z).planned_event())
        rounds = method.build(asked, noise).rounds
        return noise * math.sqrt(problem.dimension / rounds) / cohort > HOPELESS

    if not is_drowned(cohort):
        return
    larger = cohort
    while larger < problem.size and is_drowned(larger):
        larger = min(2 * larger, problem.size)
    enough = f"Say --cohort {larger}" if not is_drowned(larger) else "Have more users, a larger epsilon or more rounds"
    raise InputError(
        f"a cohort of {cohort} users is too small for {problem.dimension} coefficients at epsilon = "
        f"{session.budget.epsilon:.3g}: the noise would drown the model. {enough}, or leave --cohort to the default."
    )


def _count_parameters(prepared: Prepared, features: int) -> int:
    widths = (features, *prepared.request.hidden, _loss(prepared).outputs)
    return sum((width + 1) * after for width, after in pairwise(widths))


def _loss(prepared: Prepared) -> Loss:
    if prepared.task == "regress":
        return Squared()
    return Logistic() if len(prepared.classes) == 2 else Multinomial(len(prepared.classes))


# ---------------------------------------------------------------- on the server, inside the budget


def serve(folder: RunFolder, prepared: Prepared, nodes: Nodes, observer: Observer | None = None) -> RunFolder:
    """Train with the users of these nodes, and leave model and statement in the folder.

    **Guarantee** That of a session whose unit is one user. Surveys see one row of each user, drawn at random; training, sums of
    users' clipped changes. All of it is paid from one budget, and recorded before it is used.
    """
    request, users = prepared.request, sum(nodes.sizes)
    if prepared.table is not None and users != len(prepared.groups):
        raise InputError(f"the nodes have {users} users, but {request.file} has {len(prepared.groups)}: start a new run.")
    check_size(prepared, users)
    budget = request.budget(users)
    checkpoint = Checkpoint(folder.checkpoint, fingerprint(request))
    with Ledger(budget, folder.ledger_path) as ledger:
        session = Session(budget, users, ledger=ledger, seed=request.seed, checkpoint=checkpoint, observer=observer, surveys=True)
        encoding, scales, paid = _find_scales(prepared, session)
        model, statement = _train(prepared, encoding, scales, paid, nodes, session)
    folder.finish(model, statement)
    checkpoint.remove()
    return folder


def _find_scales(prepared: Prepared, session: Session) -> tuple[Encoding, Scales, list[str]]:
    """Find how rows are encoded and scaled; what is not declared is surveyed on one row of each user."""
    target = None if prepared.request.schema is None else prepared.request.schema.target
    declared = None if target is None else (target.low, target.high)
    if prepared.table is None:
        encoding = Encoding.of(prepared.kinds)
        low, high = declared or (-1.0, 1.0)
        frame = Frame(intercept=INTERCEPT * encoding.row_bound)
        return encoding, Scales(frame, encoding.row_bound, ((low + high) / 2, (high - low) / 2), [], []), []
    chosen = np.array([rows[int(session.rng.integers(len(rows)))] for rows in prepared.groups])
    one = replace(prepared.table, frame=prepared.table.frame.iloc[chosen], target=prepared.table.target[chosen])  # type: ignore
    kinds, paid = survey_columns(Columns.of(one.frame), prepared.kinds, session)
    encoding = Encoding.of(kinds)
    regression = prepared.task == "regress"
    rows = TrainingRows(
        datasets.encode_quietly(encoding, one.frame),
        datasets.target_numbers(one.target) if regression else np.zeros(len(chosen)),  # type: ignore[arg-type]
        regression,
        target_bounds=declared,
        encoded=True,
    )
    return encoding, find_scales(rows, session, fit_intercept=not prepared.request.hidden), paid


def _train(
    prepared: Prepared, encoding: Encoding, scales: Scales, paid: Sequence[str], nodes: Any, session: Session
) -> tuple[SavedModel, Any]:
    request, loss = prepared.request, _loss(prepared)
    centre, unit = scales.target
    frame, start, facts, network = _model(prepared, encoding, scales, session)
    nodes.plan = prepared.plan | {
        "encoding": encoding.to_json(),
        "task": prepared.task,
        "classes": list(prepared.classes),
        "scale": None if frame.scale is None else frame.scale.tolist(),
        "intercept": frame.intercept,
        "target scale": [centre, unit],
        "hidden": list(request.hidden),
    }
    settings = request.settings
    if request.public is not None:
        facts = replace(facts, side=_side(prepared, encoding, frame, facts, request.public))
        settings = replace(settings, options={**settings.options, "scale": "of the public rows"})
    schema = request.schema
    released, statement = train_federation(
        nodes,
        start,
        facts,
        settings,
        session,
        users_apart=prepared.table is not None,  # one file, whose users were dealt out
        released="the model, the settings below and the scales named below",
        assumed_public=[
            "the names and types of the columns",
            *(["what the schema declares"] if schema is not None else []),
            *(
                [describe_classes(prepared.classes, declared=schema is not None and bool(schema.classes))]
                if prepared.task == "classify"
                else []
            ),
        ],
        paid_for=[*paid, *scales.estimated] if prepared.table is not None else [],
        public_data=[] if request.public is None else [f"the rows of {request.public.name}, for the size of each column"],
    )
    hidden: list[Any] = []
    with np.errstate(all="ignore"):
        if network is None:
            slopes, intercepts = frame.unfold(released.parameters.reshape(loss.outputs, -1))
        else:
            from privopt.nets.table_network import unfold_layers
            from privopt.nets.user_network import assign_parameters

            assign_parameters(network, released.parameters)
            *hidden, (slopes, intercepts) = unfold_layers(network, frame)
        if prepared.task == "regress":
            slopes, intercepts = slopes * unit, intercepts * unit + centre
    check_finite(slopes, intercepts, *(part for layer in hidden for part in layer))
    return SavedModel(
        prepared.task, slopes, intercepts, encoding.names, prepared.classes, encoding, hidden=tuple(hidden)
    ), statement


def _model(prepared: Prepared, encoding: Encoding, scales: Scales, session: Session) -> tuple[Frame, Vector, ModelFacts, Any]:
    """The frame of rows, the start parameters, the facts for the default rules, and the network if there is one."""
    inputs, facts = len(encoding.names), loss_facts(_loss(prepared))
    if not prepared.request.hidden:
        norm = scales.row_norm * math.hypot(1.0, INTERCEPT)
        dimension = facts.outputs * (inputs + 1)
        return scales.frame, np.zeros(dimension), ModelFacts(facts, inputs + 1, dimension, norm), None
    from privopt.nets.table_network import LENGTH, build_mlp, gradient_norm
    from privopt.nets.user_network import flat_parameters

    columns = np.ones(inputs) if scales.frame.scale is None else scales.frame.scale
    frame = Frame(None, columns * scales.row_norm / LENGTH, intercept=0.0)
    network = build_mlp(inputs, prepared.request.hidden, facts.outputs, session.rng)
    start = flat_parameters(network)
    return frame, start, ModelFacts(facts, inputs + 1, len(start), gradient_norm(network, inputs)), network


def _read_public(prepared: Prepared, public: Path) -> Any:
    """Read the public rows; refuse a file that lacks columns of the private rows."""
    if not public.is_file():
        raise InputError(f"--public is {public}, which is no file.")
    frame = datasets.read(public, None).frame
    if frame is None:
        raise InputError(f"{public} is not like the private rows: it has no named columns.")
    used = {name: kind for name, kind in prepared.kinds.items() if not isinstance(kind, Ignored)}
    if missing := [name for name in used if name not in frame.columns]:
        raise InputError(f"{public} lacks columns of the private rows: {', '.join(map(repr, missing))}.")
    if not len(frame):
        raise InputError(f"{public} has no rows.")
    for name, kind in used.items():
        if isinstance(kind, Numeric | UnknownNumeric):
            datasets.numbers(frame[name])
    return frame


def _side(prepared: Prepared, encoding: Encoding, frame: Frame, facts: ModelFacts, public: Path) -> SideFacts:
    """The scale A of federated AdaDPS: the root mean square of each feature over public rows, for linear models."""
    rows = sp.csr_array(datasets.encode_quietly(encoding, _read_public(prepared, public)))
    if frame.scale is not None:
        rows = rows.multiply(1 / frame.scale).tocsr()
    squares = np.asarray(rows.power(2).mean(axis=0)).ravel()
    typical = np.sqrt(np.append(squares, frame.intercept**2) + 1 / (rows.shape[0] + 1))
    lengths = np.sqrt(rows.power(2) @ (1 / typical[:-1] ** 2) + (frame.intercept / typical[-1]) ** 2)
    scale = np.tile(typical, facts.loss.outputs)
    return SideFacts(None, scale, float(np.median(lengths)), 0.0)


class TableNodes:
    """The nodes of a table in this process: no transport, and the same answers, bit for bit."""

    def __init__(self, prepared: Prepared) -> None:
        self._parts = range(prepared.request.nodes)
        self.sizes = [len(prepared.groups[part :: len(self._parts)]) for part in self._parts]
        self.alive = len(self._parts)
        self._plan: Plan = {}
        self._nodes: Nodes | None = None

    @property
    def plan(self) -> Plan:
        """The public facts that nodes are sent."""
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan = plan
        self._nodes = NodesInProcess([find_users(plan, part=part, data=None) for part in self._parts])

    def ask(self, requests: Mapping[int, Request]) -> Mapping[int, Reply]:
        """The replies of all nodes."""
        assert self._nodes is not None
        return self._nodes.ask(requests)


# ---------------------------------------------------------------- for the process that waits for the run


class ProgressFile:
    """An observer that writes the progress of a run to a file in its folder, for the process that waits for it."""

    def __init__(self, path: Path, nodes: Any, warned: Sequence[str] = ()) -> None:
        self._path, self._nodes, self._warned = path, nodes, warned

    def start(self, rounds: int, spent: Any) -> None:
        """Training begins."""
        self._rounds, self._spent = rounds, spent
        self.advance(0)

    def advance(self, done: int) -> None:
        """So many rounds are done."""
        value = {
            "done": done,
            "rounds": self._rounds,
            "epsilon": self._spent(done) if done else 0.0,
            "alive": self._nodes.alive,
            "nodes": len(self._nodes.sizes),
            "warned": list(self._warned),
        }
        write_atomically(self._path, json.dumps(value).encode())


def stop(error: PrivoptError, folder: RunFolder, *, resumed: bool) -> None:
    """Write why the run stopped, for the process that waits for it.

    A run that has spent something and would stop like this again has failed for good. A run that was resumed may have found its
    file moved or edited: it can go on when that is put right.
    """
    final = isinstance(error, Diverged) if resumed else not isinstance(error, LedgerError | NodesMissing)
    if final and folder.ledger().entries:
        folder.fail(error)
    write_atomically(folder.path / STOPPED, json.dumps({"why": str(error)}).encode())
