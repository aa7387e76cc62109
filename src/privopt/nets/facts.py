"""Facts of a network: what the default rules may know of any model and its loss, measured on made-up examples.

For research there are norms and clipped sums of one batch's own gradients. These are **not private**: no noise is added.
"""

import math
from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from privopt.measure.clips import l2
from privopt.methods.problem import LossFacts, huber_facts, logistic_facts, multinomial_facts, squared_facts
from privopt.perexample.networks import TorchGrads, TorchOracle, per_example_gradients
from privopt.perexample.networks.examples import leaves, make_up, move_to_device, possible_kinds, rows_of
from privopt.perexample.networks.loss_modules import Loss
from privopt.perexample.networks.model_state import ModelState, evaluation_mode
from privopt.perexample.networks.rng import RngState

PROBES = 8  # made-up examples
GROWTH = 40.0  # of a gradient, beyond which the neighbourhood of the start is left
HALVINGS = 12


def facts_of_loss(loss: Callable[..., Tensor], outputs: int) -> LossFacts:
    """By the loss module, also inside of a wrapper; one that is not known counts as logistic, whose residuals are at most 1."""
    loss = unwrap(loss)
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) or getattr(loss, "__name__", "") in ("cross_entropy", "nll_loss"):
        return multinomial_facts(max(outputs, 2))
    if isinstance(loss, nn.MSELoss) or getattr(loss, "__name__", "") == "mse_loss":
        return squared_facts()
    if isinstance(loss, nn.HuberLoss):
        return huber_facts(loss.delta)
    if isinstance(loss, nn.SmoothL1Loss):
        return huber_facts(getattr(loss, "beta", 0.0) or 1.0)
    return logistic_facts()


def count_inputs(inputs: Any) -> int:
    """Numbers that an example has as inputs, from a batch of one."""
    return sum(x.numel() for x in leaves(inputs) if isinstance(x, Tensor))


def probe_gradients(model: nn.Module, inputs: Any) -> tuple[TorchGrads, int]:
    """The gradients of one score on made-up examples like `inputs`, a batch of one; and how many scores an example has."""
    device = next(model.parameters()).device
    first, generator = move_to_device(rows_of(inputs, slice(0, 1)), device), torch.Generator().manual_seed(0)
    outputs = 1

    def one_score(output: Any, _: Any) -> Tensor:
        nonlocal outputs
        scores = next(x for x in leaves(output) if isinstance(x, Tensor) and x.is_floating_point())
        outputs = scores.shape[1] if scores.ndim > 1 else 1
        return scores.reshape(len(scores), outputs, -1).mean(2)[:, 0]

    *others, plainest = possible_kinds(first)
    start = ModelState(model)
    for kind in (*others, plainest):
        try:
            with RngState(device).replay(), evaluation_mode(model), torch.enable_grad():
                made_up = make_up(first, PROBES, generator, kind=kind)
                return per_example_gradients(model, one_score, made_up, torch.zeros(PROBES, device=device)), outputs
        except (RuntimeError, IndexError, ValueError):
            if kind is plainest:
                raise
        finally:
            start.restore()
    raise AssertionError("kinds() names at least one kind")


def gradient_facts(model: nn.Module, inputs: Any) -> tuple[float, int]:
    """The typical length of a score's gradient, and how many scores an example has; 1 and 1 where examples cannot be made up.

    What is not a tensor, text say, cannot be made up: the values of an example would decide.
    """
    if not all(isinstance(x, Tensor) for x in leaves(inputs)):
        return 1.0, 1
    grads, outputs = probe_gradients(model, inputs)
    return typical_norm(grads), outputs


def find_stable_move(parameters: Sequence[nn.Parameter], measure: Callable[[], float], typical: float) -> float:
    """How far parameters may move at random while a gradient is at most `GROWTH` times its typical length; infinite if κ = 2 may.

    `measure` gives the typical length where the parameters are. Nothing here depends on data.
    """
    generator, far = torch.Generator().manual_seed(0), 2 / typical  # κ/G: the farthest that the rule would go
    start = [parameter.detach().clone() for parameter in parameters]
    directions = [torch.randn(value.shape, generator=generator).to(value) for value in start]
    try:
        for halvings in range(HALVINGS):
            move = far / 2**halvings
            for parameter, value, direction in zip(parameters, start, directions, strict=True):
                parameter.data.copy_(value + move * direction)
            if measure() <= GROWTH * typical:
                return move if halvings else math.inf
        return move
    finally:
        for parameter, value in zip(parameters, start, strict=True):
            parameter.data.copy_(value)


def typical_norm(grads: TorchGrads) -> float:
    """The root mean square length of gradients that are finite; 1 if none is."""
    norms = grads.norms().double()
    found = norms[norms.isfinite() & (norms > 0)]
    return float(found.square().mean().sqrt()) if len(found) else 1.0


# ---------------------------------------------------------------- one batch, not private


def per_example_norms(model: nn.Module, loss: Loss, inputs: Any, targets: Any = None) -> Tensor:
    """‖∇ lossᵢ‖₂ for each example of a batch. **Not private**: norms of raw gradients.

    A model that mixes examples is refused, as it is by `TorchOracle`.

    >>> import torch
    >>> model = nn.Linear(2, 1, bias=False)
    >>> per_example_norms(model, lambda output: output.sum(1), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([5., 1.])
    """
    return TorchOracle(model, loss, inputs, targets)(None, None).norms()


def clipped_sum(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, clip_bound: float, *, chunk: int | None = None
) -> dict[str, Tensor]:
    """Σᵢ gᵢ · min(1, C/‖gᵢ‖₂) by parameter. **Not private**: one example moves it by at most C, but no noise is added.

    An example whose gradient is not finite is left out. `chunk` is the number of examples that are computed at a time.

    >>> import torch
    >>> model = nn.Linear(2, 1, bias=False)
    >>> clipped_sum(model, lambda output: output.sum(1), torch.tensor([[3.0, 4.0], [0.0, 1.0]]), None, 1.0)
    {'weight': tensor([[0.6000, 1.8000]])}
    """
    oracle = TorchOracle(model, loss, inputs, targets, chunk=chunk)
    return oracle.layout.views(oracle(None, None).clipped_sum(l2(clip_bound)))
