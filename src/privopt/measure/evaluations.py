"""Evaluations: how good predictions are, measured privately on held-out rows.

An evaluation is one release. A row casts one vote in a histogram of public cells (what it is × what was predicted), and has a few
numbers in [0, 1] that are summed (its loss). Everything that is reported is computed from these noisy sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privopt.errors import CompositionError
from privopt.measure.mechanisms import gaussian, laplace
from privopt.measure.randomness import Rng
from privopt.measure.units import Unit, each_person, each_row
from privopt.perexample.grads import Vector
from privopt.privacy.events import DpEvent
from privopt.privacy.ledger import Run

Places = NDArray[np.int64]


@dataclass(frozen=True)
class NoisySums:
    """Noisy counts and sums over `size` units; each has independent noise of this deviation and excess kurtosis."""

    counts: Vector
    sums: Vector
    size: int
    deviation: float
    kurtosis: float  # 3 of Laplace noise, 0 of Gaussian noise


@dataclass(frozen=True)
class HeldOutSums:
    """One noisy histogram of `cells` cells, together with `values` sums of numbers in [0, 1].

    **Guarantee** Query: Σ over units of x = (v, y₁ − ½, …, y_d − ½). v has a 1 in the row's cell and 0 elsewhere (cells are
    disjoint); y is clipped to [0, 1], and what is not a number counts as 1. So ‖x‖₁ ≤ 1 + d/2 and ‖x‖₂ ≤ √(1 + d/4) (without
    cells: d/2 and √d/2), which is how far a row that is added or removed (zero-out: n is public) moves the sums. A row that is
    replaced moves them by ‖x − x'‖ ≤ 2‖x‖, which is how accountants price a replacement. (In the histogram alone two cells
    change by 1, which in l2 is √2, not 2: the price is right in l1, and an upper bound in l2.)

    Unit `each_person`: a person's vector is the mean of x over that person's rows, whose norm is at most that of the longest, so
    the bounds are the same, however many rows a person has. Numbers are centred at ½ because that halves the bound; n/2 is added
    to the noisy sums, and n, the number of units, is public.

    All rows take part. Event: Laplace(z) or Gaussian(z), paid before the rows are summed.

    >>> HeldOutSums(8, 1, laplace(2.0)).bound
    1.5
    >>> HeldOutSums(0, 4, gaussian(2.0)).bound
    1.0
    """

    cells: int
    values: int
    mechanism: laplace | gaussian
    unit: Unit = field(default=each_row())

    def __post_init__(self) -> None:
        if not isinstance(self.unit, each_row | each_person):
            raise CompositionError(f"rows are summed by row or by person, not by {self.unit.name}.")

    @property
    def bound(self) -> float:
        """How far one unit can move the sums, in the norm of the mechanism."""
        return sensitivity(self.cells, self.values, self.mechanism.order)

    @property
    def event(self) -> DpEvent:
        """What it costs."""
        return self.mechanism.event

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of each sum."""
        return self.bound * self.mechanism.noise_multiplier * (math.sqrt(2) if self.mechanism.order == 1 else 1.0)

    def total(self, votes: Places, values: Vector, persons: Places | None = None) -> tuple[Vector, int]:
        """Sum the units' vectors: the answer without noise, and the number of units.

        `votes` has the cell of each row, `values` its numbers, and `persons` the number, from 0, of the person it belongs to.
        """
        if (persons is None) == isinstance(self.unit, each_person):
            raise CompositionError(f"the unit is {self.unit.name}: persons={'…' if persons is None else 'None'} is needed.")
        rows = len(values)
        weights = np.ones(rows) if persons is None else 1 / np.bincount(persons)[persons]
        size = rows if persons is None else int(persons.max()) + 1
        counts = np.bincount(np.clip(votes, 0, self.cells - 1), weights, minlength=self.cells) if self.cells else np.zeros(0)
        clipped = np.clip(np.nan_to_num(values, nan=1.0), 0.0, 1.0)
        return np.concatenate([counts, weights @ (clipped - 0.5)]), size

    def measure(self, votes: Places, values: Vector, persons: Places | None, *, spending: Run, rng: Rng) -> NoisySums:
        """Pay, sum and add noise."""
        pay([self], spending)
        return self.answer(votes, values, persons, rng)

    def answer(self, votes: Places, values: Vector, persons: Places | None, rng: Rng) -> NoisySums:
        """Sum and add noise; it was paid for."""
        total, size = self.total(votes, values, persons)
        noisy = self.mechanism.release(total, self.bound, rng)
        kurtosis = 3.0 if self.mechanism.order == 1 else 0.0
        return NoisySums(noisy[: self.cells], noisy[self.cells :] + size / 2, size, self.deviation, kurtosis)


def pay(queries: Sequence[HeldOutSums], spending: Run) -> None:
    """Pay for all of them together, or for none."""
    events = [query.event for query in queries]
    spending.affordable(events)  # a ledger without charges may reserve its cap for these
    spending.pay(events)


def sensitivity(cells: int, values: int, order: Literal[1, 2]) -> float:
    """How far one unit moves the sums: one vote, and `values` numbers in [−½, ½]."""
    vote = 1.0 if cells else 0.0
    return vote + values / 2 if order == 1 else math.sqrt(vote + values / 4)
