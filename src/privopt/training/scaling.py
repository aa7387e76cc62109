"""Scaling: columns and rows on a public scale, declared by the user or estimated privately and paid from the budget.

A row is scaled once. Columns of plain numbers are scaled by a frame, from their ranges. Columns of an encoded table are on
[−1, 1] already, and their frame leaves them as they are. Either way `centre_and_scale` says what a range becomes.
"""

import hashlib
import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError, warn
from privopt.measure import surveys
from privopt.measure.samplers import draw_rows
from privopt.measure.surveys import Ranges
from privopt.measure.units import Unit, each_person, each_row
from privopt.perexample.design import CHUNK, Design, Frame, centre_and_scale
from privopt.perexample.grads import Vector
from privopt.perexample.persons import Persons
from privopt.privacy.events import GaussianDpEvent
from privopt.training.session import Session
from privopt.training.settings import Bounds

INTERCEPT = 0.5  # the constant feature, in units of a typical row: the intercept learns at the pace of a strong column
RANGES_SHARE = 0.08  # of the squared budget goes into column ranges that were not declared,
NORM_SHARE = 0.02  # and this into the length of a row: together they cost training 5 % more noise
NO_TARGET_RANGE = (
    "too few rows to learn privately, at this budget, in which range the target lies, so the model knows values from -1 to 1. "
    'Declare target_bounds=(low, high), or in a schema {"target": {"low": …, "high": …}}.'
)


@dataclass(frozen=True, eq=False)
class PublicTable:
    """Rows that are not private, and their targets, encoded as the private ones are."""

    name: str
    matrix: Vector | sp.csr_matrix
    targets: Vector

    def __str__(self) -> str:
        return f"{self.name}: {len(self.targets)} rows, sha256 {self.digest[:16]}"

    @property
    def digest(self) -> str:
        """A hash of rows and targets: what was used can be recognised."""
        rows = sp.csr_array(self.matrix)
        rows.sum_duplicates()
        parts = (np.array(rows.shape), rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data.astype(float))
        digest = hashlib.sha256()
        for part in (*parts, np.asarray(self.targets, dtype=float)):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


class DrawnRows(NamedTuple):
    """Which rows of each person are trained on, and the one row of each person that takes part in surveys."""

    trained: Persons
    surveyed: Vector
    most: int  # rows of a person, a public number


ROWS_OF_A_PERSON = 32  # at most: the mean of more is hardly another, and takes longer


def draw_rows_of_persons(persons: Persons, most: int | None, session: Session) -> DrawnRows:
    """Draw the rows that count, before anything is measured.

    **Guarantee** `privopt.measure.samplers.draw_rows`, twice. One row of each person takes part in surveys, so that a survey
    that one row moves by at most b is moved by at most b by one person.
    """
    if most is None:
        most = ROWS_OF_A_PERSON
    if not isinstance(most, numbers.Integral) or isinstance(most, bool) or most < 1:
        raise InputError(f"rows_per_person is {most!r}, but it is a whole number, at least 1.")
    trained = draw_rows(persons, int(most), session.rng)
    return DrawnRows(trained, draw_rows(persons, 1, session.rng).rows, int(most))


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The private rows and their targets, and what is declared of them.

    `encoded` rows have columns on [−1, 1]. The caller made them, and says in the two lists where their ranges and the bounds come
    from. A row of a class that is not among those declared has the target NaN: no gradient and no loss, while n stays. Its
    columns count in surveys. With `persons`, the unit is a person.
    """

    matrix: Vector | sp.csr_matrix
    targets: Vector
    regression: bool
    bounds: Bounds = None
    target_bounds: tuple[float, float] | None = None
    encoded: bool = False
    public: PublicTable | None = None
    persons: DrawnRows | None = None
    assumed_public: Sequence[str] = ()
    paid_for: Sequence[str] = ()

    @property
    def size(self) -> int:
        """The number of units: rows, or persons."""
        return int(self.matrix.shape[0]) if self.persons is None else self.persons.trained.size

    @property
    def unit(self) -> Unit:
        """Whose rows count together."""
        return each_row() if self.persons is None else each_person()

    @cached_property
    def surveyed(self) -> "TrainingRows":
        """The rows that take part in surveys: one for each unit."""
        if self.persons is None:
            return self
        chosen = self.persons.surveyed
        return replace(self, matrix=self.matrix[chosen], targets=self.targets[chosen], persons=None)


@dataclass(frozen=True)
class Scales:
    """A frame for the rows, the length of a typical framed row, and where both come from, if the caller does not know."""

    frame: Frame
    row_norm: float
    target: tuple[float, float]  # a target is (y − centre)/scale
    declared: Sequence[str]
    estimated: Sequence[str]


def check_declared(rows: TrainingRows) -> None:
    """Refuse bounds that cannot hold, before anything is measured."""
    if isinstance(rows.bounds, numbers.Real):
        if not (math.isfinite(rows.bounds) and rows.bounds > 0):
            raise InputError(f"bounds is {rows.bounds}, but a row norm is a finite number > 0.")
    elif rows.bounds is not None:
        _column_bounds(rows.bounds, int(rows.matrix.shape[1]))
    if rows.regression and rows.target_bounds is not None:
        _check_target_bounds(rows.target_bounds)


def find_scales(rows: TrainingRows, session: Session, *, fit_intercept: bool) -> Scales:
    """Scales from declared bounds; what is not declared is surveyed."""
    ask_columns = rows.bounds is None and not rows.encoded and not sp.issparse(rows.matrix)
    ask_target = rows.regression and rows.target_bounds is None
    if session.budget.delta == 0 and (rows.bounds is None or ask_target):
        missing = [name for name, asked in (("bounds", rows.bounds is None), ("target_bounds", ask_target)) if asked]
        raise InputError(
            f"delta is 0, but scales are estimated with Gaussian noise, which needs delta > 0: declare {' and '.join(missing)}."
        )
    noise = session.noise_for(GaussianDpEvent) if session.budget.delta else math.inf  # of one release that takes all
    columns, target, declared, estimated = _ranges(rows, session, noise, ask_columns=ask_columns, ask_target=ask_target)
    centre, scale = (None, None) if columns is None else _frame(columns, sparse=sp.issparse(rows.matrix))
    row_norm = None
    if isinstance(rows.bounds, numbers.Real):
        row_norm = float(rows.bounds)
        declared.append("the declared length of the rows")
    elif session.budget.delta:
        norms = Design(rows.surveyed.matrix, Frame(centre, scale, intercept=0.0)).norms(2)
        row_norm = surveys.typical_norm(
            norms, noise_multiplier=share_of(noise, NORM_SHARE, 1), spending=session.spending, rng=session.rng
        )
        estimated.append("the length of a typical row" + (" (too few rows to tell)" if row_norm is None else ""))
    if row_norm is None:
        row_norm = math.sqrt(rows.matrix.shape[1])  # as if every entry were 1, which is the most that a column's range allows
    frame = Frame(centre, scale, INTERCEPT * row_norm if fit_intercept else 0.0)
    return Scales(frame, row_norm, target, [] if rows.encoded else declared, estimated)


def _ranges(
    rows: TrainingRows, session: Session, noise: float, *, ask_columns: bool, ask_target: bool
) -> tuple[Ranges | None, tuple[float, float], list[str], list[str]]:
    """The ranges of the columns (if there are any), the centre and scale of the target, and what was declared or estimated."""
    columns, declared, estimated = int(rows.matrix.shape[1]), list[str](), list[str]()
    found, target_bounds = None, rows.target_bounds
    if ask_columns or ask_target:
        parts = [rows.surveyed.matrix] if ask_columns else []
        parts += [rows.surveyed.targets[:, None]] if ask_target else []
        surveyed = survey_ranges(parts, share_of(noise, RANGES_SHARE if ask_columns else NORM_SHARE, 2), session)
        if ask_target:
            if not surveyed.known[-1]:
                warn(NO_TARGET_RANGE)
            target_bounds = (float(surveyed.low[-1]), float(surveyed.high[-1]))
            estimated.append("the range of the target" + ("" if surveyed.known[-1] else " (too few rows to tell)"))
        if ask_columns:
            found = Ranges(surveyed.low[:columns], surveyed.high[:columns], surveyed.known[:columns], surveyed.trusted)
            missed = int((~found.known).sum())
            estimated.append("the ranges of the columns" + (f" ({missed} had too few rows to tell)" if missed else ""))
    if not ask_columns and rows.bounds is not None and not isinstance(rows.bounds, numbers.Real):
        low, high = _column_bounds(rows.bounds, columns)
        found = Ranges(low, high, np.ones(columns, dtype=bool), trusted=True)
        declared.append("the declared ranges of the columns")
    if rows.regression and not ask_target and target_bounds is not None:
        declared.append("the declared range of the target")
    low_target, high_target = target_bounds or (-1.0, 1.0)
    return found, ((low_target + high_target) / 2, (high_target - low_target) / 2 or 1.0), declared, estimated


def share_of(noise: float, share: float, questions: int) -> float:
    """The noise of each question, when all together take this share of what one Gaussian with this noise costs.

    T Gaussians with noise z are one with z/√T, so 1/z² is what adds up.
    """
    return noise * math.sqrt(questions / share)


def survey_ranges(parts: Sequence[Vector], noise_multiplier: float, session: Session) -> Ranges:
    """The ranges of the columns of these parts of the same rows, estimated privately and paid for."""
    size, width = parts[0].shape[0], sum(part.shape[1] for part in parts)
    return surveys.column_ranges(
        lambda: _blocks(parts, width),
        size,
        width,
        noise_multiplier=noise_multiplier,
        spending=session.spending,
        rng=session.rng,
    )


def _blocks(parts: Sequence[Vector], width: int) -> Iterator[Vector]:
    step = max(1, CHUNK // width)
    for start in range(0, parts[0].shape[0], step):
        yield np.concatenate([np.asarray(part[start : start + step], dtype=float) for part in parts], axis=1)


def _column_bounds(bounds: tuple[Any, Any] | Any, columns: int) -> tuple[Vector, Vector]:
    try:
        low, high = (np.broadcast_to(np.asarray(side, dtype=float), (columns,)) for side in bounds)
    except (TypeError, ValueError):
        raise InputError(
            f"bounds must be a row norm (a number) or a pair (low, high) of numbers or of {columns} numbers each."
        ) from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        wrong = int(np.flatnonzero(~(np.isfinite(low) & np.isfinite(high) & (low <= high)))[0])
        raise InputError(f"bounds of column {wrong} are {low[wrong]} … {high[wrong]}; they must be finite, low ≤ high.")
    return low, high


def _check_target_bounds(bounds: tuple[float, float]) -> None:
    try:
        low, high = (float(side) for side in bounds)
    except (TypeError, ValueError):
        raise InputError(f"target_bounds is {bounds!r}; it is a pair of numbers (low, high).") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"target_bounds is {bounds!r}; both must be finite, and low < high.")


def _frame(ranges: Ranges, *, sparse: bool) -> tuple[Vector | None, Vector]:
    """Map a range into [−1, 1] by its largest magnitude, or by its middle and half width if 0 lies outside.

    Columns that touch 0 keep it, so that indicator columns stay sparse and short rows stay short. A range that is not trusted is
    not stretched far: rows that it missed, at 0 say, would become very long.
    """
    centre, reach = centre_and_scale(ranges.low, ranges.high, centred=(not sparse) & ((ranges.low > 0) | (ranges.high < 0)))
    reach = np.maximum(reach, np.abs(centre) * (1e-6 if ranges.trusted else 0.25))
    unseen = reach.max(initial=0.0) or 1.0  # of a column with nothing but 0: what is too rare to see is not made large
    return (centre if centre.any() else None), np.where(reach > 0, reach, unseen)
