"""Confidence intervals for what is computed from noisy sums: they hold sampling error *and* noise.

An interval is the set of values that a test does not reject: of each candidate, the gap between what was measured and what it
predicts is compared with the deviation that it predicts, sampling and noise together. That is valid for ratios whose denominator
is hardly larger than its noise, where an interval of the usual kind (estimate ± deviation) is not; such a set is simply large.

Sampling error is that of units drawn independently. A person's mean over rows varies no more than one of the person's rows drawn
at random (the law of total variance), so what holds of rows is an upper bound for persons.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Numbers = NDArray[Any]

_SHARES = np.linspace(0.0, 1.0, 2001)  # candidates of shares and of AUC
_RATIOS = np.concatenate([[0.0], np.geomspace(1e-5, 1e3, 6000)])  # candidates of error variance / target variance


@dataclass(frozen=True)
class Estimate:
    """A number and its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    def to_json(self) -> dict[str, float | None]:
        """The numbers by name. JSON has no infinity, so None stands for it."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: number if math.isfinite(number) else None for name, number in ends.items()}


@dataclass(frozen=True)
class Noise:
    """Independent noise on each of several sums: its deviation and excess kurtosis; `confidence` is that of the intervals."""

    deviation: float
    kurtosis: float
    confidence: float

    @property
    def variance(self) -> float:
        return self.deviation**2

    def quantile(self, variance: Numbers | float, squares: Numbers | float, fourths: Numbers | float) -> Any:
        """How many deviations a sum of normal error and of noise, weighted by c, stays within.

        `variance` is that of both, `squares` is Σ c² and `fourths` Σ c⁴ of the weights. By Cornish and Fisher, the quantile z of
        a normal distribution becomes z + (z³ − 3z) κ/24 if the excess kurtosis is κ; never less than z.
        """
        normal = float(norm.ppf(0.5 + self.confidence / 2))
        with np.errstate(all="ignore"):
            excess = np.nan_to_num(self.kurtosis * self.variance**2 * fourths / np.square(variance))
        return normal + np.maximum(0.0, (normal**3 - 3 * normal) * excess / 24)

    def interval(self, candidates: Numbers, gap: Numbers, sampling: Numbers, squares: Any, fourths: Any) -> tuple[float, float]:
        """The candidates that are not rejected, from the least to the largest; all of them, if all are rejected."""
        variance = np.maximum(sampling, 0.0) + self.variance * squares
        kept = np.flatnonzero(np.abs(gap) <= self.quantile(variance, squares, fourths) * np.sqrt(variance))
        if not len(kept):
            return float(candidates[0]), float(candidates[-1])
        first, last = max(kept[0] - 1, 0), min(kept[-1] + 1, len(candidates) - 1)  # the end lies between two candidates
        return float(candidates[first]), float(candidates[last])


def share_of_all(counts: Numbers, size: int, noise: Noise) -> Estimate:
    """The share of units in these cells, of a public number of units.

    The deviation is that of a candidate share, with a continuity correction of half a unit.
    """
    value, cells = float(counts.sum()) / size, counts.size
    gap = np.maximum(0.0, np.abs(value - _SHARES) * size - 0.5)
    low, high = noise.interval(_SHARES, gap, size * _SHARES * (1 - _SHARES), cells, cells)
    return _within(value, low, high)


def share_of_some(part: Numbers, rest: Numbers, noise: Noise) -> Estimate:
    """The share of `part` in `part` and `rest`, both noisy counts of disjoint cells (Fieller's interval)."""
    inside, outside = float(part.sum()), float(rest.sum())
    r, total = _SHARES, max(inside + outside, 0.0)
    gap = np.maximum(0.0, np.abs((1 - r) * inside - r * outside) - 0.5)
    squares, fourths = (part.size * (1 - r) ** k + rest.size * r**k for k in (2, 4))
    doubt = total + noise.deviation * math.sqrt(part.size + rest.size)  # how many units there are is noisy, too
    low, high = noise.interval(r, gap, doubt * r * (1 - r), squares, fourths)
    return _within(inside / total if total > 0 else 0.5, low, high)


def mean_of_unit_values(total: float, size: int, noise: Noise, variance: float | None = None) -> Estimate:
    """The mean of numbers in [0, 1].

    Their variance is at most m(1 − m) if their mean is m (Bhatia, Davis), and at most `variance` if that is known.
    """
    value = total / size
    spread = _SHARES * (1 - _SHARES) if variance is None else np.minimum(_SHARES * (1 - _SHARES), max(variance, 0.0))
    low, high = noise.interval(_SHARES, size * (value - _SHARES), size * spread, 1, 1)
    return _within(value, low, high)


def area_under_roc(negatives: Numbers, positives: Numbers, noise: Noise) -> Estimate:
    """The probability that a positive has a higher score than a negative; scores in the same bin count as half.

    For counts n⁻ and n⁺ by bin and a candidate a, T = n⁻ᵀ M n⁺ has mean 0 if a is the truth; M = K − a, where K has 1 above the
    diagonal and ½ on it. The variance of T is Σ n⁻ᵢ (M n⁺)ᵢ² + Σ n⁺ⱼ (Mᵀ n⁻)ⱼ² by sampling (DeLong; for few units each sum is
    larger by N/(N − 1), and N⁻N⁺ a(1 − a) is added), and σ²(‖M n⁺‖² + ‖Mᵀ n⁻‖²) + σ⁴ ‖M‖² by noise of deviation σ on each count.
    """
    bins = len(negatives)
    order = np.triu(np.ones((bins, bins)), 1) + np.eye(bins) / 2
    pairs = float(negatives.sum() * positives.sum())
    wins = float(negatives @ order @ positives)
    a = _SHARES[:, None]
    above, below = order @ positives - a * positives.sum(), negatives @ order - a * negatives.sum()
    few = [max(float(counts.sum()), 2.0) for counts in (negatives, positives)]
    sampling = few[0] / (few[0] - 1) * (np.maximum(negatives, 0) * above**2).sum(axis=1)
    sampling += few[1] / (few[1] - 1) * (np.maximum(positives, 0) * below**2).sum(axis=1)
    sampling += few[0] * few[1] * _SHARES * (1 - _SHARES)
    crossed = noise.variance * ((order**2).sum() - 2 * _SHARES * order.sum() + (_SHARES * bins) ** 2)
    squares, fourths = ((above**k).sum(axis=1) + (below**k).sum(axis=1) for k in (2, 4))
    low, high = noise.interval(_SHARES, wins - _SHARES * pairs, sampling + noise.variance * crossed, squares, fourths)
    if negatives.sum() <= 0 or positives.sum() <= 0:
        return Estimate(0.5, 0.0, 1.0)
    return _within(wins / pairs, low, high)


def ratio_of_variances(
    error: float, target: float, sampling: Callable[[Numbers], Numbers], slopes: tuple[float, float, float], noise: Noise
) -> Estimate:
    """`error`/`target`, for an error that is a sum with noise of weight `slopes[0]`, and a target of weights `slopes[1:]`."""
    own, *others = slopes
    r = _RATIOS
    squares, fourths = (own**k + r**k * sum(slope**k for slope in others) for k in (2, 4))
    low, high = noise.interval(r, error - r * target, sampling(r), squares, fourths)
    value = max(error, 0.0) / target if target > 0 else 1.0
    return Estimate(min(max(value, low), high), low, high if high < r[-1] else math.inf)


def _within(value: float, low: float, high: float) -> Estimate:
    return Estimate(min(max(value, low), high), low, high)
