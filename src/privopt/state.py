"""The public state: what is known when a round begins. Both sides of the wall may read it.

Iterates are post-processing of private answers, and side information comes from public data, from common knowledge or from
earlier private answers: nothing here has met a private example.
"""

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
