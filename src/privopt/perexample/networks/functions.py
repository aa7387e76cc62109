"""Per-example gradients of one batch, for research. Nothing here is private: there is no noise."""

from typing import Any

import torch
from torch import Tensor, nn

from privopt.perexample.networks.examples import call, score, size_of
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.loss_modules import Loss, per_example
from privopt.perexample.networks.recorder import Recorder
from privopt.perexample.networks.torch_grads import TorchGrads, clip_weights
from privopt.perexample.networks.unsupported import UnsupportedLoss


def gradients(recorder: Recorder, layout: Layout, loss: Loss, inputs: Any, targets: Any, examples: int) -> TorchGrads:
    """The gradient of each example of a batch: one forward pass, one backward pass. `loss` gives one value for each."""
    if examples == 0:
        return TorchGrads(layout, {}, 0)
    with torch.enable_grad(), recorder.record() as tape:
        losses = score(loss, call(recorder.model, inputs), targets)
        if losses.ndim == 1 and losses.shape[0] != examples:
            raise UnsupportedLoss(
                f"the loss gave {losses.shape[0]} values for a batch of {examples}: one for each example is needed."
            )
        factors = tape.factors(losses)
    return TorchGrads(layout, {layout.names[parameter]: factor for parameter, factor in factors.items()}, examples)


def per_example_gradients(model: nn.Module, loss: Loss, inputs: Any, targets: Any = None) -> TorchGrads:
    """The gradients of each example, not formed: `norms()`, `weighted_sum(weights)`, and so on. **Not private.**"""
    return gradients(Recorder(model), Layout(model), per_example(loss), inputs, targets, size_of((inputs, targets)))


def per_example_norms(model: nn.Module, loss: Loss, inputs: Any, targets: Any = None) -> Tensor:
    """‖∇ lossᵢ‖₂ for each example of a batch. **Not private**: norms of raw gradients.

    A model that mixes examples is refused, as it is by `TorchOracle`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> per_example_norms(model, lambda output: output.sum(1), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([5., 1.])
    """
    from privopt.perexample.networks.torch_oracle import TorchOracle

    return TorchOracle(model, loss, inputs, targets)(None, None).norms()


def clipped_sum(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, clip_bound: float, *, chunk: int | None = None
) -> dict[str, Tensor]:
    """Σᵢ gᵢ · min(1, C/‖gᵢ‖₂) by parameter. **Not private**: one example moves it by at most C, but no noise is added.

    An example whose gradient is not finite is left out. With `chunk` so many examples are computed at a time.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> clipped_sum(model, lambda output: output.sum(1), torch.tensor([[3.0, 4.0], [0.0, 1.0]]), None, 1.0)
    {'weight': tensor([[0.6000, 1.8000]])}
    """
    from privopt.perexample.networks.torch_oracle import TorchOracle

    oracle = TorchOracle(model, loss, inputs, targets, chunk=chunk)
    total = oracle(None, None).fold(clip_weights(clip_bound))
    return oracle.layout.views(total)
