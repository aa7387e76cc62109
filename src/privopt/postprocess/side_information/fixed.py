"""A scale that was fixed before training, from common knowledge."""

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.needs import SCALE, Need, Needs, length_of
from privopt.postprocess.side_information.slot import State, Unmoved
from privopt.trajectory import Known


@dataclass(frozen=True)
class fixed_scale(Unmoved):  # noqa: N801  # a constructor that reads as a phrase
    """A: the typical size of each coordinate's gradient, a positive number each."""

    scale: Any
    offers: ClassVar[frozenset[Need]] = frozenset({SCALE})

    def __post_init__(self) -> None:
        xp = array_namespace(self.scale)
        if not bool(xp.all(xp.isfinite(self.scale) & (self.scale > 0))):
            raise CompositionError("a scale holds a finite number > 0 for each coordinate: give what is rare a small one, not 0.")

    @property
    def needs(self) -> Needs:
        return length_of(self.scale, "fixed_scale")

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        return Known(scale=self.scale), state
