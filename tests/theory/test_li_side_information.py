"""AdaDPS: the constants of its proofs, against runs whose expectation is known."""

import math

import numpy as np
import pytest

from privopt.errors import InputError
from privopt.theory import Problem
from privopt.theory import li_side_information as paper

A = [1.0, 0.25, 0.5]
NOISE = {"clip_bound": 2.0, "noise_multiplier": 3.0, "batch": 10.0}  # σC/b = 0.6


def test_the_convex_bounds_by_hand() -> None:
    settings = {"rounds": 49, "learning_rate": 0.5, "distance": 3.0}
    fixed = paper.convex_bound(A, **settings, **NOISE, second_moment=1.5)  # type: ignore[arg-type]
    assert fixed.value == pytest.approx(1.75 / 7 * (9 + 0.5 * 1.5 + 0.5 * 0.36))
    by_clip = paper.convex_bound(A, **settings, **NOISE)  # type: ignore[arg-type]
    assert by_clip.value == pytest.approx(1.75 / 7 * (9 + 0.5 * 4 + 0.5 * 0.36))
    public = paper.public_convex_bound(A, **settings, **NOISE, similarity=0.5, forgetting=0.4)  # type: ignore[arg-type]
    assert public.value == pytest.approx(1.75 / 7 * (9 + 0.5 * 1.6 / 0.2 + 0.5 * 0.36))


@pytest.mark.parametrize("learning_rate", [0.05, 0.5])
@pytest.mark.parametrize("rounds", [1, 20, 300])
def test_the_convex_bound_holds(learning_rate: float, rounds: int) -> None:
    """½‖w‖² from w = (1, 1, 1), step α/(A√t), noise αN/√t: E w² is known exactly, coordinate by coordinate."""
    scale = np.array(A)
    noise = (NOISE["noise_multiplier"] * NOISE["clip_bound"] / NOISE["batch"]) ** 2
    square, values, largest, moment = np.ones(3), [], 3.0, 0.0
    for t in range(1, rounds + 1):
        step = learning_rate / math.sqrt(t)
        values.append(float(np.sum(square)) / 2)
        largest, moment = max(largest, float(np.sum(square))), max(moment, float(np.max(square / scale**2)))
        square = (1 - step / scale) ** 2 * square + step**2 * noise
    bound = paper.convex_bound(
        A,
        rounds=rounds,
        learning_rate=learning_rate,
        distance=math.sqrt(largest),
        second_moment=moment,
        **NOISE,
    )
    assert min(values) <= np.mean(values) <= bound.number


@pytest.mark.parametrize(("learning_rate", "holds"), [(0.125, True), (0.1251, False)])
def test_misprint_the_step_of_theorem_5_is_epsilon_over_l_not_epsilon_over_t(learning_rate: float, holds: bool) -> None:
    """min A/L = 0.125, whatever T is."""
    bound = paper.nonconvex_bound(
        Problem(100, 3, smoothness=2.0, gap=1.0), A, rounds=1000, learning_rate=learning_rate, spread=0.1, **NOISE
    )
    assert bound.holds is holds
    if not holds:
        assert bound.failing[0].startswith("α ≤ min A/L")


@pytest.mark.parametrize("rounds", [1, 30, 2000])
def test_the_nonconvex_bound_holds_and_by_hand(rounds: int) -> None:
    """½L‖w‖² with noise on every coordinate: E w² is known exactly."""
    scale, smoothness, spread = np.array(A), 2.0, 0.4
    step = 0.25 / smoothness
    injected = spread**2 / 10 / scale**2 + 0.36  # of the preconditioned mean gradient
    square, mean = np.ones(3), 0.0
    for _ in range(rounds):
        mean += float(np.sum(smoothness**2 * square / scale)) / rounds
        square = (1 - step * smoothness / scale) ** 2 * square + step**2 * injected
    bound = paper.nonconvex_bound(
        Problem(100, 3, smoothness=smoothness, gap=3.0), A, rounds=rounds, learning_rate=step, spread=spread, **NOISE
    )
    by_hand = 6 / (step * rounds) + step * smoothness / 0.25 * spread**2 / 10 * 7 + step * smoothness * 3 * 0.36
    assert bound.value == pytest.approx(by_hand)
    assert mean <= by_hand


def test_what_cannot_be_is_said() -> None:
    settings = {"rounds": 10, "learning_rate": 0.1, "distance": 1.0}
    with pytest.raises(InputError, match="preconditioner is empty"):
        paper.convex_bound([], **settings, **NOISE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"preconditioner is -1\.0"):
        paper.convex_bound([1.0, -1.0], **settings, **NOISE)  # type: ignore[arg-type]
    dissimilar = paper.public_convex_bound(A, **settings, **NOISE, similarity=2.0, forgetting=3.0)  # type: ignore[arg-type]
    assert dissimilar.failing == ("a ≤ 1: a = 2", "γ ≤ 1: γ = 3")
    few = paper.nonconvex_bound(Problem(10, 5), A, rounds=10, learning_rate=0.1, spread=0.1, **NOISE)
    assert few.failing == ("one A for each of the d = 5 parameters: 3",)
