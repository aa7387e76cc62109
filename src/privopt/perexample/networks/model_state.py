"""The state of a model: saved and restored, or changed for the length of a block; and the precision of what is computed with it.

Sums and norms are computed in single precision at least, whatever precision the model runs in. A norm that is rounded to half
precision may be too small, and then an example is clipped too little. Under `torch.autocast` activations and their gradients are
in half precision; they are converted to single precision before anything is multiplied.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


class ModelState:
    """A copy of a model's buffers and frozen parameters, which a forward pass may change and no noise hides.

    >>> norm = nn.BatchNorm1d(1, affine=False)
    >>> state = ModelState(norm)
    >>> _ = norm(torch.tensor([[1.0], [3.0]]))
    >>> ModelState(norm).differs_from(state)
    ['running_mean', 'running_var', 'num_batches_tracked']
    >>> state.restore()
    >>> ModelState(norm).differs_from(state)
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
        """Write them back into the model."""
        with torch.no_grad():
            for _, table, key, tensor, was in self._places:
                table[key] = tensor
                if tensor is not None and was is not None and not _same(tensor, was):
                    tensor.data = was.clone()

    def differs_from(self, other: "ModelState") -> list[str]:
        """The names of buffers and frozen parameters that differ from another state's."""
        known = {name: was for name, _, _, _, was in other._places}
        return [name for name, _, _, _, was in self._places if name not in known or not _same(was, known[name])]


class Attributes:
    """What modules hold beside parameters and buffers, such as settings and submodules.

    Running a model may change them for good: the windows of a Swin transformer shrink with the first small image.

    >>> model = nn.Linear(1, 1)
    >>> model.window = 7
    >>> before = Attributes(model)
    >>> model.window = 4
    >>> before.changed()
    True
    >>> before.restore()
    >>> model.window
    7
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables = [(table, dict(table)) for module in model.modules() for table in (module.__dict__, module._modules)]

    def changed(self) -> bool:
        """Whether a module, a number or a text is another one now. What a module keeps of its last call does not count."""
        return any(
            key not in was or _differ(value, was[key])
            for table, was in self._tables
            for key, value in table.items()
            if isinstance(value, bool | int | float | str | tuple | nn.Module | None)
        )

    def restore(self) -> None:
        """Put them back."""
        for table, was in self._tables:
            for key in table.keys() - was.keys():
                del table[key]
            table.update(was)


def _differ(value: Any, was: Any) -> bool:
    return value is not was and (isinstance(value, nn.Module) or repr(value) != repr(was))


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode for this block."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Put every module into training mode for this block, except norms whose statistics the user fixed with `.eval()`.

    >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval()).eval()
    >>> with training_mode(model):
    ...     [module.training for module in model]
    [True, False]
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        for module, mode in modes:
            if not mode and getattr(module, "track_running_stats", False):
                module.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def in_precision(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Convert floating-point parameters and buffers to another precision for this block."""
    tensors = [x for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()]
    before = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.to(dtype)
        yield
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


@contextmanager
def random_values(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Move parameters by a random step about as large as themselves for this block, so that none is 0."""
    generator, before = torch.Generator().manual_seed(1), [parameter.data for parameter in parameters]
    try:
        for parameter in parameters:
            size = float(torch.linalg.vector_norm(parameter.data)) / math.sqrt(max(1, parameter.numel()))
            inputs = parameter.numel() / parameter.shape[0] if parameter.ndim > 1 and parameter.numel() else 0
            least = 1 / math.sqrt(inputs) if inputs else 0.3
            step = torch.randn(parameter.shape, generator=generator).to(parameter.data)
            parameter.data = torch.add(parameter.data, step, alpha=0.3 * max(size, least))
        yield
    finally:
        for parameter, data in zip(parameters, before, strict=True):
            parameter.data = data


@contextmanager
def opposite_values(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Change the signs of parameters for this block."""
    try:
        for parameter in parameters:
            parameter.data.neg_()
        yield
    finally:
        for parameter in parameters:
            parameter.data.neg_()


class forwards:  # noqa: N801  # it reads as a phrase
    """Other forward functions for these modules in this block."""

    def __init__(self, replacements: dict[nn.Module, Callable[..., Any]]) -> None:
        self._replacements = replacements
        self._before = [(module.__dict__, module.__dict__.get("forward")) for module in replacements]

    def __enter__(self) -> None:
        for module, forward in self._replacements.items():
            module.__dict__["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for attributes, own in self._before:
            if own is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = own


# ---------------------------------------------------------------- precision


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
