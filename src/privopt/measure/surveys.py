"""Surveys: undeclared scales and categories, estimated privately.

A model needs to know roughly how large its columns and rows are, and which categories there are. Where the user has not
declared that publicly, it is measured once, with noise, and paid for like everything else. Each survey is one measurement:
every example casts one vote per column, so one example moves the votes by √columns in l2. Whoever protects persons gives one row
of each person, and what is said here of an example holds for a person.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng
from privopt.measure.samplers import full_batch
from privopt.perexample.columns import Knots
from privopt.perexample.design import Design
from privopt.perexample.grads import PerExampleVectors, Rows, Vector
from privopt.privacy.events import FailureDpEvent
from privopt.privacy.ledger import Run
from privopt.state import PublicState

TAIL = 0.01  # share of rows that may lie outside a range
COVERED = 0.95  # share of rows that occupied bins have to hold for a range to be trusted
TYPICAL = 0.95  # share of rows that are no longer than the typical row
_LOWEST, _HIGHEST = -30, 50  # powers of two between which values are distinguished
_ZERO = _HIGHEST - _LOWEST + 1
_MAGNITUDES = 2 * _ZERO + 1
_ZOOM = 64  # bins of the second histogram
_PER_OCTAVE = 4  # bins per power of two, for the lengths of rows
MOST_KNOTS = 32  # of a column of few values
# standard deviations of its noise that the count of a bin has to exceed:
_SURE, _LIKELY = 3.0, 2.0  # to be that of a value, and to attract knots

Blocks = Callable[[], Iterator[Vector]]  # the columns' values, a block of rows at a time


@dataclass(frozen=True)
class Ranges:
    """Where almost all values of each column lie.

    `known` is False for columns with too few rows to estimate a range; `trusted` is True if there were so many rows that no more
    than a hundredth of a column's rows can lie outside its range unnoticed. `place` is the middle of the one step that holds
    almost all values of a column, where they lie so close together that no more is known of them, and 0 elsewhere.
    """

    low: Vector
    high: Vector
    known: Vector
    trusted: bool
    place: Vector | None = None


def column_ranges(blocks: Blocks, size: int, columns: int, *, noise_multiplier: float, spending: Run, rng: Rng) -> Ranges:
    """Estimate the range of each column without a hundredth of its rows: first by powers of two, then in 64 steps.

    **Guarantee** Two histograms over fixed bins, of one vote per column and example: l2 sensitivity √columns each. Event:
    2 × Gaussian(z). Which bins count as occupied is decided from the noisy counts only.
    """
    sigma = noise_multiplier * math.sqrt(columns)
    histogram = _Votes(blocks, _magnitude, _MAGNITUDES, size, columns).ask(noise_multiplier, spending, rng)
    first, last, covered = _occupied(histogram, sigma, size)
    known = last >= first
    doubtful = known & ~covered  # rows are missing: most likely they lie just outside; but next to 0 there is only 2^−30
    first = np.maximum(first - (doubtful & (first != _ZERO)), 0)
    last = np.minimum(last + (doubtful & (last != _ZERO)), _MAGNITUDES - 1)
    edges = _magnitude_edges()
    low, high = np.where(known, edges[0][first], -1.0), np.where(known, edges[1][last], 1.0)
    least_low, least_high = edges[1][first], edges[0][last]  # the outer powers of two hold rows: zooming in may not lose them
    span = np.where(high > low, high - low, 1.0)  # a column that is always 0 has none

    def position(values: Vector) -> Vector:
        return np.clip(np.nan_to_num((values - low) / span * _ZOOM), 0, _ZOOM - 1).astype(np.int64)

    histogram = _Votes(blocks, position, _ZOOM, size, columns).ask(noise_multiplier, spending, rng)
    step = (high - low) / _ZOOM
    zoomed, place = np.zeros(columns, dtype=bool), np.zeros(columns)
    for merged in (1, 2, 4, 8):  # the finest steps in which almost all rows can be seen
        counts = histogram.reshape(columns, -1, merged).sum(axis=2)
        first, last, covered = _occupied(counts, sigma * math.sqrt(merged), size)
        finer_low, finer_high = low + first * merged * step, low + (last + 1) * merged * step
        narrow = (first == last) & (np.sign(finer_low) == np.sign(finer_high))
        place = np.where(known & covered & ~zoomed & narrow, finer_low / 2 + finer_high / 2, place)
        finer_low, finer_high = np.minimum(finer_low, least_low), np.maximum(finer_high, least_high)
        # a single step is a constant, or a column whose other values are too rare to see: most likely 0
        finer_low = np.where(first == last, np.minimum(finer_low, 0.0), finer_low)
        finer_high = np.where(first == last, np.maximum(finer_high, 0.0), finer_high)
        now = known & covered & ~zoomed
        low, high = np.where(now, finer_low, low), np.where(now, finer_high, high)
        step = np.where(now, 0.0, step)
        zoomed |= now
    trusted = _threshold(sigma, histogram.size) <= TAIL * size
    return Ranges(low, high, known, trusted, place)


def column_knots(
    blocks: Blocks, size: int, low: Vector, high: Vector, *, knots: int, noise_multiplier: float, spending: Run, rng: Rng
) -> tuple[Knots | tuple[()], ...]:
    """Estimate knots for the columns of these ranges, at most `knots` of them per column on average; none for a constant.

    Columns of few values have a knot at each of them, with knots that other such columns leave. The knots of other columns are at
    both ends and at quantiles, for which no bin counts more than one knot's share. The hat nearest to the fullest bin is left
    out: most rows are sparse where a column is mostly one value. Of few values that are all rarer than a half none is: the one
    that is left out could be an extreme, and all others would have far to travel from it.

    **Guarantee** One histogram of 64 equal bins between public ends, of one vote per column and example: l2 sensitivity
    √columns. Event: Gaussian(z), paid before the rows are read. Knots follow from the noisy counts only.
    """
    columns, span = len(low), np.where(high > low, high / 2 - low / 2, 1.0)

    def position(values: Vector) -> Vector:
        share = np.nan_to_num((np.clip(values, low, high) / 2 - low / 2) / span)
        return np.clip(share * _ZOOM, 0, _ZOOM - 1).astype(np.int64)

    counts = _Votes(blocks, position, _ZOOM, size, columns).ask(noise_multiplier, spending, rng)
    sigma = noise_multiplier * math.sqrt(columns)
    sure, likely = (np.where(counts > times * sigma, counts, 0.0) for times in (_SURE, _LIKELY))
    likely[~likely.any(axis=1)] = 1.0  # nothing is known: equal bins
    held = (sure > 0).sum(axis=1)
    every = sure.sum(axis=1) > (1 - TAIL) * size - 2 * sigma * np.sqrt(held)  # row is in a bin that is seen
    few = every & (held > 1) & (held <= MOST_KNOTS)
    free = knots * few.sum()
    most = max((each for each in range(2, MOST_KNOTS + 1) if np.minimum(held[few], each).sum() <= free), default=2)
    parts = zip(counts, np.where(few[:, None], sure, likely), few, low, high, strict=True)
    return tuple(
        _place_knots(found, shares, most if each else knots, float(start), float(end), each=bool(each) and held[place] <= most)
        if end > start
        else ()
        for place, (found, shares, each, start, end) in enumerate(parts)
    )


def _place_knots(counts: Vector, shares: Vector, most: int, low: float, high: float, *, each: bool) -> Knots:
    """Knots between low and high: at both ends and at quantiles in between, or at each bin that holds rows and at empty ends."""
    bins, complete = len(counts), each and counts.max() < counts.sum() / 2
    if each:
        places = (np.flatnonzero(shares) + 0.5) / bins
        places = np.unique([0.0 if not shares[0] else places[0], *places, 1.0 if not shares[-1] else places[-1]])
    else:
        shares = shares / shares.sum()
        for _ in range(most):  # a bin that is cut leaves more to the others
            shares = np.minimum(shares, 1 / most)
            shares /= shares.sum()
        below = np.concatenate([[0.0], np.cumsum(shares)])
        rising = np.concatenate([[True], np.diff(below) > 0])
        edges = np.interp(np.linspace(0, 1, most)[1:-1], below[rising], np.flatnonzero(rising))
        places = np.unique(np.round([0, *edges, bins])) / bins
    at = [low * (1 - place) + high * place for place in places.tolist()]
    return Knots(tuple(at), int(np.abs(places - (counts.argmax() + 0.5) / bins).argmin()) if not complete else -1)


def typical_norm(norms: Vector, *, noise_multiplier: float, spending: Run, rng: Rng) -> float | None:
    """Estimate a length that 95 % of the rows do not exceed, up to a factor 2^(1/4); `None` if there are too few rows.

    **Guarantee** One histogram over fixed bins, one vote per example: l2 sensitivity 1. Event: Gaussian(z).
    """

    def octave(values: Vector) -> Vector:
        places = np.floor(_PER_OCTAVE * (np.log2(values) - _LOWEST))
        return np.clip(np.nan_to_num(places), 0, _PER_OCTAVE * _ZERO - 1).astype(np.int64)

    votes = _Votes(lambda: iter([norms[:, None]]), octave, _PER_OCTAVE * _ZERO, len(norms), 1)
    counts = votes.ask(noise_multiplier, spending, rng)[0]
    for merged in (1, _PER_OCTAVE):  # whole octaves need fewer rows
        groups = counts.reshape(-1, merged).sum(axis=1)
        likely = np.where(groups > _threshold(noise_multiplier * math.sqrt(merged), len(groups)), groups, 0.0)
        if likely.any():
            last = int(np.searchsorted(np.cumsum(likely), TYPICAL * likely.sum()))
            return float(2.0 ** (_LOWEST + merged * (last + 1) / _PER_OCTAVE))
    return None


def categories(columns: Sequence[Vector], *, noise_multiplier: float, failure: float, spending: Run, rng: Rng) -> list[list[str]]:
    """List the values of each column of strings that occur often enough to be published.

    **Guarantee** Counts of the values that occur, with Gaussian noise; only values whose noisy count exceeds a threshold are
    named. One example casts one vote per column: l2 sensitivity √columns, Gaussian(z). A value that only the added example
    has is named with probability at most δ'/columns, by the threshold 1 + zσ-quantile: FailureDpEvent(δ').
    """
    threshold = rows_for_a_category(len(columns), noise_multiplier, failure)
    spending.pay([gaussian(noise_multiplier).event, FailureDpEvent(failure)])
    named = []
    for column in columns:
        values, counts = np.unique(column, return_counts=True)
        noisy = gaussian(noise_multiplier).release(counts.astype(float), math.sqrt(len(columns)), rng)
        named.append([str(value) for value in values[noisy > threshold]])
    return named


def rows_for_a_category(columns: int, noise_multiplier: float, failure: float) -> float:
    """How many rows have to share a value before `categories` is likely to name it."""
    return 1 + noise_multiplier * math.sqrt(columns) * float(norm.isf(failure / columns))


def rows_for_a_range(columns: int, noise_multiplier: float) -> float:
    """How many rows have to lie within a power of two before `column_ranges` is likely to see them."""
    return _threshold(noise_multiplier * math.sqrt(columns), columns * _MAGNITUDES)


def column_sizes(design: Design, *, bound: float, noise_multiplier: float, spending: Run, rng: Rng) -> Vector:
    """Estimate the mean size E|x| of each column's entries (the frequency of an indicator or a word).

    Estimates are at least two standard deviations of their noise.

    **Guarantee** Query: Σ |row|, of rows clipped to l2 length `bound`, so one example moves it by at most that. Noise
    N(0, (z · bound)² I). Event: Gaussian(z), paid before the rows are summed.
    """
    noisy = _mean(_Sizes(design), bound, noise_multiplier, spending, rng)
    return np.maximum(noisy, 2 * noise_multiplier * bound / len(design))


def mean_row(design: Design, *, bound: float, noise_multiplier: float, spending: Run, rng: Rng) -> Vector:
    """Estimate the mean of the rows, shrunk towards 0 by what noise is expected to add to its length (James and Stein).

    **Guarantee** Query: Σ row, of rows clipped to l2 length `bound`, so one example moves it by at most that. Noise
    N(0, (z · bound)² I). Event: Gaussian(z), paid before the rows are summed.
    """
    mean = _mean(_Rows(design), bound, noise_multiplier, spending, rng)
    error, squared = noise_multiplier * bound / len(design), float((mean**2).sum())
    return mean * max(0.0, 1 - len(mean) * error**2 / max(squared, 1e-300))


def mean_target(targets: Vector, *, noise_multiplier: float, spending: Run, rng: Rng) -> Vector:
    """Estimate the mean of vectors of length at most 1: the shares of classes, or a target on [−1, 1].

    **Guarantee** Query: the sum of the rows of `targets`, each clipped to l2 length 1. Event: Gaussian(z), paid before they are
    read. A row that is not finite counts as 0.
    """
    return _mean(_Vectors(targets), 1.0, noise_multiplier, spending, rng)


class _Vectors(PerExampleVectors):
    """An oracle whose per-example vectors are the rows of an array."""

    def __init__(self, rows: Vector) -> None:
        self._rows, self.size = rows, len(rows)

    def __call__(self, parameters: Vector, rows: Rows) -> "_Vectors":
        return self

    def norms(self, order: int) -> Vector:
        return np.linalg.norm(self._rows, ord=order, axis=1)

    def weighted_sum(self, weights: Vector) -> Vector:
        return weights @ np.where((weights == 0)[:, None], 0.0, self._rows)


class _Rows(PerExampleVectors):
    """An oracle whose per-example vector is the row."""

    def __init__(self, design: Design) -> None:
        self._design, self.size = design, len(design)

    def __call__(self, parameters: Vector, rows: Rows) -> "_Rows":
        return self

    def norms(self, order: int) -> Vector:
        return self._design.norms(order)

    def weighted_sum(self, weights: Vector) -> Vector:
        return self._design.take(None).weighted_sum(weights)


class _Sizes(PerExampleVectors):
    """An oracle whose per-example vector is the row's absolute values."""

    def __init__(self, design: Design) -> None:
        self._design, self.size = design, len(design)

    def __call__(self, parameters: Vector, rows: Rows) -> "_Sizes":
        return self

    def norms(self, order: int) -> Vector:
        return self._design.norms(order)

    def weighted_sum(self, weights: Vector) -> Vector:
        return self._design.absolute_sum(weights)


# ---------------------------------------------------------------- votes


class _Votes(PerExampleVectors):
    """An oracle whose per-example vector is one vote, in one of `bins`, for each column."""

    def __init__(self, blocks: Blocks, place: Callable[[Vector], Vector], bins: int, size: int, columns: int) -> None:
        self._blocks, self._place, self._bins = blocks, place, bins
        self.size, self.columns = size, columns

    def __call__(self, parameters: Vector, rows: Rows) -> "_Votes":
        return self

    def norms(self, order: int) -> Vector:
        return np.full(self.size, self.columns ** (1 / order))

    def weighted_sum(self, weights: Vector) -> Vector:
        total = np.zeros(self.columns * self._bins)
        start = 0
        for block in self._blocks():
            places = self._place(block) + self._bins * np.arange(self.columns)
            share = np.broadcast_to(weights[start : start + len(block), None], places.shape)
            total += np.bincount(places.ravel(), share.ravel(), minlength=len(total))
            start += len(block)
        return total

    def ask(self, noise_multiplier: float, spending: Run, rng: Rng) -> Vector:
        """Noisy counts, (columns, bins)."""
        noisy = _mean(self, math.sqrt(self.columns), noise_multiplier, spending, rng)
        return (noisy * self.size).reshape(self.columns, self._bins)


def _mean(oracle: Any, bound: float, noise_multiplier: float, spending: Run, rng: Rng) -> Vector:
    """Measure the noisy mean of an oracle's vectors over all rows, each clipped to `bound`; paid before they are read."""
    measurement = Measurement(full_batch(), [gradient() @ l2(bound)], gaussian(noise_multiplier))
    spending.pay([measurement.event(0)])
    nowhere = np.zeros(0)
    with np.errstate(all="ignore"):  # a warning would reveal something about the data
        noisy: Vector = measurement.measure(oracle, PublicState(nowhere, nowhere), 0, rng).value
    return noisy


def _magnitude(values: Vector) -> Vector:
    """The bin of each value among −2^k … 0 … 2^k; |x| in [2^(e−1), 2^e) has exponent e."""
    values = np.nan_to_num(values)
    exponent = np.clip(np.frexp(values)[1], _LOWEST, _HIGHEST)
    return np.where(values == 0, _ZERO, _ZERO + np.sign(values) * (exponent - _LOWEST + 1)).astype(np.int64)


def _magnitude_edges() -> tuple[Vector, Vector]:
    upper = 2.0 ** np.arange(_LOWEST, _HIGHEST + 1)
    return np.concatenate([-upper[::-1], [0.0], upper / 2]), np.concatenate([-upper[::-1] / 2, [0.0], upper])


def _threshold(sigma: float, bins: int) -> float:
    """A noisy count that an empty bin exceeds in fewer than one in a thousand surveys of this many bins."""
    return sigma * math.sqrt(2 * math.log(1000 * bins))


def _occupied(counts: Vector, sigma: float, size: int) -> tuple[Vector, Vector, Vector]:
    """The first and last occupied bin of each column, trimmed of `TAIL` of its rows, and whether they hold almost all rows.

    Where none is occupied, the last comes before the first.
    """
    real = np.where(counts > _threshold(sigma, counts.size), counts, 0.0)
    total = real.sum(axis=1, keepdims=True)
    below = np.cumsum(real, axis=1)
    inner = (real > 0) & (below > TAIL * total) & (total - below + real > TAIL * total)
    several = (inner.sum(axis=1, keepdims=True) > 1) | ((real > 0).sum(axis=1, keepdims=True) == 1)
    inner = np.where(several, inner, real > 0)  # a rare value is trimmed only if a range remains without it
    first, last = inner.argmax(axis=1), inner.shape[1] - 1 - inner[:, ::-1].argmax(axis=1)
    return first, np.where(total[:, 0] > 0, last, first - 1), total[:, 0] > COVERED * size
