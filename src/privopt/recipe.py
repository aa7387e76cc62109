"""Recipes: an algorithm is rounds, a schedule of measurements, an estimate from answers, an update rule and a release rule."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.measure.measurement import Measurement, Measuring
from privopt.measure.randomness import Rng
from privopt.measure.samplers import disjoint_batches
from privopt.measure.units import Unit, each_row
from privopt.measure.without_mechanism import unasked
from privopt.needs import (
    EARLIER_BOUND,
    EVERY_ROUND,
    PREVIOUS_ITERATE,
    Needs,
    Offer,
    check_oracle,
    check_slots,
    needs_of,
    offers_of,
)
from privopt.postprocess.estimates import Estimate, newest_answer
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last, random_round
from privopt.postprocess.side_information import SideInformation, nothing
from privopt.postprocess.updates import UpdateRule
from privopt.privacy.budget import UNITS
from privopt.privacy.events import DpEvent, compose
from privopt.state import is_finite

Plan = Callable[[int], Measuring]  # round → what is measured in it


@dataclass(frozen=True)
class always:  # noqa: N801  # a constructor that reads as a phrase
    """The same measurement in every round."""

    measurement: Measuring

    @property
    def measurements(self) -> tuple[Measuring, ...]:
        return (self.measurement,)

    def __call__(self, round_: int) -> Measuring:
        return self.measurement


@dataclass(frozen=True)
class after:  # noqa: N801
    """One measurement in the first rounds, another from then on."""

    rounds: int
    measurement: Measuring
    before: Measuring = field(kw_only=True)

    @property
    def measurements(self) -> tuple[Measuring, ...]:
        return self.before, self.measurement

    def __call__(self, round_: int) -> Measuring:
        return self.before if round_ < self.rounds else self.measurement


@dataclass(frozen=True)
class every:  # noqa: N801
    """One measurement in rounds 0, period, 2 × period, …, another in all others."""

    period: int
    anchor: Measuring
    otherwise: Measuring = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.period < 1:
            raise CompositionError(f"every({self.period}, …): anchors are at least one round apart.")

    @property
    def measurements(self) -> tuple[Measuring, ...]:
        return self.anchor, self.otherwise

    def __call__(self, round_: int) -> Measuring:
        return self.otherwise if round_ % self.period else self.anchor


def _protecting(plan: Plan, unit: Unit) -> Plan:
    """The plan whose measurements ask for vectors of this unit, instead of rows; answers of other kinds stay as they are."""

    def changed(one: Measuring) -> Measuring:
        return one.protecting(unit) if isinstance(one, Measurement | unasked) else one

    match plan:
        case always(measurement=one):
            return always(changed(one))
        case after(rounds=rounds, measurement=one, before=other):
            return after(rounds, changed(one), before=changed(other))
        case every(period=period, anchor=one, otherwise=other):
            return every(period, changed(one), otherwise=changed(other))
    found: dict[int, tuple[Measuring, Measuring]] = {}  # holds the keys' objects: another could not take one's place

    def of_round(round_: int) -> Measuring:
        one = plan(round_)
        return found.setdefault(id(one), (one, changed(one)))[1]

    return of_round


def first(anchor: Measuring, *, then: Measuring) -> every:
    """One measurement in the first round, another in all others."""
    return every(sys.maxsize, anchor, otherwise=then)


def _check_epochs(measurements: tuple[Measuring, ...]) -> None:
    """The first round of an epoch of disjoint batches pays for all of it: every round of it has to cost the same."""
    sampled = [(one.sampler, one.mechanism) for one in measurements if isinstance(one, Measurement)]
    if any(isinstance(sampler, disjoint_batches) for sampler, _ in sampled) and (
        len(sampled) < len(measurements) or any(other != sampled[0] for other in sampled)
    ):
        raise CompositionError(
            "disjoint_batches pays for an epoch in its first round, so all rounds have to sample alike and with the same noise. "
            "poisson pays round by round."
        )


def _check_slots_of(release: Any, measurement: Any) -> None:
    """Validate that there is a release rule, and a measurement for each round."""
    if isinstance(release, type) or not all(hasattr(release, name) for name in ("start", "observe", "select", "rounds")):
        raise CompositionError(f"release is {release!r}, but it is a release rule, such as last() or average('all').")
    if not callable(measurement):
        raise CompositionError("a recipe has a measurement for each round: always(…), every(…), or a function of the round.")


@dataclass(frozen=True)
class Recipe:
    """One algorithm, ready to run on any oracle.

    What its slots need of each other is checked here; what they need of oracle and start parameters, by `check`.

    **Guarantee** `planned_event()` is known before any data are read; after a run the ledger holds the same event.
    """

    rounds: int
    measurement: Plan
    update: UpdateRule
    release: ReleaseRule = field(default_factory=last)
    regularizer: Regularizer | None = None
    side: SideInformation = field(default_factory=nothing)
    estimate: Estimate = field(default_factory=newest_answer)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise CompositionError(f"a recipe has at least one round, not {self.rounds}.")
        _check_slots_of(self.release, self.measurement)
        weights = self.release.weights if isinstance(self.release, random_round) else None
        if weights is not None and len(weights) != self.rounds:
            raise CompositionError(f"random_round has {len(weights)} weights, but it needs {self.rounds}: one for each round.")
        _check_epochs(self.measurements)
        same = {EVERY_ROUND} if len(self.measurements) == 1 else set()
        check_slots(self.needs, offers_of(self.side) | {PREVIOUS_ITERATE, EARLIER_BOUND} | same, "this recipe")

    @cached_property
    def measurements(self) -> tuple[Measuring, ...]:
        """Whatever is measured in some round; a plan of the user's own is asked for every round."""
        if isinstance(self.measurement, always | after | every):
            return self.measurement.measurements
        return tuple({id(one): one for one in map(self.measurement, range(self.rounds))}.values())

    @cached_property
    def needs(self) -> Needs:
        """What the slots declare."""
        return needs_of(*self.measurements, self.update, self.side, self.regularizer)

    @property
    def looks_back(self) -> bool:
        """Whether a slot asks where the iterate was, as differences of gradients do."""
        return PREVIOUS_ITERATE in self.needs

    def check(self, offer: Offer, parameters: Any) -> None:
        """Refuse an oracle or start parameters that this recipe cannot run on. Nothing is paid, no private example is read.

        The public side of the first round is tried on the answer 0, so that whatever fails in it fails here.
        """
        if offer.size < 1:
            raise CompositionError("the oracle has no examples, so there is no mean of them.")
        xp = array_namespace(parameters)
        if not xp.isdtype(parameters.dtype, "real floating") or not is_finite(parameters):
            raise CompositionError("start parameters are finite floating-point numbers: no step leads from others to a model.")
        shape = tuple(parameters.shape)
        if len(shape) != 1 or offer.dimension not in (None, *shape):
            raise CompositionError(
                f"the start parameters have the shape {shape}, but they are one vector"
                + ("." if offer.dimension is None else f", of the {offer.dimension} parameters of the oracle.")
            )
        check_oracle(self.needs, replace(offer, dimension=shape[0]))
        words = {str(name): meaning for name, meaning in UNITS.items()}
        for unit in {getattr(one, "unit", each_row()).name for one in self.measurements} - {offer.unit}:
            raise CompositionError(
                f"the recipe protects {words.get(unit, unit)}, but the oracle has a vector for "
                f"{words.get(offer.unit, offer.unit)}: what is clipped is what is protected."
            )
        with np.errstate(all="ignore"):
            known, _ = self.side.at(parameters, self.side.start(parameters), 0)
        for name, value in known._asdict().items():
            if value is not None and tuple(value.shape) != shape:
                raise CompositionError(
                    f"the public {name} has the shape {tuple(value.shape)}, but there are {shape[0]} parameters: it holds one "
                    "number for each."
                )
        with np.errstate(all="ignore"):
            direction, _ = self.estimate.of(0 * parameters, self.estimate.start(parameters), 0)
            if self.regularizer is not None:
                direction = direction + self.regularizer.gradient(parameters)
            step, _ = self.update.step(direction, self.update.start(parameters), 0, known)
            if callable(step.towards):
                step.towards(slice(0, 1))
        if not math.isfinite(step.rate):
            raise CompositionError(f"the first step has the rate {step.rate}, but it is a finite number.")

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

    def protecting(self, unit: Unit) -> "Recipe":
        """The same algorithm for an oracle that has a vector for each unit of this kind, instead of one for each row.

        **Guarantee** Of each `Measurement`, for such a unit. An answer of another kind goes on protecting each row, so it is
        refused with such an oracle.
        """
        return self if unit == each_row() else replace(self, measurement=_protecting(self.measurement, unit))

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
