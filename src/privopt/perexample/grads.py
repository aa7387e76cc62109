"""The whole protocol between a model and the private side.

Clipping needs two things of the per-example vectors, their norms and a weighted sum, so neither the vectors nor what they
are made of has to exist as an array. Arrays are NumPy's for linear models and torch's for networks.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
Array = Any  # of NumPy, or of torch
Rows = NDArray[Any] | None  # None: every row
Rule = Callable[[Any], Any]  # norms → weights


class PerExampleVectors(Protocol):
    """One vector per example: all that a clip needs."""

    def norms(self, order: int) -> Array:
        """The l1 or l2 norm of each; infinite or NaN where a vector is not finite."""
        ...

    def weighted_sum(self, weights: Array) -> Array:
        """Σ wᵢ gᵢ, flat. An example of weight 0 is absent, even if its vector is not finite."""
        ...

    def fold(self, rule: Rule, order: int, out: Array | None = None) -> Array:
        """Σ wᵢ gᵢ with weights that are a rule of the norms: what a clip asks for, in one pass over the examples.

        It is added to `out`, if that is given: noise may be there already.
        """
        ...


@runtime_checkable
class Layered(Protocol):
    """Vectors whose coordinates belong to named layers: the parameters of a network."""

    def fold_layers(self, rule: Callable[[dict[str, Any]], dict[str, Any]], order: int, out: Array | None = None) -> Array:
        """Σ wᵢ gᵢ (+ `out`), where weights are by layer and a rule of the norms by layer; in one pass over the examples."""
        ...


class PerExampleGrads(PerExampleVectors, Protocol):
    """One gradient per example: what a query needs. Diagonals and shifts are public, the same for every example."""

    def minus(self, other: Any, weight: float = 1.0) -> "PerExampleGrads":
        """gᵢ − weight · g′ᵢ, for the same examples at another point."""
        ...

    def scaled(self, diagonal: Array) -> "PerExampleGrads":
        """gᵢ ⊙ diagonal."""
        ...

    def shifted(self, vector: Array, weight: float = 1.0) -> "PerExampleGrads":
        """gᵢ + weight · vector."""
        ...


class Oracle(Protocol):
    """Per-example vectors of a model on its data. Some oracles can also tell `losses`: see `Objective`."""

    @property
    def size(self) -> int:
        """How many examples there are."""
        ...

    def __call__(self, parameters: Array, rows: Rows) -> PerExampleGrads:
        """The vectors of these rows at these parameters."""
        ...


class Objective(Oracle, Protocol):
    """An oracle that also knows what it is the gradient of."""

    def losses(self, parameters: Array, rows: Rows) -> Array:
        """The loss of each of these examples at these parameters."""
        ...


class Convex(Oracle, Protocol):
    """An oracle of convex losses, with constants that hold for every example that there could be, at all parameters."""

    @property
    def lipschitz(self) -> float:
        """The longest gradient."""
        ...

    @property
    def smoothness(self) -> float:
        """How fast a gradient changes, at most."""
        ...


def onto(out: Vector | None, total: Vector) -> Vector:
    """total, added to what is there already."""
    return total if out is None else out + total


class Materialized:
    """Per-example vectors that exist as an array of one row per example.

    >>> Materialized(np.array([[3.0, 4.0], [0.0, 1.0]])).norms(2)
    array([5., 1.])
    """

    def __init__(self, values: Vector) -> None:
        self.values = values.reshape(len(values), math.prod(values.shape[1:]))

    def norms(self, order: int) -> Vector:
        return np.linalg.norm(self.values, ord=order, axis=1)

    def weighted_sum(self, weights: Vector) -> Vector:
        present = weights != 0
        return weights[present] @ self.values[present]

    def fold(self, rule: Rule, order: int, out: Vector | None = None) -> Vector:
        return onto(out, self.weighted_sum(rule(self.norms(order))))

    def minus(self, other: "Materialized", weight: float = 1.0) -> "Materialized":
        return Materialized(self.values - weight * other.values)

    def scaled(self, diagonal: Vector) -> "Materialized":
        return Materialized(self.values * diagonal)

    def shifted(self, vector: Vector, weight: float = 1.0) -> "Materialized":
        return Materialized(self.values + weight * vector)
