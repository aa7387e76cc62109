"""What (ε, δ) allows an attacker, against the trade-off function and against a mechanism that reaches it."""

import math

import numpy as np
import pytest

from privopt.privacy.attacker import describe_attacker, strongest_attacker

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
    assert "more than 99.95 %" in describe_attacker(50.0, 1e-6)
    assert "promises next to nothing" not in describe_attacker(3.0, 1e-6)
    assert "73.1 %" in describe_attacker(1.0, 1e-6)
