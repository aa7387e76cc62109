"""Flat parameters: one vector θ whose views are the trainable parameters of a model.

Order and names are those of `named_parameters()`; a shared parameter occurs once, a frozen one does not occur.
"""

import tempfile
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

import numpy as np
import torch
from torch import Tensor, nn

from privopt.perexample.networks.unsupported import UnsupportedLayer


class Layout:
    """Where each trainable parameter lies in a flat vector.

    >>> Layout(nn.Linear(2, 3)).slices
    {'weight': slice(0, 6, None), 'bias': slice(6, 9, None)}
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not self.parameters:
            raise UnsupportedLayer(f"{type(model).__name__} has no trainable parameter: none has requires_grad=True.")
        for name, parameter in self.parameters.items():
            if parameter.is_complex():
                raise UnsupportedLayer(
                    f"{name} is {parameter.dtype}, but complex parameters are not supported. "
                    "Keep two real numbers for each, and use torch.view_as_complex on them."
                )
        first_name, first = next(iter(self.parameters.items()))
        self.dtype, self.device = first.dtype, first.device
        if self.dtype not in (torch.float32, torch.float64):
            raise UnsupportedLayer(
                f"{first_name} is {self.dtype}: norms of this precision bound nothing. Keep the parameters in float32 "
                "(model.float()) and run the forward pass under torch.autocast."
            )
        if self.device.type == "meta":
            raise UnsupportedLayer(f"{first_name} is on the meta device and has no values. Make the model on a real device.")
        self.slices: dict[str, slice] = {}
        self.size = 0
        for name, parameter in self.parameters.items():
            if (parameter.dtype, parameter.device) != (self.dtype, self.device):
                raise UnsupportedLayer(
                    f"{name} is {parameter.dtype} on {parameter.device}, {first_name} is {self.dtype} on {self.device}: "
                    "trainable parameters are one vector, so give them one dtype and one device, or freeze some."
                )
            self.slices[name] = slice(self.size, self.size + parameter.numel())
            self.size += parameter.numel()

        self.names = {parameter: name for name, parameter in self.parameters.items()}
        self._places = {
            name: (parameter.shape, torch.empty(parameter.shape, device="meta").stride(), self.slices[name].start)
            for name, parameter in self.parameters.items()
        }

    def view(self, name: str, vector: Tensor) -> Tensor:
        """One parameter's part of a flat vector, in the parameter's shape; no copy."""
        return vector[self.slices[name]].view(self.parameters[name].shape)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector as one view for each parameter."""
        first = vector.storage_offset()
        return {name: vector.as_strided(shape, strides, first + start) for name, (shape, strides, start) in self._places.items()}

    def zeros(self) -> Tensor:
        """A flat vector of zeros."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def flat(self) -> Tensor:
        """The current values of the parameters as a new flat vector."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters.values()])


class FlatParameters(Layout):
    """θ of a model: its parameters are views of `vector`, until `release()` makes them ordinary again.

    >>> model = nn.Linear(2, 3)
    >>> flat = FlatParameters(model)
    >>> flat.vector.zero_().shape, float(model.weight.detach().abs().sum())
    (torch.Size([9]), 0.0)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._set(self.flat())

    def assign(self, vector: Tensor) -> None:
        """Make the parameters views of this vector; it is not copied."""
        if vector.data_ptr() != self.vector.data_ptr():
            self._set(vector.detach().to(self.vector).contiguous())

    def _set(self, vector: Tensor) -> None:
        self.vector = vector
        for parameter, view in zip(self.parameters.values(), self.views(vector).values(), strict=True):
            parameter.data = view

    def release(self) -> None:
        """Give each parameter its own storage again, with its current value."""
        for parameter in self.parameters.values():
            parameter.data = parameter.detach().clone()


LARGE = 1 << 24  # numbers of a vector that is kept in a file


class Stored:
    """The values of a vector, for later; those of a large one in a temporary file without a name, as far as there is room.

    >>> with Stored(torch.arange(3.0), large=0) as stored:
    ...     stored.vector()
    tensor([0., 1., 2.])
    """

    def __init__(self, vector: Tensor, *, large: int = LARGE) -> None:
        self._vector: Tensor | None = vector
        if vector.numel() < large:
            return
        numbers = vector.detach().cpu().numpy()
        self._size, self._dtype, self._device = numbers.size, numbers.dtype, vector.device
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # it is closed with this object
        try:
            self._file.write(numbers)  # type: ignore[arg-type]  # an array is a buffer
            self._file.flush()
        except OSError:  # no room
            with suppress(OSError):  # of what was not written
                self._file.close()
            return
        self._vector = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._vector is None:
            self._file.close()

    def vector(self) -> Tensor:
        """The values."""
        if self._vector is not None:
            return self._vector
        numbers = np.empty(self._size, self._dtype)
        self._file.seek(0)
        self._file.readinto(numbers)  # type: ignore[attr-defined]
        return torch.from_numpy(numbers).to(self._device)
