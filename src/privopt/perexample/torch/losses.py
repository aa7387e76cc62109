"""Losses: one value for each example."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from privopt.perexample.torch.errors import UnsupportedLoss

Loss = Callable[..., Tensor]  # (output, *targets) → (examples,)


def per_example(loss: Loss) -> Loss:
    """The loss without its reduction over the batch.

    A loss module of torch is made again with reduction="none"; what is left of one example (its pixels, its time steps) is
    averaged, or summed if the module sums. Class weights then scale an example's loss; they are not normalised over the batch,
    which would mix examples. Steps with the ignored class are left out of an example's average. Any other function must give one
    value for each example itself.

    >>> import torch
    >>> per_example(nn.MSELoss())(torch.ones(2, 4), torch.zeros(2, 4))
    tensor([1., 1.])
    """
    if not isinstance(loss, nn.Module) or not hasattr(loss, "reduction"):
        return loss
    if loss.reduction not in ("mean", "sum", "none"):
        raise UnsupportedLoss(
            f"{type(loss).__name__}(reduction={loss.reduction!r}) cannot be taken apart: use 'mean', 'sum' or 'none'."
        )
    inner = copy.deepcopy(loss)
    inner.__dict__["reduction"] = "none"
    averaged = loss.reduction != "sum"
    ignored = getattr(loss, "ignore_index", None)

    def values(output: Any, *targets: Any) -> Tensor:
        found: Tensor = inner(output, *targets)
        if found.ndim == 0:
            raise UnsupportedLoss(f'{type(loss).__name__} gives one value for a batch even with reduction="none".')
        if found.ndim == 1:
            return found
        rows = found.flatten(1)
        if averaged and ignored is not None and targets[0].shape == found.shape:
            counts = (targets[0] != ignored).flatten(1).sum(1)
            return rows.sum(1) / counts.clamp_min(1)
        return rows.mean(1) if averaged else rows.sum(1)

    return values
