"""Buffers: large tensors that are reused in the next step.

Memory that is new to the process costs more than the arithmetic done in it. A buffer is lent to an owner and returned when the
owner is deleted.
"""

import weakref

import torch
from torch import Tensor


class Buffers:
    """The buffers of one recorder."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def lend(self, owner: object, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor, for as long as the owner lives."""
        numbers = torch.Size(shape).numel()
        fitting = [
            buffer
            for buffer in self._free
            if (buffer.dtype, buffer.device) == (like.dtype, like.device) and numbers <= buffer.numel() <= 2 * numbers
        ]
        if fitting:
            buffer = min(fitting, key=Tensor.numel)
            self._free = [other for other in self._free if other is not buffer]
        else:
            self._free.clear()  # the batch size has changed: the old buffers do not fit
            buffer = like.new_empty(numbers + numbers // 8)
        weakref.finalize(owner, self._free_list, buffer)
        return buffer[:numbers].view(shape)

    def _free_list(self, buffer: Tensor) -> None:
        self._free.append(buffer)
