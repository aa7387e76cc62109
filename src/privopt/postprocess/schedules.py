"""Schedules: the step size of each round, a public function of its number."""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """The same in every round."""
    return lambda round_: value


def step_decay(value: float, *, factor: float, every: int) -> Schedule:
    """Multiplied by `factor` after each `every` rounds.

    >>> [step_decay(1.0, factor=0.1, every=2)(t) for t in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """
    return lambda round_: value * factor ** (round_ // every)


def inverse_sqrt(value: float) -> Schedule:
    """value/√t in round t = 1, 2, …"""
    return lambda round_: value / math.sqrt(round_ + 1)


def inverse(value: float) -> Schedule:
    """value/t in round t = 1, 2, …"""
    return lambda round_: value / (round_ + 1)


def as_schedule(rate: float | Schedule) -> Schedule:
    """A number is a constant schedule."""
    return rate if callable(rate) else constant(rate)
