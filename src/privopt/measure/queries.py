"""Queries: one vector per example, asked at points that are already public."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from privopt.measure.clips import Clip
from privopt.perexample.grads import Array, Oracle, PerExampleGrads, Rows


class Trajectory(NamedTuple):
    """What is public when a round begins: where the iterate is and where it was."""

    current: Array
    previous: Array


class Query(Protocol):
    """What is asked of each example."""

    def __call__(self, oracle: Oracle, rows: Rows, at: Trajectory) -> PerExampleGrads:
        """The vectors of these rows."""
        ...

    def __matmul__(self, clip: Clip) -> "Term":
        """The query with the clip that bounds it."""
        ...


@dataclass(frozen=True)
class Term:
    """weight × a clipped query. One example moves its sum by at most weight × the clip's bound."""

    weight: float
    query: Query
    clip: Clip

    def __rmul__(self, factor: float) -> "Term":
        return Term(factor * self.weight, self.query, self.clip)

    @property
    def bound(self) -> float:
        return abs(self.weight) * self.clip.bound


@dataclass(frozen=True)
class gradient:  # noqa: N801  # a constructor that reads as a phrase
    """The gradient of each example's loss at the current iterate.

    >>> from privopt.measure.clips import l2
    >>> (0.5 * (gradient() @ l2(2.0))).bound
    1.0
    """

    def __call__(self, oracle: Oracle, rows: Rows, at: Trajectory) -> PerExampleGrads:
        return oracle(at.current, rows)

    def __matmul__(self, clip: Clip) -> Term:
        return Term(1.0, self, clip)
