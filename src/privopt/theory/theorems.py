"""Theorems: what they assume (`Problem`), what they prescribe (`Plan`, `Noise`) and what they promise (`Bound`).

A theorem says nothing when one of its conditions fails, so a `Bound` has a value or a list of failing conditions, never both.
"""

import math
from dataclasses import dataclass

from privopt.errors import InputError


@dataclass(frozen=True)
class Problem:
    """n examples, d parameters, and a loss whose per-example gradients have norm ≤ G and change by ≤ L per unit.

    `gap` is f(w₁) − f*, how far the start lies above the infimum. The defaults are a logistic loss of rows of norm ≤ 1.

    >>> Problem(n=32561, d=123)
    Problem(n=32561, d=123, lipschitz=1.0, smoothness=0.25, gap=1.0)
    """

    n: int
    d: int
    lipschitz: float = 1.0
    smoothness: float = 0.25
    gap: float = 1.0

    def __post_init__(self) -> None:
        check_positive(n=self.n, d=self.d, lipschitz=self.lipschitz, smoothness=self.smoothness, gap=self.gap)


def check_positive(**values: float) -> None:
    """Validate finite numbers above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}; it is a finite number above 0.")


def check_share(**values: float) -> None:
    """Validate shares: 0 ≤ value < 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise InputError(f"{name} is {value}; it is at least 0 and below 1.")


def log_inverse(delta: float) -> float:
    """ln(1/δ)."""
    if not 0 < delta < 1:
        raise InputError(f"delta is {delta}; these formulas need a probability above 0 and below 1.")
    return -math.log(delta)


# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class Bound:
    """An upper bound on `of`, except with probability `failure`; `value` is None if a condition is `failing`."""

    of: str
    value: float | None
    source: str
    failure: float = 0.0
    failing: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every condition holds."""
        return not self.failing

    @property
    def number(self) -> float:
        """The value, or nan."""
        return math.nan if self.value is None else self.value


@dataclass(frozen=True)
class Noise:
    """The standard deviation of one coordinate's noise, for one guarantee: by the paper's formula, and the least that is needed.

    `failing` names the conditions of the paper's theorem that do not hold: its own proof does not cover the printed noise then.
    `needed` is what `privopt.calibrate` asks for, always for `replace-one` neighbours, as in the papers.
    """

    printed: float
    needed: float
    source: str
    failing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a theorem prescribes. It gives the rounds up to a constant, which is taken as 1; they are rounded down."""

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
    """Make the bound; it has a value if no condition fails and it holds with positive probability."""
    failing += unless(failure < 1, f"a probability left to hold with: it may fail with {failure:.3g}")
    return Bound(of, None if failing else value, source, min(1.0, failure), failing)


def round_down(rounds: float) -> tuple[int, tuple[str, ...]]:
    """Round the number of rounds down, to at least one; a prescription below one is a failing condition."""
    return max(1, math.floor(rounds * (1 + 1e-12))), unless(
        rounds >= 1, f"T ≥ 1: the theorem prescribes {rounds:.3g} rounds, so n is too small"
    )
