"""Per-example gradients of one batch, for research. **Not private**: no noise is added."""

from typing import Any

from torch import Tensor, nn

from privopt.measure.clips import l2
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.loss_modules import Loss


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
