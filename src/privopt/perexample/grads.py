"""The protocol between a model and the private side.

A clip is a value that says by which factor a vector of a given norm is multiplied. It is sent to the vectors, which answer with
their clipped sum. They need norms and a weighted sum for that, so they do not have to exist as an array. Arrays are NumPy's for
linear models and torch's for networks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

Vector = NDArray[Any]
Array = Any  # of NumPy, or of torch
Rows = NDArray[Any] | None  # None: every row


class ClipFactors(Protocol):
    """What vectors are clipped by: a pure function of their norms."""

    @property
    def order(self) -> Literal[1, 2]:
        """The order of the norm."""
        ...

    def factors(self, norms: Array, weight: float) -> Array:
        """weight × the factor that shortens a vector of each norm. What it gives for a norm that is not finite is not used."""
        ...


class LayerFactors(ABC):
    """Clip factors of vectors whose coordinates belong to named layers; `factors` are those of vectors of one layer."""

    @abstractmethod
    def layer_factors(self, norms: Mapping[str, Array], weight: float) -> dict[str, Array]:
        """weight × the factors of each layer, from the norms of all layers."""


def clip_weights(clip: ClipFactors, norms: Array, weight: float = 1.0) -> Array:
    """weight × the clip's factors; 0 where a norm is not finite: that vector is absent."""
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        factors = clip.factors(norms, weight)
        return factors if math.isfinite(norms.dot(norms)) else where_finite(norms, factors)  # (a sum takes longer)


def where_finite(norms: Array, factors: Array) -> Array:
    """The factors; 0 where a norm is not finite."""
    xp = array_namespace(norms)
    return xp.where(xp.isfinite(norms), factors, xp.zeros_like(factors))


class PerExampleVectors(Protocol):
    """One vector per example."""

    def norms(self, order: int) -> Array:
        """The l1 or l2 norm of each vector; infinite or NaN if the vector is not finite."""
        ...

    def weighted_sum(self, weights: Array) -> Array:
        """Σ wᵢ gᵢ, flat. An example of weight 0 is absent, even if its vector is not finite."""
        ...

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Array | None = None) -> Array:
        """weight × Σ of the clipped vectors, flat; added to `out` if that is given, which may hold noise already.

        A vector that is not finite is absent.
        """
        total = self.weighted_sum(clip_weights(clip, self.norms(clip.order), weight))
        return total if out is None else out + total

    def count_within(self, bound: float) -> float:
        """How many vectors have an l2 norm of at most `bound`."""
        return int((self.norms(2) <= bound).sum())


class PerExampleGrads(PerExampleVectors, Protocol):
    """One gradient per example, with the operations of queries. Diagonals and shifts are public, the same for every example."""

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
    """Per-example vectors of a model on its data."""

    @property
    def size(self) -> int:
        """The number of examples."""
        ...

    def __call__(self, parameters: Array, rows: Rows) -> PerExampleGrads:
        """The vectors of these rows at these parameters."""
        ...


class Objective(Oracle, Protocol):
    """An oracle that also gives losses."""

    def losses(self, parameters: Array, rows: Rows) -> Array:
        """The loss of each of these examples at these parameters."""
        ...


class Convex(Oracle, Protocol):
    """An oracle of convex losses, with constants that hold for every possible example and all parameters."""

    @property
    def lipschitz(self) -> float:
        """The largest possible norm of a gradient."""
        ...

    @property
    def smoothness(self) -> float:
        """The largest rate at which a gradient changes."""
        ...


class Materialized(PerExampleVectors):
    """Per-example vectors that exist as an array of one row per example.

    >>> Materialized(np.array([[3.0, 4.0], [0.0, 1.0]])).norms(2)
    array([5., 1.])
    """

    def __init__(self, values: Vector) -> None:
        self.values = values.reshape(len(values), math.prod(values.shape[1:]))

    def norms(self, order: int) -> Vector:
        with np.errstate(all="ignore"):  # a warning would tell something about the data
            return np.linalg.norm(self.values, ord=order, axis=1)

    def weighted_sum(self, weights: Vector) -> Vector:
        present = weights != 0
        return weights[present] @ self.values[present]

    def minus(self, other: "Materialized", weight: float = 1.0) -> "Materialized":
        return Materialized(self.values - weight * other.values)

    def scaled(self, diagonal: Vector) -> "Materialized":
        return Materialized(self.values * diagonal)

    def shifted(self, vector: Vector, weight: float = 1.0) -> "Materialized":
        return Materialized(self.values + weight * vector)
