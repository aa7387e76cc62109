"""Public examples: mean gradients of batches, by plain autograd and without dropout, and the mean loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from privopt.nets.data import content
from privopt.perexample.networks import TorchOracle, per_example
from privopt.perexample.networks.examples import call_model, compute_losses, move_to_device, rows_of
from privopt.perexample.networks.model_state import evaluation_mode
from privopt.perexample.public_rows import public_batches

BATCH = 64  # mean gradients of larger batches say less about the size of gradients


class PublicExamples:
    """(θ, round) → the mean gradient of a batch of public examples, through the model of the private ones.

    The caller declares that the examples are public: they are used without noise, and no event is recorded.
    """

    def __init__(self, oracle: TorchOracle, data: Dataset[Any], batch_size: int = BATCH) -> None:
        self._oracle, self._data = oracle, data
        self._batches = public_batches(len(data), batch_size)  # type: ignore[arg-type]  # map-style datasets have a length

    @property
    def epoch(self) -> int:
        return len(self._batches)

    def __call__(self, parameters: Tensor, round_: int) -> Tensor:
        oracle = self._oracle
        inputs, targets = move_to_device(self._fetch(round_ % len(self._batches)), oracle.layout.device)
        oracle.flat.assign(parameters)
        with evaluation_mode(oracle.model), torch.enable_grad():
            mean = compute_losses(oracle.loss, call_model(oracle.model, inputs), targets).mean()
            parts = torch.autograd.grad(mean, list(oracle.layout.parameters.values()), allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    def _fetch(self, batch: int) -> Any:
        rows = self._batches[batch]
        if isinstance(self._data, TensorDataset):
            return rows_of(tuple(self._data.tensors), torch.as_tensor(rows))
        return default_collate([self._data[int(row)] for row in rows])


def describe_public(data: Dataset[Any]) -> str:
    """The number of examples and a hash of them, for a statement."""
    return f"the examples given as public: {len(data)} of them, sha256 {content(data)[:16]}"  # type: ignore[arg-type]


def public_loss(model: nn.Module, loss: Callable[..., Tensor], inputs: Any, targets: Any) -> float:
    """The mean loss of the model on public examples, without dropout: post-processing, so it is free.

    >>> public_loss(nn.Identity(), nn.MSELoss(), torch.ones(2, 3), torch.zeros(2, 3))
    1.0
    """
    with evaluation_mode(model), torch.no_grad():
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        inputs, targets = move_to_device((inputs, targets), device)
        return float(compute_losses(per_example(loss), call_model(model, inputs), targets).mean())
