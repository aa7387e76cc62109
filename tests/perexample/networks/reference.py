"""The obvious slow way: each example alone through plain autograd, in double precision."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privopt.perexample.networks import TorchGrads, per_example_gradients
from privopt.perexample.networks.examples import call_model, rows_of

Loss = Callable[[Any, Tensor], Tensor]


def squared(output: Tensor, targets: Tensor) -> Tensor:
    """A loss that is not symmetric in anything."""
    return ((output.flatten(1) - targets.flatten(1)) ** 2).sum(1)


def targets_for(model: nn.Module, inputs: Any) -> Tensor:
    """Random targets of the shape of the model's output."""
    mode = model.training
    with torch.no_grad():
        output: Tensor = call_model(model.eval(), inputs)
    model.train(mode)
    return torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)


def doubled(values: Any) -> Any:
    """In double precision."""
    if isinstance(values, tuple):
        return tuple(doubled(value) for value in values)
    return values.double() if values.is_floating_point() else values


def one_at_a_time(model: nn.Module, inputs: Any, targets: Tensor, loss: Loss = squared) -> Tensor:
    """(examples, parameters), in double precision."""
    with torch.no_grad():
        call_model(model, inputs)  # weight norm keeps a tensor that cannot be copied while it has a graph
    model, inputs, targets = copy.deepcopy(model).double(), doubled(inputs), doubled(targets)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for i in range(len(targets)):
        own, target = rows_of((inputs, targets), slice(i, i + 1))
        value = loss(call_model(model, own), target)
        found = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
        pairs = zip(found, parameters, strict=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g.to_dense()).reshape(-1) for g, p in pairs]))
    return torch.stack(rows) if rows else torch.zeros(0, sum(p.numel() for p in parameters), dtype=torch.float64)


def assert_close(found: Tensor, wanted: Tensor, relative: float = 1e-5) -> None:
    """To so much of each row's length."""
    gap = torch.linalg.vector_norm((found.double() - wanted).reshape(len(wanted), -1), dim=1)
    size = torch.linalg.vector_norm(wanted.reshape(len(wanted), -1), dim=1)
    assert found.shape == wanted.shape
    assert bool((gap <= relative * size + 1e-9).all()), (gap / size).max()


def assert_exact(model: nn.Module, inputs: Any, loss: Loss = squared, relative: float = 1e-5) -> TorchGrads:
    """Norms, vectors and weighted sums of the engine are those of each example alone."""
    targets = targets_for(model, inputs)
    wanted = one_at_a_time(model, inputs, targets, loss)
    assert_grads(per_example_gradients(model, loss, inputs, targets), wanted, relative)
    grads = per_example_gradients(model, loss, inputs, targets)
    weights = torch.linspace(-1, 1, len(wanted))
    assert_sum(grads.weighted_sum(weights), wanted, weights, relative)  # before any norm was asked for
    return grads


def assert_grads(grads: TorchGrads, wanted: Tensor, relative: float = 1e-5) -> None:
    """Norms, sums, then the vectors: in the order in which a clip asks."""
    assert_close(grads.norms()[:, None], wanted.norm(dim=1)[:, None], relative)
    weights = torch.linspace(-1, 1, len(wanted)).to(grads.norms().dtype)
    assert_sum(grads.weighted_sum(weights), wanted, weights, relative)
    assert_close(grads.norms(1)[:, None], wanted.abs().sum(1)[:, None], relative)
    assert_close(grads.dense(), wanted, 2 * relative)


def assert_sum(found: Tensor, wanted: Tensor, weights: Tensor, relative: float = 1e-5) -> None:
    """A weighted sum, to so much of the sum of lengths."""
    total = weights.double() @ wanted
    size = float((weights.double().abs() * wanted.norm(dim=1)).sum())
    assert float((found.double() - total).norm()) <= relative * size + 1e-9
