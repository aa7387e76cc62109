"""Networks whose canary has the full length of the clip bound, in parameters whose norm is easily forgotten."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.audit.frontends import ROWS

STRONG = 100.0  # weights of a head: what is before it has by far the longer gradient


class Headed(nn.Module):
    """A body, the last (or only) row of its output, and a dense head."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 1)
        with torch.no_grad():
            self.head.weight.fill_(STRONG)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Any = self.body(inputs)
        rows: Tensor = output[0] if isinstance(output, tuple) else output
        scores: Tensor = self.head(rows[:, -1] if rows.ndim == 3 else rows)
        return scores


def _headed(body: Callable[[], nn.Module], width: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Headed(body(), width)

    return make


def _numbers(*shape: int) -> Tensor:
    """Inputs, of which the canary's is 0: gradients of what multiplies them are 0, too, and those of biases are not."""
    inputs = torch.linspace(-1, 1, ROWS * torch.Size(shape).numel()).reshape(ROWS, *shape)
    inputs[0] = 0.0
    return inputs


def dense() -> nn.Module:
    """One layer, the same each time."""
    torch.manual_seed(0)
    return nn.Linear(2, 1)


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "MLP": (_headed(lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh()), 3), _numbers(2)),
    "convolution": (_headed(lambda: nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten()), 4), _numbers(1, 3)),
    "embedding": (
        _headed(lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), 4),
        torch.arange(2 * ROWS).reshape(ROWS, 2) % 5,
    ),
    "LSTM and head": (_headed(lambda: nn.LSTM(2, 2, batch_first=True), 2), _numbers(1, 2)),
    "GRU and head": (_headed(lambda: nn.GRU(2, 2, batch_first=True), 2), _numbers(1, 2)),
    "RNN and head": (_headed(lambda: nn.RNN(2, 2, batch_first=True), 2), _numbers(1, 2)),
}
