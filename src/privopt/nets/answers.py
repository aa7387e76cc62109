"""Answers of a model to made-up examples: what its code computes, where the code itself cannot be read."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privopt.nets.mode import training
from privopt.perexample.torch import TorchOracle
from privopt.perexample.torch.data import call, kinds, moved, score, synthetic
from privopt.perexample.torch.draws import Draws, begin
from privopt.perexample.torch.memory import Memory

EXAMPLES = 7
REGIMES: tuple[Callable[..., Tensor], ...] = (
    torch.randn,
    lambda shape, generator: 5 * torch.randn(shape, generator=generator),
    lambda shape, generator: torch.rand(shape, generator=generator) + 0.5,
)
STEP = 0.1  # standard deviation of what is added to parameters: no gate stays shut


def answers(oracle: TorchOracle, first: Any) -> list[float]:
    """Losses of made-up examples like `first`, a batch of one, and norms of their gradients: at the start and elsewhere."""
    layout, generator = oracle.layout, torch.Generator().manual_seed(0)
    parameters, memory = list(layout.parameters.values()), Memory(oracle.model)
    start, found = [parameter.detach().clone() for parameter in parameters], list[float]()
    try:
        with training(oracle.model), Draws(layout.device).again():
            for away in (0.0, STEP):
                for parameter, value in zip(parameters, start, strict=True):
                    parameter.data.copy_(value + away * torch.randn(value.shape, generator=generator).to(value))
                for numbers in REGIMES:
                    found += _answers(oracle, moved(first, layout.device), numbers, generator)
                    memory.restore()
    finally:
        for parameter, value in zip(parameters, start, strict=True):
            parameter.data.copy_(value)
        memory.restore()
    return found


def _answers(oracle: TorchOracle, first: Any, numbers: Callable[..., Tensor], generator: torch.Generator) -> list[float]:
    """For examples of the first kind that the model can be run on."""
    parameters, weights = list(oracle.layout.parameters.values()), torch.linspace(1.0, 2.0, EXAMPLES)
    for kind in kinds(first):
        inputs, targets = synthetic(first, EXAMPLES, generator, numbers=numbers, kind=kind)
        begin(0)
        try:
            with torch.enable_grad():
                losses = score(oracle.loss, call(oracle.model, inputs), targets)
                total = (losses * weights.to(losses)).sum()
                gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        except (RuntimeError, IndexError, ValueError):
            continue
        norms = [0.0 if gradient is None else float(gradient.to_dense().norm()) for gradient in gradients]
        return [*losses.detach().double().tolist(), *norms]
    return []
