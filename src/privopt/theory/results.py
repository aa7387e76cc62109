"""Results: bounds, noise levels and plans, each with the conditions under which its theorem holds.

A theorem says nothing when one of its conditions fails, so a `Bound` has a value or a list of failing conditions, never both.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """An upper bound on `of`, but for a probability `failure`; `value` is None when a condition is `failing`."""

    of: str
    value: float | None
    source: str
    failure: float = 0.0
    failing: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every condition does."""
        return not self.failing

    @property
    def number(self) -> float:
        """The value, or nan."""
        return math.nan if self.value is None else self.value


@dataclass(frozen=True)
class Noise:
    """The standard deviation of one coordinate's noise, for one guarantee: by the paper's formula, and as much as is needed.

    `failing` names the conditions of the paper's theorem that do not hold: its own proof does not cover the printed noise then.
    `needed` is what `privopt.calibrate` asks for, always for `replace-one` neighbours, as in the papers.
    """

    printed: float
    needed: float
    source: str
    failing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a theorem prescribes. It gives rounds up to a constant, which is taken as 1, and rounded down."""

    rounds: int
    learning_rate: float
    noise: Noise
    source: str
    failing: tuple[str, ...] = ()


def unless(holds: bool, condition: str) -> tuple[str, ...]:
    """The condition, if it fails.

    >>> unless(1 < 2, "1 < 2") + unless(2 < 1, "2 < 1")
    ('2 < 1',)
    """
    return () if holds else (condition,)


def conclude(of: str, value: float, source: str, failing: tuple[str, ...], failure: float = 0.0) -> Bound:
    """The bound, if nothing fails and it leaves any probability at all."""
    failing += unless(failure < 1, f"a probability left to hold with: it may fail with {failure:.3g}")
    return Bound(of, None if failing else value, source, min(1.0, failure), failing)


def whole(rounds: float) -> tuple[int, tuple[str, ...]]:
    """Rounds, rounded down, and at least one; a prescription below one round is a failing condition."""
    return max(1, math.floor(rounds * (1 + 1e-12))), unless(
        rounds >= 1, f"T ≥ 1: the theorem prescribes {rounds:.3g} rounds, so n is too small"
    )
