"""Budgets: what may be asked for."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.errors import InputError
from privopt.privacy.budget import Budget, default_delta


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_guarantees_nothing_or_too_much_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match="finite epsilon > 0"):
        Budget(epsilon)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2.0, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match="0 ≤ delta < 1"):
        Budget(1.0, delta)


def test_misspelt_neighbours_are_refused_with_the_right_ones() -> None:
    with pytest.raises(InputError, match="'add-remove' or 'replace-one'"):
        Budget(1.0, 1e-5, "replace_one")  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["household", "row", None])
def test_a_unit_that_nobody_enforces_is_refused_and_the_error_says_what_is_possible(unit: Any) -> None:
    with pytest.raises(InputError, match=r"it is 'example'.*'person'.*share an id.*'user'"):
        Budget(1.0, 1e-5, unit=unit)


def test_a_budget_cannot_be_changed_after_it_was_given() -> None:
    with pytest.raises(AttributeError):
        Budget(1.0).epsilon = 2.0  # type: ignore[misc]


@given(st.integers(1, 10**12))
def test_the_default_delta_is_a_power_of_ten_of_at_most_a_tenth_of_one_over_n(size: int) -> None:
    delta = default_delta(size)
    assert 1 / (100 * size) * (1 - 1e-9) < delta <= 1 / (10 * size) * (1 + 1e-9)
    assert math.log10(delta) == pytest.approx(round(math.log10(delta)), abs=1e-9)


@pytest.mark.parametrize(("size", "delta"), [(1, 1e-1), (10, 1e-2), (999, 1e-4), (1000, 1e-4), (1001, 1e-5), (32561, 1e-6)])
def test_default_deltas_by_hand(size: int, delta: float) -> None:
    assert default_delta(size) == delta
