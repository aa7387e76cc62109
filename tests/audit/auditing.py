"""Lower bounds on ε from a game: was the canary there?

A mechanism runs many times on data with a canary and on data without it, and each run gets a score. (ε, δ)-DP says of every set
S of outcomes

    P[S | canary] ≤ e^ε P[S | none] + δ,   and the same with the two exchanged,

so S = {score > t}, or {score ≤ t} in the other order, shows ε ≥ ln((P[S | one] − δ) / P[S | other]). Neither probability is
known, so both are bounded by Clopper and Pearson's intervals. t and the order are chosen on the first half of the runs; the
second half, which had no part in the choice, gives the bound. Whatever the score is, the bound is false with probability at most
`FALSE_ALARM`; a better score makes it larger.

Scores are rounded. The last bits of a floating-point answer tell more than its noise allows (Mironov 2012), which statements list
as not covered: without rounding, Laplace noise of ε = 2 is found to have ε > 2.1. An audit of the claim has to leave them out.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from privopt.perexample.grads import Vector

FALSE_ALARM = 1e-6  # the probability that one audit's bound exceeds the true ε
DIGITS = 6  # of a score that count
_TAILS = np.geomspace(1e-5, 0.5, 120)
_PLACES = np.unique(np.concatenate([_TAILS, 1 - _TAILS]))  # quantiles of the scores that are tried as thresholds


@dataclass(frozen=True)
class Game:
    """A claim, and a way to play against it. `play(present, replays)` gives scores that are larger if the canary is there."""

    epsilon: float
    delta: float
    play: Callable[[bool, int], Vector]
    tight: bool = False  # whether the canary uses all that the claim allows, so the bound has to come close


@dataclass(frozen=True)
class Audit:
    """What a game showed: with confidence 1 − `FALSE_ALARM` the true ε is at least `bound`."""

    claim: float
    bound: float
    replays: int  # on each of the two data sets
    seconds: float  # of the processor

    @property
    def exceeded(self) -> bool:
        """Whether the claim is shown to be false."""
        return self.bound > self.claim


def audit(game: Game, replays: int) -> Audit:
    """Play on both data sets and bound ε."""
    started = time.process_time()
    with_canary, without = (game.play(present, replays).round(DIGITS) for present in (True, False))
    return Audit(game.epsilon, lower_bound(with_canary, without, game.delta), replays, time.process_time() - started)


def lower_bound(with_canary: Vector, without: Vector, delta: float, false_alarm: float = FALSE_ALARM) -> float:
    """The largest ε that the scores refute at this δ, with this probability of being wrong.

    >>> rng = np.random.default_rng(0)
    >>> 0.8 < lower_bound(rng.laplace(1, 1, 40_000), rng.laplace(0, 1, 40_000), delta=0.0) < 1.0
    True
    """
    (first, one), (second, other) = np.array_split(with_canary, 2), np.array_split(without, 2)
    thresholds = np.unique(np.quantile(np.concatenate([first, second]), _PLACES))
    if len(thresholds) < 3:  # scores of a few values: between them
        values = np.unique(np.concatenate([first, second]))
        thresholds = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values
    above = _shown(_count(first, thresholds), len(first), _count(second, thresholds), len(second), delta, false_alarm)
    missed, kept = len(second) - _count(second, thresholds), len(first) - _count(first, thresholds)
    below = _shown(missed, len(second), kept, len(first), delta, false_alarm)
    if above.max() >= below.max():
        best = thresholds[[above.argmax()]]
        bound = _shown(_count(one, best), len(one), _count(other, best), len(other), delta, false_alarm)
    else:
        best = thresholds[[below.argmax()]]
        bound = _shown(len(other) - _count(other, best), len(other), len(one) - _count(one, best), len(one), delta, false_alarm)
    return max(0.0, float(bound[0]))


def _count(scores: Vector, thresholds: Vector) -> Vector:
    """How many scores are above each threshold."""
    return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")


def _shown(hits: Vector, games: int, alarms: Vector, others: int, delta: float, false_alarm: float) -> Vector:
    """ln((p − δ)/q) for a lower bound p of the one probability and an upper bound q of the other, each wrong with half of α."""
    least = np.where(hits > 0, stats.beta.ppf(false_alarm / 2, np.maximum(hits, 1), games - hits + 1), 0.0)
    most = np.where(alarms < others, stats.beta.isf(false_alarm / 2, alarms + 1, np.maximum(others - alarms, 1)), 1.0)
    with np.errstate(divide="ignore"):
        return np.where(least > delta, np.log(np.maximum(least - delta, 0.0) / most), -math.inf)
