"""Loops that are compiled into vector instructions, where many small operations of torch would take longer than they compute."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function now, and keep it for the next process, if there is a folder that can be written."""

    def decorated(function: Callable[..., Any]) -> Any:
        try:
            return njit(signature, nogil=True, cache=True, **options)(function)
        except (OSError, RuntimeError):
            return njit(signature, nogil=True, **options)(function)

    return decorated
