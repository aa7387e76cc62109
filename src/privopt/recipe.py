"""Recipes: an algorithm is rounds, a schedule of measurements, an update rule and a release rule."""

from collections.abc import Callable
from dataclasses import dataclass, field

from privopt.errors import CompositionError
from privopt.measure.measurement import Measurement
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import UpdateRule
from privopt.privacy.events import DpEvent, compose

Plan = Callable[[int], Measurement]  # round → what is measured in it


def always(measurement: Measurement) -> Plan:
    """The same measurement in every round."""
    return lambda round_: measurement


@dataclass(frozen=True)
class Recipe:
    """One algorithm, ready to run on any oracle.

    **Guarantee** `planned_event()` is known before any data are read; after a run the ledger holds the same event.
    """

    rounds: int
    measurement: Plan
    update: UpdateRule
    release: ReleaseRule = field(default_factory=last)
    regularizer: Regularizer | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise CompositionError(f"a recipe has at least one round, not {self.rounds}.")

    def events(self, rounds: int | None = None) -> list[DpEvent]:
        """What each round will cost."""
        return [self.measurement(round_).event(round_) for round_ in range(self.rounds if rounds is None else rounds)]

    def planned_event(self, rounds: int | None = None) -> DpEvent:
        """What the whole run will cost, or its first rounds."""
        return compose(self.events(rounds))
