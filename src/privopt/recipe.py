"""Recipes: an algorithm is rounds, a schedule of measurements, an estimate from answers, an update rule and a release rule."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from privopt.errors import CompositionError
from privopt.measure.measurement import Measurement, Measuring
from privopt.measure.randomness import Rng
from privopt.measure.samplers import disjoint_batches
from privopt.postprocess.estimates import Estimate, newest_answer
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last, random_round
from privopt.postprocess.side_information import SideInformation, nothing
from privopt.postprocess.updates import UpdateRule
from privopt.privacy.events import DpEvent, compose

Plan = Callable[[int], Measuring]  # round → what is measured in it


def always(measurement: Measuring) -> Plan:
    """The same measurement in every round."""
    return lambda round_: measurement


def first(anchor: Measuring, *, then: Measuring) -> Plan:
    """One measurement in the first round, another in all others."""
    return every(sys.maxsize, anchor, otherwise=then)


def after(rounds: int, measurement: Measuring, *, before: Measuring) -> Plan:
    """One measurement in the first rounds, another from then on."""
    _check_epochs(before, measurement)
    return lambda round_: before if round_ < rounds else measurement


def every(period: int, anchor: Measuring, *, otherwise: Measuring) -> Plan:
    """One measurement in rounds 0, period, 2 × period, …, another in all others."""
    _check_epochs(anchor, otherwise)
    return lambda round_: otherwise if round_ % period else anchor


def _check_epochs(anchor: Measuring, otherwise: Measuring) -> None:
    """The first round of an epoch of disjoint batches pays for all of it: every round of it has to cost the same."""
    sampled = [(one.sampler, one.mechanism) for one in (anchor, otherwise) if isinstance(one, Measurement)]
    if any(isinstance(sampler, disjoint_batches) for sampler, _ in sampled) and (len(sampled) < 2 or sampled[0] != sampled[1]):
        raise CompositionError(
            "disjoint_batches pays for an epoch in its first round, so all rounds have to sample alike and with the same noise. "
            "poisson pays round by round."
        )


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
    side: SideInformation = field(default_factory=nothing)
    estimate: Estimate = field(default_factory=newest_answer)
    looks_back: bool = False  # whether a measurement asks where the iterate was, as differences of gradients do

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise CompositionError(f"a recipe has at least one round, not {self.rounds}.")

    def events(self, rounds: int | None = None) -> list[DpEvent]:
        """What each round will cost; rounds that cost the same in a row share one event."""
        events: list[DpEvent] = []
        for round_ in range(self.rounds if rounds is None else rounds):
            event = self.measurement(round_).event(round_)
            events.append(events[-1] if events and event == events[-1] else event)
        return events

    def planned_event(self, rounds: int | None = None) -> DpEvent:
        """What the whole run will cost, or its first rounds."""
        return compose(self.events(rounds))

    def stop(self, rng: Rng) -> int:
        """After how many rounds this run will stop: a draw, if the release rule stops at a random round; else all of them."""
        if not isinstance(self.release, random_round):
            return self.rounds
        return self.release.rounds(self.release.start(None, self.rounds, rng), self.rounds)

    def stopped(self, rounds: int) -> "Recipe":
        """The recipe whose random number of rounds was drawn: exactly these are run.

        **Guarantee** The draw depends on no data, so noise that keeps these rounds within a budget keeps the run within it.
        """
        return replace(self, rounds=rounds, release=last()) if isinstance(self.release, random_round) else self
