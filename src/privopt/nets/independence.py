"""Independence: whether it is checked or proved that each example's loss depends on that example only."""

from collections.abc import Sequence
from typing import Literal

from privopt.errors import InputError
from privopt.perexample.networks.unsupported import UnsupportedLayer

Independence = Literal["checked", "proved"]


def check_independence(independence: object) -> None:
    """Validate the argument."""
    if independence not in ("checked", "proved"):
        raise InputError(f"independence is {independence!r}; it is 'checked' or 'proved'.")


def require(independence: Independence, doubts: Sequence[str]) -> None:
    """Refuse a model whose independence was only checked, if a proof is wanted."""
    if independence == "proved" and doubts:
        raise UnsupportedLayer(
            f"it is not proved that each example's loss depends on that example only, because {'; '.join(doubts)}. Change that, "
            'or use independence="checked", which compares batches with single examples and says so in the statement.'
        )


def assumptions(doubts: Sequence[str]) -> list[str]:
    """The sentences of a statement about losses whose independence was checked and not proved.

    >>> assumptions(["a tensor is read as a Python number (model.py, line 7: n = int(mask.sum()))"])  # doctest: +ELLIPSIS
    ["each example's loss depends on that example only; not proved, because a tensor is read as a Python number (model.py, ...)"]
    """
    return [f"each example's loss depends on that example only; not proved, because {doubt}" for doubt in doubts]
