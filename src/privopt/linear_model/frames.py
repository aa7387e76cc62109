"""Frames: how an estimator reads a table with text, dates and missing values, by the same encoding as `privopt train`."""

from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw

from privopt.datasets import (
    Columns,
    Encoding,
    Kind,
    Known,
    Schema,
    check_columns,
    encode_quietly,
    is_unknown,
    looks_like_identifier,
)
from privopt.datasets.table import SAME_NAMES
from privopt.datasets.unknown_columns import count_features, feature_kinds, find_encoding, length_bound
from privopt.errors import InputError
from privopt.training.scaling import TrainingRows
from privopt.training.session import Session


def as_columns(X: Any, schema: Any, *, bounded: bool = False) -> Columns | None:
    """The columns of a frame that has to be encoded: one with a schema, or with a column that is not of numbers.

    So has one with a column that is named like an identifier, which is left out; but not if the columns are `bounded`, as then
    the user has said what each of them holds. `None` for anything else: rows of plain numbers.
    """
    if schema is not None:
        return Columns.of(X)
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True) if hasattr(X, "columns") else X
    except nw.exceptions.DuplicateError:
        raise InputError(SAME_NAMES) from None
    if not isinstance(frame, nw.DataFrame):
        return None
    types = frame.collect_schema().dtypes()
    identified = not bounded and any(map(looks_like_identifier, map(str, frame.columns)))
    return None if all(kind.is_numeric() or kind == nw.Boolean for kind in types) and not identified else Columns.of(X)


@dataclass(frozen=True)
class TablePlan:
    """A table and the kinds of its columns, checked: nothing was paid yet."""

    columns: Columns
    kinds: dict[str, Kind]

    @classmethod
    def of(cls, columns: Columns, schema: Schema, *, delta: float, grouped: bool) -> "TablePlan":
        """Refuse a table that cannot be encoded."""
        kinds = feature_kinds(columns, schema, protect="" if grouped else "fit(X, y, groups=X[{!r}])")
        check_columns(columns, kinds)
        if delta == 0 and (unknown := [repr(name) for name, kind in kinds.items() if is_unknown(kind)]):
            raise InputError(f"delta is 0, so nothing can be estimated: declare {', '.join(unknown)} in schema=.")
        return cls(columns, kinds)

    @property
    def width(self) -> int:
        """The number of features, at least."""
        return count_features(self.kinds)

    @property
    def _declared(self) -> list[str]:
        """What a statement says is taken as public."""
        count = sum(isinstance(kind, Known) for kind in self.kinds.values())
        return [f"the ranges or categories that the schema declares, of {count} of the columns"] if count else []

    def encode(self, rows: TrainingRows, session: Session) -> tuple[Encoding, TrainingRows]:
        """The encoding, and the rows with encoded columns. What the schema leaves out is surveyed, and paid for."""
        encoding, paid = find_encoding(self.columns, self.kinds, session, rows.persons)
        encoded = replace(
            rows,
            matrix=encode_quietly(encoding, self.columns),
            encoded=True,
            numeric=encoding.numeric,
            bounds=length_bound(encoding, self.kinds, session),
            public=None if rows.public is None else replace(rows.public, matrix=encode_quietly(encoding, rows.public.matrix)),
            assumed_public=[*rows.assumed_public, *self._declared],
            paid_for=paid,
        )
        return encoding, encoded

    def check_public(self, X: Any) -> Columns:
        """Refuse public rows that are not like these."""
        columns = Columns.of(X)
        used = {name: kind for name, kind in self.kinds.items() if isinstance(kind, Known) or is_unknown(kind)}
        if lacking := [name for name in used if name not in columns]:
            raise InputError(f"the public rows lack column {lacking[0]!r}.")
        check_columns(columns, used)
        return columns
