"""The public state: what is known when a round begins. Both sides of the wall may read it.

Iterates are post-processing of private answers, and side information comes from public data, from common knowledge or from
earlier private answers: nothing here has met a private example.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from array_api_compat import array_namespace


class Known(NamedTuple):
    """Side information at the current iterate; `None` where it is unknown."""

    gradient: Any = None  # the mean gradient of a batch of public data
    scale: Any = None  # A: a positive number for each coordinate, the typical size of its gradient
    momentum: Any = None  # M: a running mean of public gradients


NOTHING = Known()


class PublicState(NamedTuple):
    """The current iterate, the previous one, and the side information at the current one."""

    current: Any
    previous: Any = None  # kept for recipes that look back
    known: Known = NOTHING


def copy_iterate(iterate: Any) -> Any:
    """Copy an iterate, to keep it: the loop moves iterates in place."""
    return array_namespace(iterate).asarray(iterate, copy=True)


PART = 1 << 18  # numbers of a large vector that are worked on at a time


def places(array: Any) -> Iterable[Any]:
    """The places of an array: all of them, or those of one part of a large vector after another, to work without a copy of it."""
    if not array.ndim or array.shape[0] <= PART:
        return (...,)
    return (slice(start, start + PART) for start in range(0, array.shape[0], PART))


def is_finite(array: Any) -> bool:
    """Whether all numbers are finite."""
    xp = array_namespace(array)
    return all(bool(xp.all(xp.isfinite(array[where]))) for where in places(array))
