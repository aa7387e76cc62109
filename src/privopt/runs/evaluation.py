"""Evaluation of a saved model on private rows of a file, and where its results are kept.

evaluation.json           what was measured, with its statement; evaluation-2.json, … are later ones
evaluation-ledger.jsonl   what evaluations of this run's model cost, with its anchor; apart from what training cost
holdout-ledger.jsonl      what the evaluation on rows that training set aside cost, capped by its budget
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from privopt import datasets
from privopt.datasets import Kind, Schema, Table
from privopt.durable import sync_directory, write_atomically
from privopt.errors import InputError, PrivoptWarning
from privopt.measure.samplers import held_out_rows
from privopt.metrics import OTHER, ClassifierQuality, RegressorQuality, check_size, evaluate_classifier, evaluate_regressor
from privopt.perexample.grads import Vector
from privopt.perexample.persons import Persons
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger
from privopt.runs.folder import RunFolder
from privopt.runs.model import SavedModel, Task
from privopt.runs.request import HoldOut, Request
from privopt.runs.table_users import take_ids

Quality = ClassifierQuality | RegressorQuality


def read_rows(model: SavedModel, file: Path, target: str | None, person: str | None = None) -> tuple[Table, Vector | None]:
    """Read rows to evaluate, with their target; and whose row each is, if `person` names a column that says it."""
    text = [*model.text_columns(target), *([person] if person else [])]  # ids as they are written: 007 is not 7
    table = datasets.read(file, target, names=None if model.encoding is not None else model.names, text=text)
    if table.target is None:
        raise InputError(f"{file} has no true values to compare with. Name their column with --target.")
    if person is not None and (table.frame is None or person not in table.frame):
        raise InputError(f"{file} has no column {person!r} that says whose row it is.")
    return table, None if person is None or table.frame is None else datasets.texts(table.frame[person])


def evaluate_model(
    model: SavedModel,
    table: Table,
    budget: Budget,
    *,
    groups: Vector | None = None,
    target_bounds: tuple[float, float] | None = None,
    error_bound: float | None = None,
    ledger: Ledger | None = None,
    seed: Any = None,
) -> Quality:
    """Measure how good a saved model is on the private rows of a table (`privopt.metrics`); `groups` are ids of persons."""
    assert table.target is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)  # how many values were not listed is private here
        scores = model.probabilities(table) if model.task == "classify" else model.scores(table)[:, 0]
    if model.task == "regress":
        if target_bounds is None:
            raise InputError("the range of the target has to be public: --target-bounds LOW HIGH.")
        if table.target.dtype.kind not in "iufb":
            raise InputError("the true values are text, but this model predicts numbers.")
        return evaluate_regressor(
            table.target.astype(float),
            scores,
            target_bounds=target_bounds,
            error_bound=error_bound,
            budget=budget,
            groups=groups,
            ledger=ledger,
            seed=seed,
        )
    places = datasets.codes(table.target, model.classes)
    if (places < 0).all():
        raise InputError(
            f"none of the true values is one of the model's classes ({', '.join(model.classes[:5])}). "
            "Is --target the right column?"
        )
    truth = np.array([*model.classes, OTHER], dtype=object)[places]
    return evaluate_classifier(truth, scores, classes=model.classes, budget=budget, groups=groups, ledger=ledger, seed=seed)


def declared_target_bounds(folder: RunFolder) -> tuple[float, float] | None:
    """The range of the target that the schema of the run declares."""
    schema = folder.asked.get("schema")
    target = None if not isinstance(schema, dict) else Schema.from_json(schema).target
    return None if target is None else (target.low, target.high)


def next_place(folder: RunFolder) -> Path:
    """The first file name for an evaluation that is free in the folder."""
    names = (folder.path / ("evaluation.json" if number == 1 else f"evaluation-{number}.json") for number in count(1))
    return next(name for name in names if not name.exists())


def ledger_path(folder: RunFolder) -> Path:
    """The ledger of evaluations of this run's model."""
    return folder.path / "evaluation-ledger.jsonl"


@contextmanager
def open_ledger(path: Path, cap: Budget | None = None) -> Iterator[Ledger]:
    """A durable ledger. If it is new, and an error comes before its first charge, it is removed."""
    existed = path.exists()
    with Ledger(cap, path) as ledger:
        try:
            yield ledger
        finally:
            if not existed and not ledger.entries:
                for made in (path, path.with_name(f"{path.name}.tip")):
                    made.unlink(missing_ok=True)


def save(quality: Quality, path: Path, **more: object) -> None:
    """Write an evaluation, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"format": "privopt-evaluation-1", **more, **quality.to_json()}, indent=2).encode())
    sync_directory(path.parent)


# ---------------------------------------------------------------- rows, or persons, that training set aside


def read_table(request: Request) -> tuple[Table, Vector | None]:
    """The table that a request is about, without the column of persons; and whose row each is, if persons are protected."""
    text = datasets.text_columns(request.schema, request.target)
    table = datasets.read(request.file, request.target, text=[*text, *filter(None, [request.person])])
    return (table, None) if request.person is None else take_ids(table, request.file, request.person, "person")


def set_aside(size: int, holdout: HoldOut, persons: Persons | None) -> tuple[Vector, Vector]:
    """The rows to train on, and those to evaluate on, by their places.

    **Guarantee** That of `held_out_rows`. With persons, persons are cut in the place of rows: each is in one part with all rows.
    """
    if persons is None:
        trained, held_out = held_out_rows(size, holdout.share, holdout.key)
    else:
        cut = held_out_rows(persons.size, holdout.share, holdout.key)
        trained, held_out = (np.sort(persons.take(part).rows) for part in cut)
    if not len(trained) or not len(held_out):
        units = f"{size} rows" if persons is None else f"{persons.size} persons"
        raise InputError(f"--holdout {holdout.share:g} of {units} leaves none to train on, or none to evaluate on.")
    return trained, held_out


def take_rows(table: Table, rows: Vector) -> Table:
    """The rows at these places."""
    return replace(
        table,
        frame=None if table.frame is None else table.frame.iloc[rows].reset_index(drop=True),
        matrix=None if table.matrix is None else table.matrix[rows],
        target=None if table.target is None else table.target[rows],
    )


def check_held_out(request: Request, held_out: Table, size: int, task: Task, classes: int, kinds: dict[str, Kind]) -> None:
    """Refuse an evaluation, on so many rows or persons, that could not be done after training, before anything is paid."""
    assert request.holdout is not None
    if task == "regress" and (request.schema is None or request.schema.target is None):
        raise InputError("--holdout needs the public range of a number to predict: declare the target's range in a --schema.")
    if held_out.frame is not None:
        datasets.check_columns(held_out.frame, kinds)
    check_size(size, _holdout_budget(request), classes)


def _holdout_budget(request: Request) -> Budget:
    assert request.holdout is not None
    return Budget(request.holdout.epsilon, 0.0, request.neighbours, request.unit)


def evaluate_held_out(folder: RunFolder) -> tuple[Quality, Path] | None:
    """Evaluate a finished model on what its run set aside, once; None if that is nothing, or it was done before.

    The ledger is capped by the budget, so an evaluation that was paid for and then killed is spent, and not paid twice.
    """
    request, place = Request.from_json(folder.asked), folder.path / "evaluation.json"
    if request.holdout is None or place.exists():
        return None
    table, ids = read_table(request)
    _, rows = set_aside(len(table), request.holdout, None if ids is None else Persons.of(ids, len(table)))
    budget, model = _holdout_budget(request), folder.model()
    with open_ledger(folder.path / "holdout-ledger.jsonl", budget) as ledger:
        if ledger.entries:
            raise InputError("the evaluation on the rows set aside was paid for, but stopped before it was written: it is spent.")
        quality = evaluate_model(
            model,
            take_rows(table, rows),
            budget,
            groups=None if ids is None else ids[rows],
            target_bounds=declared_target_bounds(folder),
            ledger=ledger,
            seed=request.seed,
        )
    save(quality, place, model=str(folder.path), file=request.file.name, holdout=request.holdout.share)
    return quality, place
