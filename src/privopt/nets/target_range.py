"""The targets of a regression: a declared range, which the default rule needs, and predictions in the targets' own unit.

The rule takes targets to lie in [−1, 1]. A declared range [low, high] is mapped to it, t ↦ (t − mid)/half, and what the model
answers is mapped back. Both are public functions of one number, so they cost nothing; targets outside are clipped to the range.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import unwrap
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor, nn

from privopt.errors import InputError, warn
from privopt.perexample.networks.loss_modules import CLASSES, per_example

REGRESSIONS = (nn.MSELoss, nn.HuberLoss, nn.SmoothL1Loss, nn.L1Loss)
REGRESSION_FUNCTIONS = ("mse_loss", "huber_loss", "smooth_l1_loss", "l1_loss")
TAKEN = "that targets lie in [-1, 1], for which the default clip bound and learning rate are made"


@dataclass(frozen=True)
class TargetRange:
    """Where the targets lie, by declaration."""

    low: float
    high: float

    @classmethod
    def given(cls, declared: Any, loss: Callable[..., Tensor]) -> Self | None:
        """Validate what a user declared."""
        if declared is None:
            return None
        if isinstance(loss, (*CLASSES, nn.BCELoss, nn.BCEWithLogitsLoss)):
            raise InputError(f"target_range is for regressions, but {type(loss).__name__} learns classes. Leave it out.")
        if isinstance(loss, nn.PoissonNLLLoss):
            raise InputError(
                "target_range maps targets to [-1, 1], but PoissonNLLLoss needs counts. Leave it out, and say clip_bound and "
                "learning_rate."
            )
        ends = tuple(declared) if isinstance(declared, tuple | list) else ()
        if len(ends) != 2 or not all(isinstance(end, Real) and math.isfinite(end) for end in ends) or not ends[0] < ends[1]:
            raise InputError(
                f"target_range is {declared!r}, but it is (low, high), two finite numbers that are public: where targets lie."
            )
        return cls(float(ends[0]), float(ends[1]))

    @property
    def middle(self) -> float:
        """What the answer 0 stands for."""
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> float:
        """What the answer 1 stands for, above the middle."""
        return self.high / 2 - self.low / 2

    def loss(self, loss: Callable[..., Tensor]) -> Callable[[Any, Tensor], Tensor]:
        """The loss on targets that are mapped to [−1, 1]."""
        each, middle, half = per_example(loss), self.middle, self.half

        def ranged(output: Any, targets: Tensor) -> Tensor:
            if not isinstance(output, Tensor):
                raise InputError(
                    f"target_range maps what the model answers, a tensor, but this one answers with a {type(output).__name__}. "
                    "Let it give back the tensor alone."
                )
            kind = targets.dtype if targets.is_floating_point() else torch.get_default_dtype()
            return each(output, ((targets - middle) / half).clamp(-1, 1).to(kind))

        ranged.__wrapped__ = loss  # type: ignore[attr-defined]  # what kind of loss it is, for the default rule
        return ranged

    def model(self, model: nn.Module) -> "InRange":
        """The model, whose answers are in the unit of the targets."""
        return InRange(model, self.middle, self.half)


class InRange(nn.Module):
    """A model that was trained on targets mapped to [−1, 1]; its answers are mapped back.

    >>> InRange(nn.Identity(), 100.0, 50.0)(torch.tensor([-1.0, 0.5]))
    tensor([ 50., 125.])
    """

    def __init__(self, model: nn.Module, middle: float, scale: float) -> None:
        super().__init__()
        self.model, self.middle, self.scale = model, middle, scale

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        answer: Tensor = self.middle + self.scale * self.model(*inputs, **named)
        return answer


def is_regression(loss: Callable[..., Tensor]) -> bool:
    """Whether it is a loss of torch that compares numbers."""
    loss = unwrap(loss)
    return isinstance(loss, REGRESSIONS) or getattr(loss, "__name__", "") in REGRESSION_FUNCTIONS


def warn_of_unit_targets() -> None:
    """Say what the default rule takes targets to be, whatever they are: nothing is read for it."""
    warn(
        "targets are taken to lie in [-1, 1], for which the default clip bound and learning rate are made; targets far outside "
        "are hardly learnt. Say target_range=(low, high), public numbers, and fit maps targets to it and predictions back."
    )
