"""Losses of linear models, by their residual: the derivative of one example's loss with respect to its scores.

An example whose target is NaN has neither a loss nor a residual: both are NaN, so that clips leave it out.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import expit, log_softmax, softmax

from privopt.perexample.grads import Vector


class Loss(Protocol):
    """The per-example gradient of a linear model is residual × row."""

    @property
    def outputs(self) -> int:
        """1: scores and residuals are vectors; more: one column per class."""
        ...

    @property
    def steepness(self) -> float:
        """The largest l2 norm of a residual; infinite if there is no bound."""
        ...

    @property
    def curvature(self) -> float:
        """The largest rate at which residuals change with the scores. Every loss here is convex in its scores."""
        ...

    def residuals(self, scores: Vector, targets: Vector) -> Vector:
        """∂loss/∂scores of each example."""
        ...

    def values(self, scores: Vector, targets: Vector) -> Vector:
        """The loss of each example."""
        ...


@dataclass(frozen=True)
class Logistic:
    """log(1 + e^s) − y s for y in {0, 1}; |residual| ≤ 1, curvature ≤ 1/4."""

    outputs: int = 1
    steepness: ClassVar[float] = 1.0
    curvature: ClassVar[float] = 0.25

    def residuals(self, scores: Vector, targets: Vector) -> Vector:
        probabilities: Vector = expit(scores)
        return probabilities - targets

    def values(self, scores: Vector, targets: Vector) -> Vector:
        losses: Vector = np.logaddexp(0.0, scores) - targets * scores
        return losses


@dataclass(frozen=True)
class Multinomial:
    """Cross-entropy of softmax for classes 0 … k−1; ‖residual‖ ≤ √2, curvature ≤ 1/2.

    The residual is p − e, with p ≥ 0 of sum 1 and e a unit vector: ‖p − e‖² = ‖p‖² − 2pₑ + 1 ≤ 2. Its derivative diag(p) − ppᵀ
    has rows of absolute sum 2pⱼ(1 − pⱼ) ≤ 1/2, so no eigenvalue above 1/2 (Gershgorin).
    """

    outputs: int
    steepness: ClassVar[float] = math.sqrt(2)
    curvature: ClassVar[float] = 0.5

    def residuals(self, scores: Vector, targets: Vector) -> Vector:
        residuals: Vector = softmax(scores, axis=1)
        residuals[np.arange(len(targets)), _places(targets)] -= 1.0
        residuals[np.isnan(targets)] = np.nan
        return residuals

    def values(self, scores: Vector, targets: Vector) -> Vector:
        losses: Vector = -log_softmax(scores, axis=1)[np.arange(len(targets)), _places(targets)]
        losses[np.isnan(targets)] = np.nan
        return losses


@dataclass(frozen=True)
class Squared:
    """(s − y)²/2; unbounded residuals, curvature 1."""

    outputs: int = 1
    steepness: ClassVar[float] = math.inf
    curvature: ClassVar[float] = 1.0

    def residuals(self, scores: Vector, targets: Vector) -> Vector:
        return scores - targets

    def values(self, scores: Vector, targets: Vector) -> Vector:
        return (scores - targets) ** 2 / 2


@dataclass(frozen=True)
class Huber:
    """Squared up to |s − y| = threshold, then linear; |residual| ≤ threshold, curvature ≤ 1."""

    threshold: float
    outputs: int = 1
    curvature: ClassVar[float] = 1.0

    @property
    def steepness(self) -> float:
        return self.threshold

    def residuals(self, scores: Vector, targets: Vector) -> Vector:
        return np.clip(scores - targets, -self.threshold, self.threshold)

    def values(self, scores: Vector, targets: Vector) -> Vector:
        distance = np.abs(scores - targets)
        losses: Vector = np.where(distance <= self.threshold, distance**2 / 2, self.threshold * (distance - self.threshold / 2))
        return losses


def _places(targets: Vector) -> Vector:
    """The column of each target's class; an arbitrary one for a target without a class."""
    return np.nan_to_num(targets).astype(int)
