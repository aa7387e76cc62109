"""Unknown columns: their ranges and frequent categories, estimated privately, so that a table can be encoded.

Both the command line and the estimators come here with the kinds of their columns (`feature_kinds`), and leave with an `Encoding`
and a list of what was paid for (`find_encoding`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from privopt.datasets.encode import EPOCH, Encoding, Known, years
from privopt.datasets.schema import (
    Categorical,
    Date,
    Ignored,
    Kind,
    Numeric,
    Schema,
    UnknownCategorical,
    UnknownNumeric,
    kinds,
    looks_like_identifier,
)
from privopt.datasets.table import Columns, numbers, texts
from privopt.errors import InputError, warn
from privopt.measure import surveys
from privopt.perexample.grads import Vector
from privopt.privacy.events import GaussianDpEvent
from privopt.training.scaling import RANGES_SHARE, DrawnRows, share_of, survey_ranges
from privopt.training.session import Session

MOST_NAMED = 10  # columns in a message
NOTHING_LEARNT = (
    "too few rows to learn privately, at this budget, what any of the columns hold: declare their ranges and categories in a "
    "schema if they are publicly known."
)
NO_RANGE = "in which ranges {} lie: left out of the model. Declare them in a schema if they are publicly known."
NO_CATEGORY = (
    "which values {} hold, which are read as text: left out of the model. If they are numbers, clean them (a decimal point, no "
    'other signs); if they are dates, say {{"type": "date"}} in a schema; if their categories are publicly known, list them '
    "there."
)
INSIST = "Declare what it holds in a schema to train on it."
FAILURE_SHARE = 0.05  # of δ pays for naming categories


def feature_kinds(columns: Columns, schema: Schema, *, protect: str) -> dict[str, Kind]:
    """The kinds of the columns; one that is named like an identifier is ignored, unless the schema declares it.

    `protect` is how the caller protects people, with the column's name at {}; empty if it does already.
    """
    named = [name for name in columns.names if name not in schema.columns and looks_like_identifier(name)]
    found = kinds(columns.without(named), schema)
    if named:
        hint = f" If people have several rows, protect people: {protect.format(named[0])}." if protect else ""
        if not found:
            raise InputError(f"there are no columns to learn from: their names say that they are identifiers. {INSIST}")
        warn(f"left out of the model: {_list(named)}, by the name an identifier. {INSIST}{hint}")
    return {name: found.get(name) or Ignored() for name in columns.names}


def count_features(kinds: Mapping[str, Kind]) -> int:
    """How many features an encoding has at least: a column whose categories are unknown counts as one."""
    known = tuple(
        (name, kind.between(0.0, 1.0) if isinstance(kind, UnknownNumeric | Date) else kind) for name, kind in kinds.items()
    )
    listed = tuple((name, kind) for name, kind in known if isinstance(kind, Known))
    return (len(Encoding(listed).names) if listed else 0) + sum(isinstance(kind, UnknownCategorical) for kind in kinds.values())


def find_encoding(
    columns: Columns, kinds: dict[str, Kind], session: Session, persons: DrawnRows | None
) -> tuple[Encoding, list[str]]:
    """Resolve unknown columns by private surveys. The encoding, and what was paid for.

    **Guarantee** That of `surveys.column_ranges` and `surveys.categories`, of one row of each person if persons are protected.
    """
    surveyed = columns if persons is None else columns.take(persons.surveyed)
    found, paid = survey_columns(surveyed, kinds, session, inside_declared=True)
    return Encoding.of(found), paid


def survey_columns(
    columns: Columns, kinds: dict[str, Kind], session: Session, *, inside_declared: bool = False
) -> tuple[dict[str, Kind], list[str]]:
    """Estimate what is unknown, on one row of each unit. The kinds of all columns, and what was paid for.

    With `inside_declared`, where almost all values of a column lie is surveyed within a declared range too, if there is δ for it.
    """
    numeric = [name for name, kind in kinds.items() if _has_range(kind)]
    unknown = len(numeric)
    declared = [name for name, kind in kinds.items() if isinstance(kind, Numeric)]
    if inside_declared and declared and session.budget.delta:
        numeric += declared
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
        if len(columns) < min(needed):
            raise InputError(
                f"{NOTHING_LEARNT} About {math.ceil(min(needed))} rows that are alike would be enough. Nothing was spent."
            )
    if numeric:
        found |= _survey_numeric(columns, {name: kinds[name] for name in numeric}, noise, session)
        if unknown:
            paid.append(f"the ranges of {', '.join(numeric[:unknown])}")
        if inside := numeric[unknown:]:
            paid.append(f"where almost all values of {', '.join(inside)} lie, within the declared ranges")
    if categorical:
        named = surveys.categories(
            [texts(columns[name]) for name in categorical],
            noise_multiplier=noise,
            failure=failure,
            spending=session.spending,
            rng=session.rng,
        )
        for name, frequent in zip(categorical, named, strict=True):
            found[name] = Categorical(tuple(frequent)) if frequent else Ignored()
        paid.append(f"the frequent categories of {', '.join(categorical)}")
    for names, hold in ((numeric, NO_RANGE), (categorical, NO_CATEGORY)):
        if lost := [name for name in names if found[name] == Ignored()]:
            warn(f"too few rows to learn privately, at this budget, {hold.format(_list(lost))}")
    if all(kind == Ignored() for kind in found.values()):
        raise InputError(NOTHING_LEARNT)
    return found, paid


def length_bound(encoding: Encoding, kinds: Mapping[str, Kind], session: Session) -> float | None:
    """The public bound on the length of encoded rows, or `None` if their typical length is to be surveyed.

    Rows of indicators are all of the same length, and so nothing is paid for it.
    """
    numeric = any(isinstance(kind, Numeric | UnknownNumeric | Date) for kind in kinds.values())
    return None if numeric and session.budget.delta else encoding.row_bound


def _has_range(kind: Kind) -> bool:
    """Whether the column has a range that is unknown."""
    return isinstance(kind, UnknownNumeric) or (isinstance(kind, Date) and not kind.known)


def _numbers(columns: Columns, name: str, kind: Kind) -> Vector:
    """What a column votes with on its range. A number that is missing and marked votes for 0."""
    if isinstance(kind, Date):
        return years(columns[name], kind)
    assert isinstance(kind, UnknownNumeric | Numeric)
    return np.nan_to_num(numbers(columns[name], missing=kind.missing))


def _survey_numeric(columns: Columns, kinds: dict[str, Kind], noise: float, session: Session) -> dict[str, Kind]:
    """Ranges of almost all values, within the declared ones; a column that has too few rows to tell keeps what is declared."""
    ends = [(kind.low, kind.high) if isinstance(kind, Numeric) else (-math.inf, math.inf) for kind in kinds.values()]
    votes = [_numbers(columns, name, kind)[:, None] for name, kind in kinds.items()]
    low, high = np.array(ends, dtype=float).T
    ranges = survey_ranges(votes, noise, session, (low, high))
    ends_found = zip(kinds.items(), ranges.low, ranges.high, ranges.known, strict=True)
    return {name: _resolved(kind, float(low), float(high), known=bool(known)) for (name, kind), low, high, known in ends_found}


def _resolved(kind: Kind, low: float, high: float, *, known: bool) -> Kind:
    if isinstance(kind, Numeric):
        return replace(kind, low=low, high=high, seen=known)
    assert isinstance(kind, UnknownNumeric | Date)
    if isinstance(kind, Date):
        return kind.between(math.floor(low) + EPOCH, math.ceil(high) + EPOCH) if known else kind.without_year
    return kind.between(low, high) if known else Ignored()


def _list(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(map(repr, names[:MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
