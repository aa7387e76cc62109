"""Events: one canonical form, one JSON form, one phrase."""

import json
from itertools import pairwise

import pytest
from dp_accounting.dp_event import DpEvent as AnyDpEvent
from dp_accounting.dp_event import ZCDpEvent
from hypothesis import given
from hypothesis import strategies as st

from privopt.errors import LedgerError
from privopt.measure.samplers import several_rows
from privopt.privacy import events
from privopt.privacy.events import (
    ComposedDpEvent,
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    atoms,
    compose,
    describe,
    from_json,
    to_json,
)
from tests.privacy.strategies import KINDS, few, nested, sampled

GAUSSIAN, PURE = GaussianDpEvent(2.0), PureDpEvent(0.1)


def written_out(event: DpEvent) -> list[DpEvent]:
    """The releases one by one: what an event means, the slow way."""
    match event:
        case NoOpDpEvent():
            return []
        case SelfComposedDpEvent(event=inner, count=count):
            return written_out(inner) * count
        case ComposedDpEvent(events=parts):
            return [each for part in parts for each in written_out(part)]
        case _:
            return [event]


@given(nested(few))
def test_atoms_are_the_releases_one_by_one_with_equal_neighbours_counted(event: DpEvent) -> None:
    counted = list(atoms(event))
    assert [part for part, count in counted for _ in range(count)] == written_out(event)
    assert all(count >= 1 for _, count in counted)
    assert all(one != other for (one, _), (other, _) in pairwise(counted))


@given(st.lists(nested(few), max_size=4))
def test_two_events_are_equal_when_their_releases_are(parts: list[DpEvent]) -> None:
    flat = [release for part in parts for release in written_out(part)]
    assert compose(parts) == compose(flat)


@given(nested(few))
def test_the_canonical_form_is_its_own_canonical_form(event: DpEvent) -> None:
    assert compose([compose([event])]) == compose([event])


@given(nested(few), nested(few), nested(few))
def test_it_does_not_matter_what_is_composed_first(one: DpEvent, two: DpEvent, three: DpEvent) -> None:
    assert compose([compose([one, two]), three]) == compose([one, compose([two, three])]) == compose([one, two, three])


def test_order_is_part_of_what_was_done() -> None:
    assert compose([GAUSSIAN, PURE]) != compose([PURE, GAUSSIAN])


def test_long_runs_are_counted_without_being_written_out() -> None:
    assert list(atoms(SelfComposedDpEvent(SelfComposedDpEvent(GAUSSIAN, 10**6), 10**6))) == [(GAUSSIAN, 10**12)]


# ---------------------------------------------------------------- JSON


@given(nested(sampled))
def test_json_gives_the_event_back_exactly(event: DpEvent) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_every_kind_has_a_form_in_a_ledger_and_a_phrase() -> None:
    everything = [
        ComposedDpEvent([GAUSSIAN, PURE]),
        FailureDpEvent(1e-7),
        GAUSSIAN,
        LaplaceDpEvent(3.0),
        several_rows(0.1, 3, 2.0),
        NonPrivateDpEvent(),
        NoOpDpEvent(),
        PoissonSampledDpEvent(0.1, GAUSSIAN),
        PURE,
        RepeatAndSelectDpEvent(GAUSSIAN, 8.0, 1.0),
        SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
        SelfComposedDpEvent(GAUSSIAN, 3),
    ]
    ours = {getattr(events, name) for name in events.__all__ if isinstance(getattr(events, name), type)} - {DpEvent}
    assert {type(event) for event in everything} == KINDS == ours
    for event in everything:
        assert from_json(json.loads(json.dumps(to_json(event)))) == event
        assert "Event(" not in describe(event)
    assert len({describe(event) for event in everything}) == len(everything)


def test_whole_numbers_come_back_as_the_same_event() -> None:
    for event in (GaussianDpEvent(2), LaplaceDpEvent(3), PureDpEvent(1), PoissonSampledDpEvent(1, GaussianDpEvent(2))):
        assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_an_event_that_a_ledger_has_no_form_for_is_refused() -> None:
    with pytest.raises(LedgerError, match="ZCDpEvent has no form"):
        to_json(ZCDpEvent(1.0))


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "gaussian-mixture", "noise_multiplier": 1.0, "moves": [0.0, 1.0], "probabilities": [0.5, 0.4]},
        {"kind": "gaussian-mixture", "noise_multiplier": 1.0, "moves": [0.0, -1.0], "probabilities": [0.5, 0.5]},
        {"kind": "gaussian-mixture", "noise_multiplier": 1.0, "moves": [1.0], "probabilities": [0.5, 0.5]},
        {"kind": "moments"},
        {},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": "2"},
        {"kind": "poisson"},
    ],
)
def test_a_form_that_nobody_wrote_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(LedgerError, match="unknown event"):
        from_json(value)


def test_descriptions_say_what_was_done() -> None:
    event = compose([SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 300), FailureDpEvent(1e-7)])
    assert describe(event) == (
        "300 × Gaussian mechanism, noise multiplier 1.5, Poisson sampling with probability 0.01; "
        "release with failure probability 1e-07"
    )
    assert describe(NoOpDpEvent()) == "nothing"
    assert "fixed-size samples of 10 of 100" in describe(SampledWithoutReplacementDpEvent(100, 10, LaplaceDpEvent(2.0)))


def test_our_events_are_dp_accounting_s() -> None:
    assert all(issubclass(kind, AnyDpEvent) for kind in KINDS)
