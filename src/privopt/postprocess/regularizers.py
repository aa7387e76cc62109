"""Regularisers: terms of the objective that do not depend on data. They are public, so they are added after the noise."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from privopt.errors import CompositionError
from privopt.needs import Needs, length_of


class Regularizer(Protocol):
    """A public term of the objective."""

    def value(self, parameters: Any) -> float:
        """What it adds to the mean loss."""
        ...

    def gradient(self, parameters: Any) -> Any:
        """Its gradient, where the iterate is."""
        ...


@dataclass(frozen=True)
class ridge:  # noqa: N801  # a constructor that reads as a phrase
    """(α/2) Σ mⱼ θⱼ²; `mask` is 0 for parameters that are not regularised, such as intercepts."""

    strength: float
    mask: Any = 1.0

    @property
    def needs(self) -> Needs:
        return length_of(self.mask, "the mask of ridge")

    def value(self, parameters: Any) -> float:
        return self.strength / 2 * float((self.mask * parameters**2).sum())

    def gradient(self, parameters: Any) -> Any:
        return self.strength * self.mask * parameters


@dataclass(frozen=True)
class nonconvex:  # noqa: N801
    """α Σ mⱼ θⱼ²/(1 + θⱼ²), the regulariser of the DP-SRM experiments."""

    strength: float
    mask: Any = 1.0

    @property
    def needs(self) -> Needs:
        return length_of(self.mask, "the mask of nonconvex")

    def value(self, parameters: Any) -> float:
        return self.strength * float((self.mask * parameters**2 / (1 + parameters**2)).sum())

    def gradient(self, parameters: Any) -> Any:
        return 2 * self.strength * self.mask * parameters / (1 + parameters**2) ** 2


def strong_convexity(regularizer: Regularizer | None) -> float:
    """μ, if the term makes every convex objective μ-strongly convex: the strength of a ridge on all parameters; 0 for no term.

    >>> strong_convexity(ridge(0.1))
    0.1
    """
    if regularizer is None:
        return 0.0
    if not isinstance(regularizer, ridge):
        raise CompositionError(
            f"{type(regularizer).__name__} is not convex, so the stability of descent on it is not known. Use ridge."
        )
    if not np.all(np.asarray(regularizer.mask) == 1.0):
        raise CompositionError(
            "this ridge does not cover all parameters, so the objective is not strongly convex in them. Use ridge(strength)."
        )
    return regularizer.strength
