"""Probes: losses and gradients of a model on made-up examples, to recognise what its code computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privopt.checkpoint import CLOSE
from privopt.errors import InputError
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.examples import call_model, compute_losses, make_up, move_to_device, possible_kinds
from privopt.perexample.networks.model_state import ModelState, training_mode
from privopt.perexample.networks.rng import global_generators, seed_all

EXAMPLES = 7
REGIMES: tuple[Callable[..., Tensor], ...] = (
    torch.randn,
    lambda shape, generator: 5 * torch.randn(shape, generator=generator),
    lambda shape, generator: torch.rand(shape, generator=generator) + 0.5,
    lambda shape, generator: torch.rand(shape, generator=generator).round(),  # 0 or 1, as targets may be
)
STEP = 0.1  # standard deviation of the noise on parameters, so that none is 0


def probe_model(oracle: TorchOracle, first: Any) -> list[float]:
    """Losses of made-up examples and norms of their gradients, at the start and at other parameters.

    `first`, a batch of one example, gives the shapes and types. Refuse a model or a loss that computes something else a second
    time: a replay would use the same noise for other losses.
    """
    found, again = _probe_points(oracle, first), _probe_points(oracle, first)
    size = float(np.nan_to_num(np.abs(found), posinf=0.0).max(initial=0.0))
    if len(found) != len(again) or not np.allclose(found, again, CLOSE, 1e-6 * size, equal_nan=True):
        raise InputError(
            "the model or the loss computes something else when it is called again, even after torch.manual_seed, so a replay "
            "would use the same noise for other losses. With a checkpoint, draw random numbers from torch's own generator: "
            "torch.rand(…), without generator=…; and let nothing depend on how often the model was called."
        )
    return found


def _probe_points(oracle: TorchOracle, first: Any) -> list[float]:
    layout, generator = oracle.layout, torch.Generator().manual_seed(0)
    parameters, memory = list(layout.parameters.values()), ModelState(oracle.model)
    start, found = [parameter.detach().clone() for parameter in parameters], list[float]()
    try:
        with training_mode(oracle.model), global_generators(layout.device):
            for away in (0.0, STEP):
                for parameter, value in zip(parameters, start, strict=True):
                    parameter.data.copy_(value + away * torch.randn(value.shape, generator=generator).to(value))
                for numbers in REGIMES:
                    found += _probe_batch(oracle, move_to_device(first, layout.device), numbers, generator)
                    memory.restore()
    finally:
        for parameter, value in zip(parameters, start, strict=True):
            parameter.data.copy_(value)
        memory.restore()
    return found


def _probe_batch(oracle: TorchOracle, first: Any, numbers: Callable[..., Tensor], generator: torch.Generator) -> list[float]:
    """Losses and gradient norms of one made-up batch, of the first kind that the model accepts."""
    parameters, weights = list(oracle.layout.parameters.values()), torch.linspace(1.0, 2.0, EXAMPLES)
    for kind in possible_kinds(first):
        inputs, targets = make_up(first, EXAMPLES, generator, numbers=numbers, kind=kind)
        seed_all(0)
        try:
            with torch.enable_grad():
                losses = compute_losses(oracle.loss, call_model(oracle.model, inputs), targets)
                total = (losses * weights.to(losses)).sum()
                gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        except (RuntimeError, IndexError, ValueError):
            continue
        norms = [0.0 if gradient is None else float(gradient.to_dense().norm()) for gradient in gradients]
        return [*losses.detach().double().tolist(), *norms]
    return []
