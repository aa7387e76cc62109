"""Scaling: columns and rows on a public scale, declared by the user or estimated privately and paid from the budget.

A row is scaled once. Columns of plain numbers are scaled by a frame, from their ranges. Columns of an encoded table are on
[−1, 1] already, and their frame leaves them as they are. Either way `centre_and_scale` says what a range becomes.
"""

import hashlib
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
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
from privopt.methods.rules import mean_share
from privopt.perexample.columns import Basis, Clipped, Hats, UnitRows
from privopt.perexample.design import CHUNK, Design, Frame, centre_and_scale
from privopt.perexample.grads import Vector
from privopt.perexample.persons import Persons
from privopt.privacy.events import GaussianDpEvent
from privopt.training.session import Session
from privopt.training.settings import Bounds, check_rows_per_person

INTERCEPT = 0.5  # the constant feature, in units of a typical row: the intercept learns at the pace of a strong column
RANGES_SHARE = 0.08  # of the squared budget goes into column ranges that were not declared,
NORM_SHARE = 0.02  # this into the length of a row,
TARGET_SHARE = 0.04  # this into the range of the target of a regression,
KNOTS_SHARE = 0.05  # and this into the knots of numeric columns
GUESS = 4.0  # where columns whose range is neither declared nor known are clipped: their values may well be standardised
LEAST_NORM = 0.5  # of a typical row of columns on [−1, 1]: where most rows are 0, those that are not are about 1 long
LINE = 2  # knots of a column that stays a single feature
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


def draw_rows_of_persons(persons: Persons, most: int | None, session: Session) -> DrawnRows:
    """Draw the rows that count, before anything is measured.

    **Guarantee** `privopt.measure.samplers.draw_rows`, twice. One row of each person takes part in surveys, so that a survey
    that one row moves by at most b is moved by at most b by one person.
    """
    most = check_rows_per_person(most)
    trained = draw_rows(persons, most, session.rng)
    return DrawnRows(trained, draw_rows(persons, 1, session.rng).rows, most)


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
    numeric: Sequence[int] = ()  # the places of encoded columns that are numbers

    def numeric_columns(self, ranges: Ranges | None) -> dict[int, tuple[float, float]]:
        """The places of the columns that may have knots, and their ranges."""
        if self.encoded:
            return dict.fromkeys(self.numeric, (-1.0, 1.0))
        if ranges is None or sp.issparse(self.matrix):
            return {}
        return dict(enumerate(zip(ranges.low.tolist(), ranges.high.tolist(), strict=True)))

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
    """What becomes of the columns, a frame for that, the length of a typical framed row, and where all this comes from."""

    frame: Frame
    row_norm: float
    target: tuple[float, float]  # a target is (y − centre)/scale
    declared: Sequence[str]
    estimated: Sequence[str]
    columns: Basis | None = None  # None: columns are framed as they are
    target_limits: tuple[float, float] = (-math.inf, math.inf)  # to which targets are clipped

    def applied(self, rows: TrainingRows) -> TrainingRows:
        """The rows before they are framed: their columns within their ranges or as hats, and targets within theirs."""
        targets = rows.targets
        if rows.regression:
            targets = np.clip(targets, *self.target_limits)
        if self.columns is None:
            return replace(rows, targets=targets)
        public = rows.public and replace(rows.public, matrix=self.columns.transform(rows.public.matrix))
        return replace(rows, matrix=self.columns.transform(rows.matrix), targets=targets, public=public)


def check_declared(rows: TrainingRows) -> None:
    """Refuse bounds that cannot hold, before anything is measured."""
    if isinstance(rows.bounds, numbers.Real):
        if not (math.isfinite(rows.bounds) and rows.bounds > 0):
            raise InputError(f"bounds is {rows.bounds}, but a row norm is a finite number > 0.")
    elif rows.bounds is not None:
        _column_bounds(rows.bounds, int(rows.matrix.shape[1]))
    if rows.regression and rows.target_bounds is not None:
        _check_target_bounds(rows.target_bounds)


def find_scales(
    rows: TrainingRows,
    session: Session,
    *,
    fit_intercept: bool,
    knots: int = LINE,
    unit_rows: bool = False,
    gaussian: bool = False,
    centred: bool = False,
) -> Scales:
    """Find scales by surveys, inside of what is declared: true bounds may be far wider than almost all values.

    `knots` is how many numeric columns may have on average: `LINE` leaves them one feature. With `unit_rows`, sparse rows of
    which nothing is declared are divided by their length, which needs no survey. With `centred`, dense columns that stay one
    feature are centred at their noisy mean; where the number of columns was itself surveyed, that is asked for with `gaussian`
    only. `gaussian` says that training is Gaussian noise on all rows: then a survey may decide whether there is another one.
    Gaussian releases cost what Σ 1/z² says, however they are chosen (Smith & Thakurta: Fully Adaptive Composition for Gaussian
    Differential Privacy); of other events the plan is fixed.
    """
    noise = session.noise_for(GaussianDpEvent) if session.budget.delta else math.inf  # of one release that takes all
    declared, estimated = list[str](), list[str]()
    _check_without_delta(rows, session)
    target, limits = (0.0, 1.0), (-math.inf, math.inf)
    if rows.regression:
        target, limits = _target_range(rows, session, noise, declared, estimated, CLOSER if gaussian else 0)
    constant = INTERCEPT if fit_intercept else 0.0
    columns: Basis | None = None
    centre, scale = None, None
    if unit_rows and rows.bounds is None and not rows.encoded and sp.issparse(rows.matrix):
        columns = UnitRows(int(rows.matrix.shape[1]))
        return Scales(Frame(intercept=constant), 1.0, target, declared, estimated, columns, limits)
    ranges = _column_ranges(rows, session, noise, declared, estimated)
    if knots > LINE and (numeric := rows.numeric_columns(ranges)):
        columns = _find_hats(rows, numeric, knots, share_of(noise, KNOTS_SHARE, 1), session)
        estimated.append(f"how the values of {len(numeric)} numeric columns are spread, for {knots} knots of each on average")
    elif ranges is not None:
        centre, scale = _frame(ranges, sparse=sp.issparse(rows.matrix))
        unknown = ~ranges.known & (rows.bounds is None)
        ends = np.where(unknown, -GUESS, ranges.low), np.where(unknown, GUESS, ranges.high)
        columns = None if sp.issparse(rows.matrix) else Clipped(*ends)
    if centred and not (sp.issparse(rows.matrix) or isinstance(columns, Hats) or isinstance(rows.bounds, numbers.Real)):
        centre = _find_centre(rows, columns, Frame(centre, scale, intercept=0.0), noise, session, estimated)
    row_norm = None
    if isinstance(rows.bounds, numbers.Real):
        row_norm = float(rows.bounds)
        declared.append("the declared length of the rows")
    elif session.budget.delta:
        surveyed = rows.surveyed.matrix if columns is None else columns.transform(rows.surveyed.matrix)
        norms = Design(surveyed, Frame(centre, scale, intercept=0.0)).norms(2)
        row_norm = surveys.typical_norm(
            norms, noise_multiplier=share_of(noise, NORM_SHARE, 1), spending=session.spending, rng=session.rng
        )
        estimated.append("the length of a typical row" + (" (too few rows to tell)" if row_norm is None else ""))
        if row_norm is not None and (rows.encoded or scale is not None):
            row_norm = max(row_norm, LEAST_NORM)
    if row_norm is None:
        spread = 3 if rows.bounds is not None and session.budget.delta else 1  # E x² is a third, and x² at most 1, in [−1, 1]
        row_norm = math.sqrt(rows.matrix.shape[1] / spread)
    frame = Frame(centre, scale, constant * row_norm)
    return Scales(frame, row_norm, target, [] if rows.encoded else declared, estimated, columns, limits)


def _check_without_delta(rows: TrainingRows, session: Session) -> None:
    """Refuse what would have to be surveyed, which needs δ."""
    if session.budget.delta == 0 and (rows.bounds is None or (rows.regression and rows.target_bounds is None)):
        asked = {"bounds": rows.bounds is None, "target_bounds": rows.regression and rows.target_bounds is None}
        raise InputError(
            "delta is 0, but scales are estimated with Gaussian noise, which needs delta > 0: declare "
            f"{' and '.join(name for name, missing in asked.items() if missing)}."
        )


def _target_range(
    rows: TrainingRows, session: Session, noise: float, declared: list[str], estimated: list[str], closer: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The centre and scale of the target, and its limits: of almost all targets, within the declared range if there is one.

    Limits are twice as far from the centre as the range, which may miss a twentieth of the targets: means are of all of them.
    """
    low, high, inside, certain = -1.0, 1.0, None, True
    if rows.target_bounds is not None:
        low, high = map(float, rows.target_bounds)
        inside = np.array([low]), np.array([high])
        declared.append("the declared range of the target")
    if session.budget.delta:
        noise = share_of(noise, TARGET_SHARE, 2)
        found = _far_range(rows.surveyed.targets, noise, session, inside, closer)
        estimated.append("the range of almost all targets" + ("" if found.known[0] else " (too few rows to tell)"))
        if inside is None and not found.known[0]:
            warn(NO_TARGET_RANGE)
        if inside is None or found.known[0]:
            low, high = float(found.low[0]), float(found.high[0])
        certain = inside is not None or bool(found.known[0])
    centre, half = low / 2 + high / 2, high / 2 - low / 2
    limits = (-math.inf, math.inf)
    if certain and half > 0:
        first, last = rows.target_bounds or limits
        limits = max(centre - 2 * half, float(first)), min(centre + 2 * half, float(last))
    return (centre, half or 1.0), limits


CLOSER = 2  # times that a target is looked at again, around where it was found


def _far_range(targets: Vector, noise: float, session: Session, inside: tuple[Vector, Vector] | None, closer: int) -> Ranges:
    """The range of the target. One that is narrow and far from 0 is surveyed again, and paid for, around where it was seen.

    This is done at most `closer` times; how often depends on private answers.
    """
    found, around = survey_ranges([targets[:, None]], noise, session, inside), 0.0
    for _ in range(closer if inside is None else 0):
        if found.place is None or not found.known[0] or found.place[0] == 0:
            break
        shift = around + float(found.place[0])
        nearer = survey_ranges([targets[:, None] - shift], noise, session)
        if not nearer.known[0]:
            break
        found, around = nearer, shift
    return replace(found, low=found.low + around, high=found.high + around)


def _column_ranges(
    rows: TrainingRows, session: Session, noise: float, declared: list[str], estimated: list[str]
) -> Ranges | None:
    """The ranges of columns of plain numbers: of almost all values, within the declared ranges if there are any."""
    if rows.encoded or isinstance(rows.bounds, numbers.Real):
        return None
    columns, inside = int(rows.matrix.shape[1]), None
    if rows.bounds is not None:
        inside = _column_bounds(rows.bounds, columns)
        declared.append("the declared ranges of the columns")
    if sp.issparse(rows.matrix) or not session.budget.delta:
        return None if inside is None else Ranges(*inside, np.ones(columns, dtype=bool), trusted=True)
    found = survey_ranges([rows.surveyed.matrix], share_of(noise, RANGES_SHARE, 2), session, inside)
    missed = int((~found.known).sum())
    estimated.append("the ranges of the columns" + (f" ({missed} had too few rows to tell)" if missed else ""))
    if missed and inside is None:
        warn(
            f"too few rows to learn privately, at this budget, where the values of {missed} of {columns} columns lie: they are "
            f"clipped to [{-GUESS:g}, {GUESS:g}]. If ranges are public knowledge, declare bounds=(low, high): that costs nothing."
        )
    return _with_unseen(found, inside)


def _with_unseen(found: Ranges, inside: tuple[Vector, Vector] | None) -> Ranges:
    """Give columns with nothing but 0 a typical column's range: their other values are too rare to see, not too small."""
    unseen = found.known & (found.low == 0) & (found.high == 0)
    reach = np.maximum(np.abs(found.low), np.abs(found.high))[found.known & ~unseen]
    typical = float(np.median(reach)) if len(reach) else 1.0
    low, high = np.where(unseen, -typical, found.low), np.where(unseen, typical, found.high)
    if inside is not None:
        low, high = np.clip(low, *inside), np.clip(high, *inside)
    return replace(found, low=low, high=high)


def _find_hats(
    rows: TrainingRows, numeric: Mapping[int, tuple[float, float]], knots: int, noise: float, session: Session
) -> Hats:
    """Hats for the numeric columns of these places and ranges; the others stay."""
    matrix, places = rows.surveyed.matrix, list(numeric)
    low, high = np.array(list(numeric.values()), dtype=float).T
    found = surveys.column_knots(
        lambda: _blocks([matrix], matrix.shape[1], places),
        int(matrix.shape[0]),
        low,
        high,
        knots=knots,
        noise_multiplier=noise,
        spending=session.spending,
        rng=session.rng,
    )
    by_place = dict(zip(places, found, strict=True))
    return Hats(tuple(by_place.get(place) for place in range(int(matrix.shape[1]))))


def _find_centre(
    rows: TrainingRows, columns: Basis | None, frame: Frame, noise: float, session: Session, estimated: list[str]
) -> Vector | None:
    """The mean of the columns, if the budget buys one that is worth having; else the centre that they have."""
    width = int(rows.matrix.shape[1])
    if not session.budget.delta or (share := mean_share(rows.size, width, noise)) is None:
        return frame.centre
    surveyed = rows.surveyed.matrix if columns is None else columns.transform(rows.surveyed.matrix)
    mean = surveys.mean_row(
        Design(surveyed, frame),
        bound=math.sqrt(width),
        noise_multiplier=share_of(noise, share, 1),
        spending=session.spending,
        rng=session.rng,
    )
    estimated.append("the means of the columns, at which rows are centred")
    return (0.0 if frame.centre is None else frame.centre) + mean * (1.0 if frame.scale is None else frame.scale)


def share_of(noise: float, share: float, questions: int) -> float:
    """The noise of each question, when all together take this share of what one Gaussian with this noise costs.

    T Gaussians with noise z are one with z/√T, so 1/z² is what adds up.
    """
    return noise * math.sqrt(questions / share)


def survey_ranges(
    parts: Sequence[Vector], noise_multiplier: float, session: Session, inside: tuple[Vector, Vector] | None = None
) -> Ranges:
    """The ranges of the columns of these parts of the same rows, estimated privately and paid for.

    Ranges that are declared, `inside`, are promises, infinite where there is none: values are clipped to them, and what is found
    lies within. A column that has too few rows to tell keeps its declared range; if 0 is in it, it is made symmetric, so that
    many small values in a wide range are almost 0, and not almost its end. One of which 0 only is seen is clipped to [−1, 1]: of
    what is rare it matters most whether it is there.
    """
    size, width = parts[0].shape[0], sum(part.shape[1] for part in parts)

    def blocks() -> Iterator[Vector]:
        each = _blocks(parts, width)
        return each if inside is None else (np.clip(block, *inside) for block in each)

    found = surveys.column_ranges(
        blocks, size, width, noise_multiplier=noise_multiplier, spending=session.spending, rng=session.rng
    )
    if inside is None:
        return found
    low, high = np.clip(found.low, *inside), np.clip(found.high, *inside)
    as_found = (found.known & (low < high)) | np.isinf(inside[0])
    farthest, around = np.maximum(*np.abs(inside)), (inside[0] <= 0) & (inside[1] >= 0)
    wide_low, wide_high = np.where(around, -farthest, inside[0]), np.where(around, farthest, inside[1])
    rare = found.known & (found.low == 0) & (found.high == 0) & around
    wide_low, wide_high = (
        np.where(rare, np.maximum(wide_low, -1.0), wide_low),
        np.where(rare, np.minimum(wide_high, 1.0), wide_high),
    )
    return replace(found, low=np.where(as_found, low, wide_low), high=np.where(as_found, high, wide_high))


def _blocks(parts: Sequence[Vector | sp.csr_matrix], width: int, places: Sequence[int] | None = None) -> Iterator[Vector]:
    """A few rows of the parts at a time, side by side; only the columns with these places, if some are named."""
    step = max(1, CHUNK // width)
    for start in range(0, parts[0].shape[0], step):
        some = [part[start : start + step] for part in parts]
        dense = [np.asarray(part if isinstance(part, np.ndarray) else part.toarray(), dtype=float) for part in some]
        block = np.concatenate(dense, axis=1)
        yield block if places is None else block[:, places]


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
    return (centre if centre.any() else None), np.where(reach > 0, reach, 1.0)
