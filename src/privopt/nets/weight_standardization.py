"""Weight standardisation: convolutions whose filters have mean 0 and length 1.

Qiao, Wang, Liu, Shen, Yuille: Micro-Batch Training with Batch-Channel Normalization and Weight Standardization; with group norm
in De, Berrada, Hayes, Smith, Balle: Unlocking High-Accuracy Differentially Private Image Classification through Scale.

A filter is a function of the parameters only, so examples do not mix. An example's gradient is that of the raw weights, the same
linear map of its gradient of the filters for every example, and that is what is clipped.
"""

import copy

from torch import Tensor, nn
from torch.nn.utils import parametrize

from privopt.errors import InputError

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
STABILITY = 1e-6  # of a filter's squared length: a constant filter becomes 0


class StandardizedWeight(nn.Module):
    """w ↦ (w − mean w)/√(‖w − mean w‖² + 1e-6) for each filter, so inputs of variance 1 have outputs of variance 1."""

    def forward(self, weight: Tensor) -> Tensor:
        filters = weight.flatten(1)
        filters = filters - filters.mean(1, keepdim=True)
        return (filters / (filters.square().sum(1, keepdim=True) + STABILITY).sqrt()).view_as(weight)


def standardize_weights(model: nn.Module) -> nn.Module:
    """A copy of the model whose convolutions have standardised weights; linear layers stay, because scores need their scale.

    The parameters that are trained and released are the raw weights, `parametrizations.weight.original` in the `state_dict`;
    `torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")` turns a trained layer into a plain one.

    >>> layer = standardize_weights(nn.Conv2d(3, 4, 2))
    >>> bool(layer.weight.sum((1, 2, 3)).abs().max() < 1e-6), bool((layer.weight.square().sum((1, 2, 3)) - 1).abs().max() < 1e-4)
    (True, True)
    """
    model = copy.deepcopy(model)
    for path, module in model.named_modules():
        if not isinstance(module, CONVOLUTIONS) or parametrize.is_parametrized(module, "weight"):
            continue
        if module.weight[0].numel() == 1:
            name = f"{path or 'the model'} ({type(module).__name__})"
            raise InputError(f"{name} has filters of one weight, which is 0 after its mean is subtracted.")
        parametrize.register_parametrization(module, "weight", StandardizedWeight())
    return model
