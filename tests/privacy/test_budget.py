"""Budgets: what may be asked for, and what they allow an attacker."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.errors import InputError
from privopt.privacy.budget import Budget, default_delta, describe_attacker, strongest_attacker


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


# ---------------------------------------------------------------- attackers

PAIRS = [(0.1, 0.0), (1.0, 1e-5), (3.0, 0.01), (50.0, 1e-6), (1e4, 0.0)]


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_the_advantage_is_the_largest_that_the_trade_off_function_allows(epsilon: float, delta: float) -> None:
    """With a false positive rate α, (ε, δ)-DP allows a false negative rate no smaller than f(α) (Dong, Roth, Su 2022)."""
    alpha = np.concatenate([np.linspace(0, 1, 100_001), np.geomspace(1e-30, 1, 10_001)])
    with np.errstate(over="ignore"):
        least = np.maximum(
            0.0, np.maximum(1 - delta - np.exp(min(epsilon, 700)) * alpha, math.exp(-epsilon) * (1 - delta - alpha))
        )
    advantage = float((1 - least - alpha).max())
    assert strongest_attacker(epsilon, delta).advantage == pytest.approx(advantage, abs=1e-4)


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_success_and_posterior_follow_from_even_odds(epsilon: float, delta: float) -> None:
    attacker = strongest_attacker(epsilon, delta)
    assert attacker.success == pytest.approx((1 + attacker.advantage) / 2)
    assert attacker.posterior == pytest.approx(math.exp(min(epsilon, 700)) / (1 + math.exp(min(epsilon, 700))))
    assert attacker.success == pytest.approx(delta + (1 - delta) * attacker.posterior)


def test_randomised_response_reaches_it() -> None:
    """Of 200,000 guesses; a false alarm has a probability below 1e-6 (five deviations)."""
    rng, epsilon, size = np.random.default_rng(0), 1.0, 200_000
    took_part = rng.random(size) < 0.5
    answer = np.where(rng.random(size) < 1 / (1 + math.exp(-epsilon)), took_part, ~took_part)
    assert np.mean(answer == took_part) == pytest.approx(strongest_attacker(epsilon).success, abs=5 * 0.5 / math.sqrt(size))


def test_a_large_epsilon_is_told_what_it_means() -> None:
    assert "promises next to nothing" in describe_attacker(50.0, 1e-6)
    assert "can become all but certain" in describe_attacker(50.0, 1e-6)
    assert "promises next to nothing" not in describe_attacker(3.0, 1e-6)
    assert "73.1 %" in describe_attacker(1.0, 1e-6)
