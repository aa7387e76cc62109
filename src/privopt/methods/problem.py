"""The problem: what a user asked for and what is publicly known. The defaults of methods depend on nothing else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from privopt.measure.clips import Clip
from privopt.measure.samplers import Sampler, full_batch, poisson
from privopt.measure.units import Unit, each_row
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.side_information import PublicGradient
from privopt.postprocess.updates import Schedule

ModelKind = Literal["linear", "network", "federated"]
COHORT = 1000  # users of a round: fewer have more noise, more only take time
NETWORK_BATCH = 2048  # smaller batches amplify no better, larger ones only take time


@dataclass(frozen=True)
class LossFacts:
    """What is known of a loss, for every example there could be."""

    outputs: int  # scores of an example
    reach: float  # of useful scores
    residual: float  # of a typical example before training: the length of ∂loss/∂scores
    largest: float  # residual that occurs; the targets of a regression lie in [−1, 1]
    curvature: float  # how fast residuals change with the scores, at most
    steepness: float  # the longest residual there could be; infinite for squared loss
    at_zero: float  # the largest loss of an example whose scores are all 0


def logistic_facts() -> LossFacts:
    """Two classes, by the logistic loss of one score."""
    return LossFacts(1, 1.0, 0.5, 1.0, 0.25, 1.0, math.log(2))


def multinomial_facts(classes: int) -> LossFacts:
    """Several classes, by the cross-entropy of their scores; of a guess among K there is log K to gain."""
    return LossFacts(classes, math.log2(classes), math.sqrt(0.5), math.sqrt(2), 0.5, math.sqrt(2), math.log(classes))


def huber_facts(threshold: float) -> LossFacts:
    """A number scaled to [−1, 1], by Huber's loss."""
    at_zero = 0.5 if threshold >= 1 else threshold * (1 - threshold / 2)
    return LossFacts(1, 0.25, min(0.2, threshold), threshold, 1.0, threshold, at_zero)


def squared_facts() -> LossFacts:
    """A number scaled to [−1, 1], by squared loss."""
    return LossFacts(1, 0.25, 0.2, 1.0, 1.0, math.inf, 0.5)


@dataclass(frozen=True)
class Choices:
    """What a user may choose for any method; `None` is left to the method's defaults."""

    clip_bound: float | Clip | None = None
    rounds: int | None = None
    batch_size: int | None = None
    learning_rate: float | Schedule | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own

    @property
    def bound(self) -> float | None:
        """The clip bound as a number."""
        clip = self.clip_bound
        return clip if clip is None or isinstance(clip, int | float) else clip.bound

    @property
    def rate(self) -> float | None:
        """The learning rate of the first round."""
        return self.learning_rate(0) if callable(self.learning_rate) else self.learning_rate


@dataclass(frozen=True)
class SideFacts:
    """What is known beside the private rows: public gradients or a scale A, and how A changes the length of a row."""

    public: PublicGradient | None
    scale: Any  # flat, with the intercept's
    scaled_norm: float  # of a typical row divided by A, with the intercept
    stability: float
    declared: Sequence[str] = ()
    paid_for: Sequence[str] = ()


@dataclass(frozen=True)
class Problem:
    """Public facts: no value of the data is among them."""

    model: ModelKind
    chosen: Choices
    loss: LossFacts
    size: int  # what is drawn: examples; persons, if those are the unit, or their rows; users of a federation
    width: int  # directions that matter: coefficients per output with the intercept; for a network inputs + 1
    dimension: int  # all parameters
    row_norm: float  # the length of a typical gradient of a score: of a row with its intercept, for a linear model
    single_release_noise: float  # with which one release would cost what is left of the budget: Gaussian, or pure without δ
    pure: bool = False  # δ = 0
    stable_move: float = math.inf  # how far each parameter may move at random before gradients outgrow their start
    regularizer: Regularizer | None = None
    ridge: float = 0.0  # the strength of a ridge on every parameter; 0 if there is none, or another regulariser
    side: SideFacts | None = None
    unit: Unit = field(default=each_row())  # whose rows are clipped together; a federation's are its users' anyway
    key: int = field(default=0, repr=False)  # secret, and no value of the data either: disjoint batches are drawn by it

    @property
    def batch(self) -> float:
        """The expected number of examples of a round, or of users."""
        usual = {"linear": self.size, "network": NETWORK_BATCH, "federated": COHORT}[self.model]
        return float(min(self.chosen.batch_size or usual, self.size))

    @property
    def sampler(self) -> Sampler:
        """Every example, or Poisson batches if they are smaller."""
        return poisson(self.batch / self.size) if self.batch < self.size else full_batch()

    @property
    def on_all_examples(self) -> "Problem":
        """The same problem for a method that uses every example in every round."""
        return self.choosing(batch_size=self.size)

    def choosing(self, **choices: Any) -> "Problem":
        """The same problem with other choices."""
        return replace(self, chosen=replace(self.chosen, **choices))

    @property
    def smoothness(self) -> float:
        """Of a typical example's loss as a function of the parameters."""
        return self.loss.curvature * self.row_norm**2
