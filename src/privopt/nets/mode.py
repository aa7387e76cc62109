"""The training mode of a model, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Every module in training mode, but for norms whose statistics the user has fixed with `.eval()`; then as it was.

    >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval()).eval()
    >>> with training(model):
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
