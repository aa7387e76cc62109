"""The loss on public examples, for whoever watches a run: a function of parameters that are private already, so it is free."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privopt.perexample.torch import per_example
from privopt.perexample.torch.data import call, moved, score
from privopt.perexample.torch.mode import evaluating


def public_loss(model: nn.Module, loss: Callable[..., Tensor], inputs: Any, targets: Any) -> float:
    """The mean loss of the model as it is, without dropout.

    >>> public_loss(nn.Identity(), nn.MSELoss(), torch.ones(2, 3), torch.zeros(2, 3))
    1.0
    """
    with evaluating(model), torch.no_grad():
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        inputs, targets = moved((inputs, targets), device)
        return float(score(per_example(loss), call(model, inputs), targets).mean())
