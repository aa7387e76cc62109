"""The problem: what a user said and what is publicly known of it. The plans of linear methods depend on nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from privopt.linear_model.defaults import Steps, default_rounds, default_steps
from privopt.linear_model.scaling import Bounds
from privopt.measure.samplers import Sampler, full_batch, poisson
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Loss
from privopt.postprocess.regularizers import Regularizer, nonconvex, ridge
from privopt.postprocess.side_information import PublicGradient
from privopt.privacy.accountants import Accountant

Penalty = Literal["ridge", "nonconvex"]


@dataclass(frozen=True)
class Settings:
    """What a user may say; `None` is left to the rule in `defaults`."""

    method: str = "dp-adam"
    clip_bound: float | None = None
    rounds: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    bounds: Bounds = None
    target_bounds: tuple[float, float] | None = None
    fit_intercept: bool = True
    alpha: float = 0.0
    penalty: Penalty = "ridge"
    accountant: Accountant = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own


@dataclass(frozen=True)
class Side:
    """What is known beside the rows: public gradients or a scale A (flat, with the intercept's), and how A makes rows longer."""

    public: PublicGradient | None
    scale: Vector | None
    scaled_norm: float  # of a typical row divided by A, with the intercept
    stability: float
    declared: Sequence[str] = ()
    paid_for: Sequence[str] = ()


@dataclass(frozen=True)
class Problem:
    """Public facts: no value of the data is among them."""

    settings: Settings
    loss: Loss
    size: int  # rows
    width: int  # coefficients per output, with the intercept
    row_norm: float  # of a typical row, with the intercept
    alone: float  # the noise multiplier with which one release costs what is left of the budget: Gaussian, or pure if δ = 0
    pure: bool = False  # δ = 0
    side: Side | None = None
    key: int = field(default=0, repr=False)  # secret, and no value of the data either: what cuts of the rows are drawn by

    @property
    def batch(self) -> float:
        """The expected number of rows of a round."""
        return float(min(self.settings.batch_size or self.size, self.size))

    @property
    def sampler(self) -> Sampler:
        """Every row, or Poisson batches if they are smaller."""
        return poisson(self.batch / self.size) if self.batch < self.size else full_batch()

    @property
    def regularizer(self) -> Regularizer | None:
        """The penalty on all coefficients but the intercept."""
        settings = self.settings
        if not settings.alpha:
            return None
        mask = np.ones((self.loss.outputs, self.width))
        if settings.fit_intercept:
            mask[:, -1] = 0.0
        return (ridge if settings.penalty == "ridge" else nonconvex)(settings.alpha, mask.ravel())

    def rounds(self, like: str) -> int:
        """How many, if a method like this one is not told."""
        return self.settings.rounds or default_rounds(like, size=self.size, batch=self.batch, alone=self.alone)

    def steps(self, like: str, rounds: int, noise_multiplier: float, **given: float | None) -> Steps:
        """How a method like this one clips and steps; what is `given` takes the place of what the user said."""
        said = {"clip_bound": self.settings.clip_bound, "learning_rate": self.settings.learning_rate}
        return default_steps(
            like,
            self.loss,
            size=self.size,
            batch=self.batch,
            width=self.width,
            row_norm=self.row_norm,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            **said | given,
        )

    @property
    def batch_phrase(self) -> str | int:
        """The batch size in words."""
        return "all rows" if self.batch == self.size else int(self.batch)
