"""The users of a table, on a node: whose rows a file holds, and the rows as numbers for a model.

Little is imported here: Flower starts a process for each message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from privopt import datasets
from privopt.datasets import Categorical, Encoding, Ignored, Known, Numeric, Schema, Table
from privopt.datasets.table import suggest_names
from privopt.errors import InputError
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Logistic, Loss, Multinomial, Squared
from privopt.perexample.persons import check_written_alike
from privopt.perexample.user_vectors import LinearUsers, Users, group_rows


def read_users(path: Path, users: str, target: str, schema: Schema | None) -> tuple[Any, Vector]:
    """The table in a file, without its column of users, and that column."""
    if users == target:
        raise InputError(
            f"--users and --target are the same column, {users!r}: one says whose row it is, the other what to learn."
        )
    text = [users, *datasets.text_columns(schema, target)]
    table = datasets.read(path, target, text=text)
    if schema is not None and {users, target} & set(schema.columns):
        raise InputError(
            "the schema describes the users or the target under 'columns'. Leave users out; describe 'target' there."
        )
    return take_ids(table, path, users, "user")


def take_ids(table: Table, path: Path, column: str, who: str) -> tuple[Table, Vector]:
    """A table without the column that says whose row each is, and that column, which was read as text."""
    if table.frame is None:
        raise InputError(f"{path} has no named columns, so none can say whose row it is. Give a CSV or Parquet file.")
    if column not in table.frame.columns:
        raise InputError(f"{path} has no column {column!r} to name {who}s. {suggest_names(column, table.frame.columns)}")
    ids = table.frame.pop(column)
    if ids.isna().any():
        raise InputError(f"the column {column!r} has missing values: every row belongs to a {who}. Leave such rows out.")
    texts = datasets.texts(ids)
    check_written_alike(texts, f"the ids in {column!r}", who)
    if not len(table.frame.columns):
        raise InputError(f"{path} has no columns but {who}s and target: there is nothing to learn from.")
    return replace(table, names=tuple(table.frame.columns)), texts


class _Counted(NamedTuple):
    """Users of whom only the number is known."""

    size: int


def find_users(plan: Mapping[str, Any], *, part: int, data: str | None) -> Users:
    """The users of a node: all of its own file, `data`; or those of its part of a file that all nodes share."""
    path = data or plan["file"]
    if not path:
        raise InputError("this node has no rows: say where they are, --node-config 'partition-id=… data=\"…\"'.")
    frame, ids = _read_cells(Path(path), plan)
    groups = group_rows(ids)
    groups = groups if data else groups[part :: plan["parts"]]
    if "encoding" not in plan:
        return _Counted(len(groups))  # type: ignore[return-value]
    matrix, targets = _numbers(frame, plan)
    if plan["hidden"]:
        return _network_users(plan, matrix, targets, groups)
    if plan["scale"] is not None:
        matrix = matrix.multiply(1 / np.array(plan["scale"])).tocsr() if sp.issparse(matrix) else matrix / plan["scale"]
    classes = len(plan["classes"])
    loss: Loss = Squared() if not classes else Logistic() if classes == 2 else Multinomial(classes)
    return LinearUsers(matrix, targets, groups, loss, intercept=plan["intercept"])


def _read_cells(path: Path, plan: Mapping[str, Any]) -> tuple[Any, Vector]:
    """Read the cells of a node's file as they are written, and whose row each is. An error here ends a run at its start."""
    columns = [*_names(plan), plan["target"], plan["users"]]
    frame = datasets.read(path, None, text=columns).frame
    if frame is None:
        raise InputError(f"{path} has no named columns, so none can say whose row it is. Give a CSV or Parquet file.")
    if missing := [name for name in columns if name not in frame.columns]:
        raise InputError(f"{path} lacks columns that the federation has: {', '.join(map(repr, missing))}.")
    if frame[plan["users"]].isna().any():
        raise InputError(f"the column {plan['users']!r} has missing values: every row belongs to a user. Leave such rows out.")
    ids = datasets.texts(frame[plan["users"]])
    check_written_alike(ids, f"the ids in {plan['users']!r}", "user")
    return frame, ids


def _names(plan: Mapping[str, Any]) -> Sequence[str]:
    """The columns that a node's file has to have: those of the encoding; before there is one, those that the schema declares."""
    if "encoding" in plan:
        return list(dict(_columns(plan)))
    schema = plan.get("schema")
    declared = {} if schema is None else Schema.from_json(schema).columns
    return [name for name, kind in declared.items() if not isinstance(kind, Ignored)]


def _columns(plan: Mapping[str, Any]) -> Sequence[tuple[str, Known]]:
    return Encoding.from_json(plan["encoding"]).columns if "encoding" in plan else ()


def _numbers(frame: Any, plan: Mapping[str, Any]) -> tuple[Any, Vector]:
    """Encode rows and their targets, cell by cell: a user's cell changes that user's row, and no other.

    A row that has no number where one is expected, or no valid target, gets the target nan: it is left out.
    """
    import pandas as pd

    usable = np.ones(len(frame), dtype=bool)
    for name, kind in _columns(plan):
        if isinstance(kind, Numeric):
            values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
            usable &= np.isfinite(values)
            frame[name] = np.where(np.isfinite(values), values, kind.low)
        elif isinstance(kind, Categorical):
            frame[name] = [_match_value(cell, kind.values) for cell in frame[name]]
    centre, unit = plan["target scale"]
    if plan["task"] == "classify":
        classes = plan["classes"]
        places = datasets.codes(np.array([_match_value(cell, classes) for cell in frame[plan["target"]]]), classes)
        targets = np.where(places < 0, np.nan, places)
    else:
        values = pd.to_numeric(frame[plan["target"]], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        targets = np.where(np.isfinite(values), (values - centre) / unit, np.nan)
    return datasets.encode_quietly(Encoding.from_json(plan["encoding"]), frame), np.where(usable, targets, np.nan)


def _match_value(cell: Any, values: Sequence[str]) -> str:
    """Write a cell as the listed values are written: a number or a truth value may be written in another way.

    >>> _match_value("2.0", ["1", "2"]), _match_value("yes", ["no", "yes"]), _match_value("TRUE", ["False", "True"])
    ('2', 'yes', 'True')
    """
    text = datasets.MISSING if cell is None or cell != cell else str(cell)
    if text in values:
        return text
    same = [value for value in values if value.casefold() == text.casefold() and text.casefold() in ("true", "false")]
    if same:
        return same[0]
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else text


def _network_users(plan: Mapping[str, Any], matrix: Any, targets: Vector, groups: Sequence[Vector]) -> Users:
    import torch
    from torch import nn

    from privopt.measure.randomness import generator
    from privopt.nets.table_network import build_mlp
    from privopt.nets.user_network import NetworkUsers

    rows = np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix) / np.array(plan["scale"])
    known, classes = np.isfinite(targets), len(plan["classes"])
    several = classes > 2
    loss: nn.Module = nn.CrossEntropyLoss() if several else nn.BCEWithLogitsLoss() if classes else nn.MSELoss()
    filled = np.nan_to_num(targets)
    values = torch.from_numpy(filled.astype(np.int64)) if several else torch.from_numpy(filled.astype(np.float32))[:, None]
    model = build_mlp(rows.shape[1], plan["hidden"], classes if several else 1, generator(0))
    usable = [group[known[group]] for group in groups]
    return NetworkUsers(model, loss, torch.from_numpy(rows.astype(np.float32)), values, usable)
