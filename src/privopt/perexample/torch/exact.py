"""Exactness: sums and norms are computed in single precision at least, whatever precision the model runs in.

A norm that is rounded to half precision may come out too small, and then an example is clipped too little. Under `torch.autocast`
activations and their gradients are halves; here they are turned into single precision before anything is multiplied.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Without autocast and without a graph, for a while."""
    with torch.no_grad():
        if torch.is_autocast_enabled(device.type):
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield


def whole(tensor: Tensor) -> Tensor:
    """In single precision, if it is in half precision.

    >>> whole(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
