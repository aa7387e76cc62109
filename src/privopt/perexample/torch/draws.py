"""Draws: where torch's own generators stand, so that dropout can be repeated. They hide nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


class Draws:
    """The state of the CPU's generator, and of the device's if the model is elsewhere.

    >>> draws = Draws(torch.device("cpu"))
    >>> first = torch.rand(1)
    >>> with draws.again():
    ...     bool(torch.rand(1) == first)
    True
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._own: Tensor | None = None if device.type == "cpu" else getattr(torch, device.type).get_rng_state(device)

    @contextmanager
    def again(self) -> Iterator[None]:
        """The same numbers once more; then torch goes on where it was."""
        now = Draws(self._device)
        try:
            self._restore()
            yield
        finally:
            now._restore()

    def _restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._own is not None:
            getattr(torch, self._device.type).set_rng_state(self._own, self._device)


def begin(seed: int) -> None:
    """Let torch's own generators begin anew.

    `torch.manual_seed` also leaves word for devices that nobody uses, which takes as long as a step of a small model.
    """
    used = torch.cuda.is_initialized() or _others()  # type: ignore[no-untyped-call]
    (torch if used else torch.default_generator).manual_seed(seed)


@cache
def _others() -> bool:
    return torch.backends.mps.is_available() or torch.xpu.is_available()
