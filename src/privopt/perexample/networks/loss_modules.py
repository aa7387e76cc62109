"""Losses of torch with one value for each example."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privopt.perexample.networks.unsupported import UnsupportedLoss

Loss = Callable[..., Tensor]  # (output, *targets) → (examples,)

CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
ELEMENTWISE = (  # output and targets have one shape; torch would broadcast them, and mix examples
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.HuberLoss,
    nn.KLDivLoss,
    nn.L1Loss,
    nn.MSELoss,
    nn.PoissonNLLLoss,
    nn.SmoothL1Loss,
    nn.SoftMarginLoss,
)
CHECKED = CLASSES + ELEMENTWISE


def per_example(loss: Loss) -> Loss:
    """The loss without its reduction over the batch.

    A loss module of torch is copied with reduction="none"; the values of one example (its pixels, its time steps) are averaged,
    or summed if the module sums. Class weights scale an example's loss; they are not normalised over the batch, which would mix
    examples. Steps with the ignored class are left out of an example's average. Any other function must give one value for each
    example itself.

    >>> import torch
    >>> per_example(nn.MSELoss())(torch.ones(2, 4), torch.zeros(2, 4))
    tensor([1., 1.])
    """
    if not isinstance(loss, nn.Module) or not hasattr(loss, "reduction"):
        return loss
    if loss.reduction not in ("mean", "sum", "none"):
        raise UnsupportedLoss(
            f"{type(loss).__name__}(reduction={loss.reduction!r}) has no per-example form: use 'mean', 'sum' or 'none'."
        )
    inner = copy.deepcopy(loss)
    inner.__dict__["reduction"] = "none"
    averaged = loss.reduction != "sum"
    ignored = getattr(loss, "ignore_index", None)

    def values(output: Any, *targets: Any) -> Tensor:
        check_targets(loss, output, *targets, labels=isinstance(output, Tensor) and output.device.type != "cpu")
        try:
            found: Tensor = inner(output, *targets)
        except IndexError:  # a label that is no class; off the CPU it would end the process
            check_targets(loss, output, *targets)
            raise
        if found.ndim == 0:
            raise UnsupportedLoss(f'{type(loss).__name__} gives one value for a batch even with reduction="none".')
        if isinstance(loss, nn.CTCLoss) and loss.reduction == "mean":
            return found / torch.as_tensor(targets[2], device=found.device).clamp_min(1)  # as torch does before it averages
        if found.ndim == 1:
            return found
        rows = found.flatten(1)
        if averaged and ignored is not None and targets[0].shape == found.shape:
            counts = (targets[0] != ignored).flatten(1).sum(1)
            return rows.sum(1) / counts.clamp_min(1)
        return rows.mean(1) if averaged else rows.sum(1)

    values.module = inner  # type: ignore[attr-defined]  # whose class weights have a precision, too
    return values


def check_targets(loss: Loss, output: Any, *targets: Any, labels: bool = True) -> None:
    """Validate the shapes and types of targets for a loss of torch; with `labels` also the range of labels.

    Messages say which values are valid, and never quote one.
    """
    if len(targets) != 1 or not isinstance(output, Tensor) or not isinstance(targets[0], Tensor):
        return
    (target,), kind = targets, type(loss).__name__
    if isinstance(loss, CHECKED) and (not output.ndim or output.shape[0] != target.shape[0]):
        raise UnsupportedLoss(
            f"the model's output has shape {tuple(output.shape)} for a batch of {target.shape[0]}: the examples must be the "
            "first dimension. Keep the batch first everywhere (batch_first=True), and do not sum or average over it."
        )
    if isinstance(loss, CLASSES) and output.ndim > 1:
        if target.is_floating_point() and isinstance(loss, nn.CrossEntropyLoss) and target.shape == output.shape:
            return  # probabilities
        if target.dtype not in (torch.int64, torch.uint8):
            raise UnsupportedLoss(f"{kind} takes classes as torch.int64, but the targets are {target.dtype}. Use targets.long().")
        wanted = (output.shape[0], *output.shape[2:])
        if target.shape != wanted:
            raise UnsupportedLoss(
                f"{kind} takes one class for each of {_shape(output)} without dimension 1, but the targets are {_shape(target)}."
            )
        if output.shape[1] == 1:
            raise UnsupportedLoss(
                f"{kind} of one output is the same for every label. Give the model one output for each class, or use "
                "BCEWithLogitsLoss."
            )
        if labels:
            _check_range(loss, output.shape[1], target)
    if isinstance(loss, ELEMENTWISE):
        if target.shape != output.shape:
            raise UnsupportedLoss(
                f"{kind} compares numbers one by one, but the output is {_shape(output)} and the targets are {_shape(target)}. "
                "Give both one shape: output.squeeze(1), or targets.unsqueeze(1)."
            )
        if isinstance(loss, nn.BCELoss | nn.BCEWithLogitsLoss) and not target.is_floating_point():
            raise UnsupportedLoss(f"{kind} takes probabilities, but the targets are {target.dtype}. Use targets.float().")


def _check_range(loss: Loss, classes: int, target: Tensor) -> None:
    if not target.numel():
        return
    lowest, highest = target.aminmax()
    if int(lowest) >= 0 and int(highest) < classes:
        return
    real = target[target != getattr(loss, "ignore_index", -100)]
    if real.numel() and not (bool(real.min() >= 0) and bool(real.max() < classes)):
        raise UnsupportedLoss(
            f"{type(loss).__name__} on {classes} outputs takes the classes 0 … {classes - 1}, but some label is outside. "
            "Count classes from 0, and give the model one output for each."
        )


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(['examples', *map(str, tensor.shape[1:])])})"
