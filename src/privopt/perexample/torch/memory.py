"""What a model remembers: its buffers and frozen parameters, which a forward pass may change and no noise hides."""

import torch
from torch import Tensor, nn


class Memory:
    """The buffers and frozen parameters of a model as they are now.

    >>> norm = nn.BatchNorm1d(1, affine=False)
    >>> memory = Memory(norm)
    >>> _ = norm(torch.tensor([[1.0], [3.0]]))
    >>> Memory(norm).other_than(memory)
    ['running_mean', 'running_var', 'num_batches_tracked']
    >>> memory.restore()
    >>> Memory(norm).other_than(memory)
    []
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (f"{path}.{key}".removeprefix("."), table, key, tensor, None if tensor is None else tensor.detach().clone())
            for path, module in model.named_modules()
            for table in (module._buffers, module._parameters)
            for key, tensor in table.items()
            if tensor is None or not tensor.requires_grad
        ]

    def restore(self) -> None:
        """Put them back."""
        with torch.no_grad():
            for _, table, key, tensor, was in self._places:
                table[key] = tensor
                if tensor is not None and was is not None and not _same(tensor, was):
                    tensor.data = was.clone()

    def other_than(self, other: "Memory") -> list[str]:
        """The names of those that differ from another memory's."""
        known = {name: was for name, _, _, _, was in other._places}
        return [name for name, _, _, _, was in self._places if name not in known or not _same(was, known[name])]


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())
