"""Public examples: mean gradients of batches of examples that hide nothing, by plain autograd and without dropout."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from privopt.nets.data import content
from privopt.perexample.networks import TorchOracle, per_example
from privopt.perexample.networks.examples import call, moved, rows_of, score
from privopt.perexample.networks.model_state import evaluating
from privopt.perexample.public_rows import public_batches

BATCH = 64  # the mean gradient of more would tell less of how large gradients are


class PublicExamples:
    """(θ, round) → the mean gradient of a batch of public examples, through the model of the private ones.

    Whoever makes one says that its examples are public: they are used without noise, and no event is recorded.
    """

    def __init__(self, oracle: TorchOracle, data: Dataset[Any], batch_size: int = BATCH) -> None:
        self._oracle, self._data = oracle, data
        self._batches = public_batches(len(data), batch_size)  # type: ignore[arg-type]  # map-style datasets have a length

    @property
    def epoch(self) -> int:
        return len(self._batches)

    def __call__(self, parameters: Tensor, round_: int) -> Tensor:
        oracle = self._oracle
        inputs, targets = moved(self._fetch(round_ % len(self._batches)), oracle.layout.device)
        oracle.flat.assign(parameters)
        with evaluating(oracle.model), torch.enable_grad():
            mean = score(oracle.loss, call(oracle.model, inputs), targets).mean()
            parts = torch.autograd.grad(mean, list(oracle.layout.parameters.values()), allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    def _fetch(self, batch: int) -> Any:
        rows = self._batches[batch]
        if isinstance(self._data, TensorDataset):
            return rows_of(tuple(self._data.tensors), torch.as_tensor(rows))
        return default_collate([self._data[int(row)] for row in rows])


def described(data: Dataset[Any]) -> str:
    """How many examples there are, and a hash of them (of some of them, if they are not tensors): what was used is recognised."""
    return f"the examples given as public: {len(data)} of them, sha256 {content(data)[:16]}"  # type: ignore[arg-type]


def public_loss(model: nn.Module, loss: Callable[..., Tensor], inputs: Any, targets: Any) -> float:
    """The mean loss of the model as it is, without dropout.

    >>> public_loss(nn.Identity(), nn.MSELoss(), torch.ones(2, 3), torch.zeros(2, 3))
    1.0
    """
    with evaluating(model), torch.no_grad():
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        inputs, targets = moved((inputs, targets), device)
        return float(score(per_example(loss), call(model, inputs), targets).mean())
