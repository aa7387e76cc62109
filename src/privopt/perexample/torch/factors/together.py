"""Squared norms over all parameters: weight and bias of a dense layer on rows share a factor, and are taken in one pass."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from privopt.perexample.torch.factors.factor import Factor
from privopt.perexample.torch.factors.once import Once


def together(factors: Mapping[str, Factor]) -> list[Tensor]:
    """Parts of ‖gᵢ‖²: one of all dense layers on rows, and one of each other parameter."""
    rows = [factor for factor in factors.values() if isinstance(factor, Once) and factor.on_rows]
    if not rows:
        return [factor.squared_norms() for factor in factors.values()]
    others = {id(factor): factor for factor in factors.values()}
    total = np.zeros(rows[0].examples)
    for layer in rows:
        del others[id(layer)]
        layer.add_squared_norms(others.pop(id(layer.gradients), None) is not None, total)
    return [torch.from_numpy(total).float(), *(factor.squared_norms() for factor in others.values())]
