"""Problems: what a theorem takes as known about a loss and its data. All of it is public, or assumed."""

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
        positive(n=self.n, d=self.d, lipschitz=self.lipschitz, smoothness=self.smoothness, gap=self.gap)


def positive(**values: float) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}; it is a finite number above 0.")


def decay(**values: float) -> None:
    """Refuse what is not a share: 0 ≤ value < 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise InputError(f"{name} is {value}; it is at least 0 and below 1.")


def log_inverse(delta: float) -> float:
    """ln(1/δ)."""
    if not 0 < delta < 1:
        raise InputError(f"delta is {delta}; these formulas need a probability above 0 and below 1.")
    return -math.log(delta)
