"""A batch that was handed out: its rows can be overwritten, to see whose losses depend on them, and are put back."""

from typing import Any

import torch
from torch import Tensor

from privopt.perexample.torch.data import leaves


class Handed:
    """The tensors of a batch, which whoever computes the losses holds as well.

    >>> batch = torch.tensor([1.0, 2.0, torch.nan])
    >>> handed = Handed(batch, 3)
    >>> handed.give(torch.tensor([0, 0, 1]))
    >>> batch
    tensor([1., 1., 2.])
    >>> handed.give(handed.order)
    >>> batch, handed.finite()
    (tensor([1., 2., nan]), tensor([ True,  True, False]))
    """

    def __init__(self, batch: Any, examples: int) -> None:
        found = [x for x in leaves(batch) if isinstance(x, Tensor) and x.layout == torch.strided and x.shape[:1] == (examples,)]
        self._kept = [(tensor, tensor.detach().clone()) for tensor in found]
        self.order = torch.arange(examples)

    def give(self, rows: Tensor) -> None:
        """Let each row be what the row in this place was."""
        with torch.no_grad():
            for tensor, was in self._kept:
                tensor.copy_(was.index_select(0, rows.to(was.device)))

    def finite(self) -> Tensor:
        """Which rows are numbers throughout."""
        usable = torch.ones(len(self.order), dtype=torch.bool)
        for _, was in self._kept:
            if was.is_floating_point():
                usable &= was.flatten(1).isfinite().all(1).cpu() if was.ndim > 1 else was.isfinite().cpu()
        return usable
