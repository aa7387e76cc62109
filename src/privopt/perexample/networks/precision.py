"""Precision: sums and norms are computed in single precision at least, whatever precision the model runs in.

A norm that is rounded to half precision may be too small, and then an example is clipped too little. Under `torch.autocast`
activations and their gradients are in half precision; they are converted to single precision before anything is multiplied.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

ALREADY = nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A block without autocast and without gradients."""
    if torch.is_autocast_enabled(device.type):
        return _without_autocast(device)
    return torch.no_grad() if torch.is_grad_enabled() else ALREADY


@contextmanager
def _without_autocast(device: torch.device) -> Iterator[None]:
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in single precision if it was in half precision.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
