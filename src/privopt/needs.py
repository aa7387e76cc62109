"""Needs: what a slot cannot do without. Both sides of the wall declare them.

A slot declares as `needs` what it asks of other slots (`Need`) and of the oracle (`OracleNeed`); a slot without `needs` needs
nothing. Side information declares what it `offers`; what an oracle offers are its attributes (`Offer`). A recipe is checked when
it is put together, and against oracle and start parameters before anything is paid or read.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from privopt.errors import CompositionError


@dataclass(frozen=True)
class Need:
    """Something that another slot has to offer. `words` say what; `remedy` names slots that offer it."""

    words: str
    remedy: str


PREVIOUS_ITERATE = Need("the previous iterate", "privopt.run keeps it; a training loop of your own does not.")
PUBLIC_GRADIENT = Need("a public gradient", "public_gradient, public_rms, public_sum and public_moments know one.")
SCALE = Need(
    "a scale of the coordinates",
    "fixed_scale, public_rms, public_sum, public_moments and delayed_preconditioner know one; gradient() needs none.",
)
MOMENTUM = Need("a public momentum", "public_moments knows one; preconditioned_gradient() of weight 1 needs none.")
EARLIER_BOUND = Need("the clip bound of the round before", "privopt.run keeps it; a training loop of your own does not.")
EVERY_ROUND = Need("every round for one measurement", "Its first round pays for all of them: use always(…).")


@dataclass(frozen=True)
class Offer:
    """What an oracle offers beside vectors; the defaults are those of an oracle that does not mention it."""

    size: int  # units: examples, persons, or users
    dimension: int | None = None  # parameters; None: as many as the start has
    layers: tuple[str, ...] = ("",)  # names; a model without named layers is one layer
    losses: bool = False
    gradients: bool = True  # of each row
    changes: bool = False  # of the model, by the users of a federation
    counts: bool = True  # of vectors within a bound
    lipschitz: float = math.inf  # of every example that there could be
    smoothness: float = math.inf
    unit: str = "example"  # who is protected: the name of a unit
    most_rows: int | None = None  # of a unit, if vectors are those of rows that are drawn each by itself; None: of whole units

    @classmethod
    def of(cls, oracle: Any) -> "Offer":
        """Read the offer off the oracle's attributes; no example is read."""
        given = {
            name: getattr(oracle, name)
            for name in ("dimension", "layers", "lipschitz", "smoothness", "counts", "unit", "most_rows")
            if hasattr(oracle, name)
        }
        federated = hasattr(oracle, "changes")
        if federated:
            given["unit"] = "user"
        return cls(oracle.size, losses=hasattr(oracle, "losses"), gradients=not federated, changes=federated, **given)


class OracleNeed(ABC):
    """Something that the oracle has to offer. A frozen dataclass, so that needs make a set."""

    @abstractmethod
    def missing(self, offer: Offer) -> str | None:
        """The reason why this offer does not suffice, and an alternative; `None` if it suffices."""


Needs = frozenset[Need | OracleNeed]


@dataclass(frozen=True)
class _Rows(OracleNeed):
    """The gradient of each row."""

    def missing(self, offer: Offer) -> str | None:
        if offer.gradients:
            return None
        return "gradients of single rows do not leave the nodes of a federation. Use client_update(…), as dp-fedavg does."


@dataclass(frozen=True)
class _Users(OracleNeed):
    """Users who train a model by themselves."""

    def missing(self, offer: Offer) -> str | None:
        if offer.changes:
            return None
        return "client_update(…) asks the users of a federation, but this oracle has rows. Use gradient(), as dp-sgd does."


@dataclass(frozen=True)
class _Counts(OracleNeed):
    """How many vectors are within a bound."""

    def missing(self, offer: Offer) -> str | None:
        if offer.counts:
            return None
        return "an adaptive clip counts short vectors, which the processes of a torchrun job do not. Use a fixed clip."


@dataclass(frozen=True)
class RowsDrawn(OracleNeed):
    """Vectors of rows, at most so many of a unit; `None`: one vector for each unit."""

    most: int | None

    def missing(self, offer: Offer) -> str | None:
        if offer.most_rows == self.most:
            return None
        said = ["whole units" if most is None else f"rows, at most {most} of a unit" for most in (self.most, offer.most_rows)]
        return (
            f"the measurement is priced for {said[0]}, but the oracle has vectors of {said[1]}: what is drawn is what is priced."
        )


ROW_GRADIENTS, USER_CHANGES, COUNTS = _Rows(), _Users(), _Counts()


@dataclass(frozen=True)
class _Length(OracleNeed):
    """As many parameters as somebody's public vector has numbers."""

    shape: tuple[int, ...]
    whose: str

    def missing(self, offer: Offer) -> str | None:
        if self.shape == (offer.dimension,):
            return None
        return (
            f"{self.whose} has the shape {self.shape}, but there are {offer.dimension} parameters: it holds one number for each."
        )


def length_of(values: Any, whose: str) -> Needs:
    """The need for as many parameters as there are values; one number fits all."""
    shape = tuple(getattr(values, "shape", ()))
    return frozenset({_Length(shape, whose)} if shape else ())


def needs_of(*slots: object) -> Needs:
    """What these slots declare."""
    return frozenset[Need | OracleNeed]().union(*(getattr(slot, "needs", ()) for slot in slots))


def offers_of(slot: object) -> frozenset[Need]:
    """What a slot declares that others may use."""
    return frozenset(getattr(slot, "offers", ()))


def check_slots(needs: Needs, offered: Set[Need], by: str) -> None:
    """Refuse what one slot needs and no other offers."""
    for need in sorted((need for need in needs - offered if isinstance(need, Need)), key=repr):
        raise CompositionError(f"a slot needs {need.words}, which {by} does not offer. {need.remedy}")


def check_oracle(needs: Needs, offer: Offer) -> None:
    """Refuse an oracle that lacks what a slot needs; nothing is read."""
    for need in sorted((need for need in needs if isinstance(need, OracleNeed)), key=repr):
        if reason := need.missing(offer):
            raise CompositionError(reason)
