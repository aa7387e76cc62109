"""Scaling: columns and rows on a public scale, declared by the user or estimated privately and paid from the budget."""

import math
import numbers
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError, PrivoptWarning
from privopt.linear_model.defaults import INTERCEPT
from privopt.measure import surveys
from privopt.measure.randomness import Rng
from privopt.perexample.design import CHUNK, Design, Frame
from privopt.perexample.grads import Vector
from privopt.privacy.accountants import Accountant
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent
from privopt.privacy.ledger import Run

RANGES_SHARE = 0.08  # of the squared budget goes into column ranges that were not declared,
NORM_SHARE = 0.02  # and this into the length of a row: together they cost training 5 % more noise
NO_TARGET_RANGE = (
    "too few rows to learn privately, at this budget, in which range the target lies, so the model knows values from -1 to 1. "
    'Declare target_bounds=(low, high), or in a schema {"target": {"low": …, "high": …}}.'
)

Bounds = float | tuple[Any, Any] | None


@dataclass(frozen=True)
class Scales:
    """A frame for the rows, the length of a typical framed row, and where both come from."""

    frame: Frame
    row_norm: float
    target: tuple[float, float]  # a target is (y − centre)/scale
    declared: Sequence[str]
    estimated: Sequence[str]


def scales(
    matrix: Vector | sp.csr_matrix,
    targets: Vector | None,
    *,
    bounds: Bounds,
    target_bounds: tuple[float, float] | None,
    fit_intercept: bool,
    budget: Budget,
    accountant: Accountant,
    spending: Run,
    rng: Rng,
) -> Scales:
    """Scales from declared bounds; what is not declared is surveyed. `targets` is given for regression only."""
    columns = int(matrix.shape[1])
    declared, estimated = [], []
    ask_columns = bounds is None and not sp.issparse(matrix)
    ask_target = targets is not None and target_bounds is None
    told_norm = isinstance(bounds, numbers.Real)
    ask_norm = not told_norm and budget.delta > 0
    if budget.delta == 0 and (bounds is None or ask_target):
        missing = [name for name, asked in (("bounds", bounds is None), ("target_bounds", ask_target)) if asked]
        raise InputError(
            f"delta is 0, but scales are estimated with Gaussian noise, which needs delta > 0: declare {' and '.join(missing)}."
        )
    alone = calibrate(GaussianDpEvent, budget, spent=spending.since(0), accountant=accountant) if budget.delta else math.inf

    low = high = None
    trusted = True
    if ask_columns or ask_target:
        parts = [matrix] if ask_columns else []
        parts += [targets[:, None]] if ask_target and targets is not None else []
        width = sum(part.shape[1] for part in parts)
        ranges = surveys.column_ranges(
            lambda: _blocks(parts, width),
            matrix.shape[0],
            width,
            noise_multiplier=share_of(alone, RANGES_SHARE if ask_columns else NORM_SHARE, 2),
            spending=spending,
            rng=rng,
        )
        if ask_target:
            if not ranges.known[-1]:
                warnings.warn(NO_TARGET_RANGE, PrivoptWarning, stacklevel=5)  # the line that calls `fit`
            target_bounds = (float(ranges.low[-1]), float(ranges.high[-1]))
            estimated.append("the range of the target" + ("" if ranges.known[-1] else " (too few rows to tell)"))
        if ask_columns:
            low, high, trusted = ranges.low[:columns], ranges.high[:columns], ranges.trusted
            missed = int((~ranges.known[:columns]).sum())
            estimated.append("the ranges of the columns" + (f" ({missed} had too few rows to tell)" if missed else ""))
    elif bounds is not None and not told_norm:
        low, high = _column_bounds(bounds, columns)
        declared.append("the declared ranges of the columns")
    if targets is not None and target_bounds is not None and not ask_target:
        _check_target_bounds(target_bounds)
        declared.append("the declared range of the target")

    centre, scale = (
        (None, None) if low is None or high is None else _frame(low, high, trusted=trusted, sparse=sp.issparse(matrix))
    )
    row_norm = None
    if ask_norm:
        norms = Design(matrix, Frame(centre, scale, intercept=0.0)).norms(2)
        noise = share_of(alone, NORM_SHARE, 1)
        row_norm = surveys.typical_norm(norms, noise_multiplier=noise, spending=spending, rng=rng)
        estimated.append("the length of a typical row" + (" (too few rows to tell)" if row_norm is None else ""))
    elif told_norm:
        row_norm = float(bounds)  # type: ignore[arg-type]
        if not (math.isfinite(row_norm) and row_norm > 0):
            raise InputError(f"bounds is {bounds}, but a row norm is a finite number > 0.")
        declared.append("the declared length of the rows")
    if row_norm is None:
        row_norm = math.sqrt(columns)  # as if every entry were 1, which is the most that a column's range allows
    y_low, y_high = target_bounds or (-1.0, 1.0)
    target = ((y_low + y_high) / 2, (y_high - y_low) / 2 or 1.0)
    return Scales(Frame(centre, scale, INTERCEPT * row_norm if fit_intercept else 0.0), row_norm, target, declared, estimated)


def share_of(alone: float, share: float, questions: int) -> float:
    """The noise of each question, when all together take this share of what one Gaussian with noise `alone` costs.

    T Gaussians with noise z are one with z/√T, so 1/z² is what adds up.
    """
    return alone * math.sqrt(questions / share)


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


def _frame(low: Vector, high: Vector, *, trusted: bool, sparse: bool) -> tuple[Vector | None, Vector]:
    """Map a range into [−1, 1] by its largest magnitude, or by its middle and half width if 0 lies outside.

    Columns that touch 0 keep it, so that indicator columns stay sparse and short rows stay short. A range that is not trusted is
    not stretched far: rows that it missed, at 0 say, would become very long.
    """
    shift = np.zeros_like(low) if sparse else np.where((low > 0) | (high < 0), (low + high) / 2, 0.0)
    reach = np.maximum(np.abs(high - shift), np.abs(low - shift))
    reach = np.maximum(reach, np.abs(shift) * (1e-6 if trusted else 0.25))
    unseen = reach.max(initial=0.0) or 1.0  # of a column with nothing but 0: what is too rare to see is not made large
    return (shift if shift.any() else None), np.where(reach > 0, reach, unseen)
