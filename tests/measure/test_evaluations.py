"""Evaluations: how far a row or a person moves the sums, what noise they get, and what is paid."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from privopt.errors import BudgetExceeded, CompositionError
from privopt.measure.evaluations import HeldOutSums
from privopt.measure.mechanisms import gaussian, laplace
from privopt.measure.randomness import generator
from privopt.measure.units import each_person, each_user
from privopt.perexample.grads import Vector
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger

ROWS, CELLS = 6, 5
KINDS = [laplace, gaussian]
QUERIES = [(CELLS, 1), (0, 5), (CELLS, 0), (CELLS, 3)]
FALSE_ALARM = 1e-6

each_kind = pytest.mark.parametrize("kind", KINDS)
each_query = pytest.mark.parametrize(("cells", "values"), QUERIES)
rows_of_any_kind = st.tuples(
    arrays(np.int64, ROWS, elements=st.integers(-2, CELLS + 2)),
    arrays(float, (ROWS, 5), elements=st.floats(allow_nan=True, allow_infinity=True)),
)


def total(query: HeldOutSums, rows: Any, kept: Any, persons: Any = None) -> Vector:
    """The sums of some of the rows."""
    votes, values = rows
    numbers = None if persons is None else np.unique(persons[kept], return_inverse=True)[1]
    return query.total(votes[kept], values[kept, : query.values], numbers)[0]


def distance(query: HeldOutSums, one: Vector, other: Vector) -> float:
    return float(np.linalg.norm(one - other, query.mechanism.order))


# ---------------------------------------------------------------- how far one unit moves the sums


@each_kind
@each_query
@settings(max_examples=60)
@given(rows=rows_of_any_kind)
def test_a_row_that_is_added_or_removed_moves_the_sums_by_at_most_the_bound(
    kind: Any, cells: int, values: int, rows: Any
) -> None:
    query = HeldOutSums(cells, values, kind(1.0))
    everybody = total(query, rows, np.arange(ROWS))
    for row in range(ROWS):
        assert distance(query, everybody, total(query, rows, np.delete(np.arange(ROWS), row))) <= query.bound * (1 + 1e-9)


@each_kind
@each_query
@settings(max_examples=60)
@given(rows=rows_of_any_kind)
def test_a_row_that_is_replaced_moves_the_sums_by_at_most_twice_the_bound(kind: Any, cells: int, values: int, rows: Any) -> None:
    query = HeldOutSums(cells, values, kind(1.0))
    others = np.arange(2, ROWS)
    one, other = (total(query, rows, np.append(others, row)) for row in (0, 1))
    assert distance(query, one, other) <= 2 * query.bound * (1 + 1e-9)
    changed = np.abs(one - other)[:cells]
    assert (changed > 0.5).sum() <= 2
    assert changed.max(initial=0.0) <= 1 + 1e-9


@each_kind
@each_query
@settings(max_examples=60)
@given(rows=rows_of_any_kind, persons=arrays(np.int64, ROWS, elements=st.integers(0, 2)))
def test_all_rows_of_a_person_move_the_sums_by_at_most_the_bound(
    kind: Any, cells: int, values: int, rows: Any, persons: Vector
) -> None:
    query = HeldOutSums(cells, values, kind(1.0), each_person())
    everybody = total(query, rows, np.arange(ROWS), persons)
    for person in np.unique(persons):
        kept = np.flatnonzero(persons != person)
        without = total(query, rows, kept, persons) if len(kept) else np.zeros(cells + values)
        assert distance(query, everybody, without) <= query.bound * (1 + 1e-9)


@each_kind
@settings(max_examples=40)
@given(rows=rows_of_any_kind)
def test_a_person_with_one_row_that_becomes_one_with_four_moves_the_sums_by_at_most_twice_the_bound(kind: Any, rows: Any) -> None:
    query = HeldOutSums(CELLS, 3, kind(1.0), each_person())
    persons = np.array([0, 1, 2, 2, 2, 2])
    one, other = (total(query, rows, np.array(kept), persons) for kept in ([0, 1], [0, 2, 3, 4, 5]))
    assert distance(query, one, other) <= 2 * query.bound * (1 + 1e-9)


@each_kind
def test_the_bound_is_reached(kind: Any) -> None:
    query = HeldOutSums(2, 4, kind(1.0))
    votes, values = np.array([0]), np.array([[0.0, 1.0, math.nan, -math.inf]])
    assert np.linalg.norm(query.total(votes, values)[0], kind(1.0).order) == pytest.approx(query.bound)


def test_a_person_counts_once() -> None:
    query = HeldOutSums(2, 1, laplace(1.0), each_person())
    votes, values = np.array([0, 0, 0, 1]), np.array([[1.0], [1.0], [0.0], [0.0]])
    sums, size = query.total(votes, values, np.array([0, 0, 0, 1]))
    assert size == 2
    np.testing.assert_allclose(sums, [1.0, 1.0, 2 / 3 - 1 / 2 - 1 / 2])


def test_a_person_who_counted_with_each_row_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    query = HeldOutSums(2, 0, laplace(1.0), each_person())
    monkeypatch.setattr(np, "bincount", _unweighted(np.bincount))
    sums, _ = query.total(np.zeros(4, int), np.zeros((4, 0)), np.zeros(4, int))
    assert np.abs(sums).sum() > query.bound


def _unweighted(honest: Any) -> Any:
    return lambda places, weights=None, minlength=0: honest(places, minlength=minlength)


# ---------------------------------------------------------------- noise


def noise(query: HeldOutSums) -> Vector:
    """The noise of one release, in units of the stated deviation."""
    rows = 10
    votes, values = np.arange(rows) % query.cells, np.full((rows, query.values), 0.5)
    noisy = query.measure(votes, values, None, spending=Ledger().run(), rng=generator(3))
    counts = noisy.counts - np.bincount(votes, minlength=query.cells)
    return np.concatenate([counts, noisy.sums - rows / 2]) / noisy.deviation


def tail(query: HeldOutSums, drawn: Vector) -> float:
    """How rarely noise of the stated distribution is as small, or as large, in all, as what was drawn."""
    if isinstance(query.mechanism, gaussian):
        return float(stats.chi2.cdf((drawn**2).sum(), len(drawn)))
    return float(stats.gamma.cdf(np.abs(drawn).sum() * math.sqrt(2), len(drawn)))  # |Laplace| is exponential


@each_kind
def test_noise_has_the_stated_deviation_and_half_of_it_would_be_found(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    query = HeldOutSums(2000, 3, kind(0.7))
    assert query.deviation == pytest.approx(query.bound * 0.7 * (math.sqrt(2) if kind is laplace else 1.0))
    assert FALSE_ALARM / 2 < tail(query, noise(query)) < 1 - FALSE_ALARM / 2
    honest = kind.release
    monkeypatch.setattr(kind, "release", lambda self, total, bound, rng: honest(self, total, bound / 2, rng))
    assert not FALSE_ALARM / 2 < tail(query, noise(query)) < 1 - FALSE_ALARM / 2


@each_kind
def test_sums_are_right_but_for_the_noise(kind: Any) -> None:
    query = HeldOutSums(3, 2, kind(1e-9))
    noisy = query.measure(
        np.array([0, 2, 2]), np.array([[0.2, 1.0], [0.4, 0.5], [2.0, 0.0]]), None, spending=Ledger().run(), rng=generator(0)
    )
    np.testing.assert_allclose(noisy.counts, [1, 0, 2], atol=1e-6)
    np.testing.assert_allclose(noisy.sums, [1.6, 1.5], atol=1e-6)


# ---------------------------------------------------------------- what is paid, and refused


@each_kind
def test_a_release_is_paid_once_before_rows_are_read(kind: Any) -> None:
    ledger, query = Ledger(), HeldOutSums(2, 1, kind(3.0))
    query.measure(np.zeros(4, int), np.zeros((4, 1)), None, spending=ledger.run(), rng=generator(0))
    assert ledger.event == kind(3.0).event == query.event

    class Unreadable:
        def __len__(self) -> int:
            raise AssertionError("rows were read")

    capped = Ledger(Budget(0.1, 1e-6))
    unreadable: Any = Unreadable()
    with pytest.raises(BudgetExceeded):
        query.measure(unreadable, unreadable, None, spending=capped.run(), rng=generator(0))
    assert capped.entries == ()


def test_units_that_are_not_summed_are_refused() -> None:
    with pytest.raises(CompositionError, match="by row or by person"):
        HeldOutSums(2, 1, laplace(1.0), each_user())
    with pytest.raises(CompositionError, match="persons"):
        HeldOutSums(2, 1, laplace(1.0), each_person()).total(np.zeros(2, int), np.zeros((2, 1)))
    with pytest.raises(CompositionError, match="persons"):
        HeldOutSums(2, 1, laplace(1.0)).total(np.zeros(2, int), np.zeros((2, 1)), np.zeros(2, int))
