"""Caps: somebody who looks at each answer before choosing what to ask next stays within the cap; and did not, before."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from privopt.errors import BudgetExceeded
from privopt.perexample.grads import Vector
from privopt.privacy.accountants import epsilon, renyi
from privopt.privacy.budget import Budget, Neighbours
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import (
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    compose,
)
from privopt.privacy.filters import FAILURES, RenyiFilter, best_order
from privopt.privacy.ledger import Ledger

# ---------------------------------------------------------------- an adversary, whose δ is computed exactly


def gaussian_delta(loss: Vector, noise: float) -> Vector:
    """δ(ε) of Gaussian noise, by Balle & Wang (2018): P(L > ε) − e^ε P'(L > ε)."""
    return norm.cdf(0.5 / noise - loss * noise) - np.exp(loss) * norm.cdf(-0.5 / noise - loss * noise)


def response_delta(loss: Vector, pure: float) -> Vector:
    """δ(ε) of a randomised response with odds e^pure, the worst of all pure-DP mechanisms."""
    truth = 1 / (1 + math.exp(-pure))
    return truth * np.maximum(0, 1 - np.exp(loss - pure)) + (1 - truth) * np.maximum(0, 1 - np.exp(loss + pure))


def adaptive_delta(cap: float, first: float, noise: float, pure: float) -> float:
    """δ(cap) of: Gaussian noise; look at the answer; then a Gaussian or a randomised response, whichever fails more often there.

    The answer x of the first has the privacy loss L(x), normal with mean 1/(2z²) and variance 1/z². The losses of both steps add
    up, so δ(ε) = E_x[max of the second step's δ(ε − L(x))]: one integral, here a sum over a fine grid of x.
    """
    x = np.linspace(-10, 10, 20_001)
    rest = cap - (0.5 / first**2 + x / first)
    worst = np.maximum(gaussian_delta(rest, noise), response_delta(rest, pure))
    return float(np.sum(norm.pdf(x) * worst) * (x[1] - x[0]))


def largest(allowed: Callable[[float], bool], high: float) -> float:
    """The largest value that is allowed, by bisection."""
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


CAPS = [Budget(1.0, 1e-5), Budget(3.0, 1e-3), Budget(0.2, 1e-6)]


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("cap", CAPS, ids=str)
def test_choosing_the_next_release_by_the_last_answer_keeps_the_cap(cap: Budget, share: float) -> None:
    """Each of two continuations is as large as the ledger allows."""
    first = calibrate(GaussianDpEvent, cap) / math.sqrt(share)
    ledger = Ledger(cap)
    ledger.run().pay([GaussianDpEvent(first)])
    noise = 1 / largest(lambda precision: ledger.allows([GaussianDpEvent(1 / precision)]), 100.0)
    pure = largest(lambda value: ledger.allows([PureDpEvent(value)]), cap.epsilon)
    reached = adaptive_delta(cap.epsilon, first, noise, pure)
    assert 0.01 * cap.delta < reached <= cap.delta


def test_the_price_of_the_path_as_it_happened_is_no_cap() -> None:
    """Why there are filters: both paths cost no more than the cap, and δ is almost twice the cap's."""
    cap = Budget(1.0, 1e-5)
    first = calibrate(GaussianDpEvent, cap) / math.sqrt(0.2)

    def priced(event: DpEvent) -> bool:
        return epsilon(compose([GaussianDpEvent(first), event]), cap.delta) <= cap.epsilon

    noise = 1 / largest(lambda precision: priced(GaussianDpEvent(1 / precision)), 1.0)
    assert adaptive_delta(cap.epsilon, first, noise, 1e-9) == pytest.approx(cap.delta, rel=1e-3)  # the computation is exact
    low = high = 0.59857  # the largest pure-DP release that is priced within the cap: a price takes long, so few are asked for
    while priced(PureDpEvent(high)):
        low, high = high, high * 1.001
    assert adaptive_delta(cap.epsilon, first, noise, low) > 1.49 * cap.delta


@settings(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.floats(0.05, 0.95)), min_size=1, max_size=6), st.sampled_from(CAPS))
def test_many_steps_chosen_by_the_answers_keep_the_cap(steps: list[tuple[bool, float]], cap: Budget) -> None:
    """Dynamic programming over the privacy loss so far: at every step the adversary asks, or stops, by what it has seen.

    A step takes a share of what is left of the limit, as a Gaussian or as a randomised response. δ(ε − loss) of the rest is
    computed backwards on a grid of losses, and the worst choice is taken at every point of it.
    """
    held = RenyiFilter(cap, best_order(cap))
    left, plan = held.limit, []
    for gaussian, share in steps:
        divergence = share * left
        left -= divergence
        if gaussian:
            plan.append((True, math.sqrt(held.order / (2 * divergence))))
        else:
            allowed = largest(lambda pure, room=divergence: renyi(PureDpEvent(pure), held.order, "add-remove") <= room, 20.0)  # type: ignore[misc]
            plan.append((False, allowed))
    losses = np.linspace(-4 * cap.epsilon - 4, 8 * cap.epsilon + 8, 6001)
    after = np.maximum(0, 1 - np.exp(cap.epsilon - losses))  # δ if it stops with this loss
    points, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    for gaussian, size in reversed(plan):
        if gaussian:
            steps_of = 0.5 / size**2 + points / size
            chances = weights
        else:
            truth = 1 / (1 + math.exp(-size))
            steps_of, chances = np.array([size, -size]), np.array([truth, 1 - truth])
        asked = sum(chance * np.interp(losses + step, losses, after) for step, chance in zip(steps_of, chances, strict=True))
        after = np.maximum(after, asked)
    assert np.interp(0.0, losses, after) <= cap.delta


# ---------------------------------------------------------------- what is filtered

NEIGHBOURS: list[Neighbours] = ["add-remove", "replace-one"]
EVENTS: list[DpEvent] = [
    GaussianDpEvent(20.0),
    LaplaceDpEvent(40.0),
    PureDpEvent(0.02),
    PoissonSampledDpEvent(0.01, GaussianDpEvent(2.0)),
    PoissonSampledDpEvent(0.1, LaplaceDpEvent(4.0)),
    FailureDpEvent(1e-8),
]


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_what_a_filter_holds_costs_no_more_than_the_cap(event: DpEvent, neighbours: Neighbours) -> None:
    """The price of a fixed plan is a lower bound for whatever a filter may hold, and the filter comes close to it."""
    cap = Budget(1.0, 1e-5, neighbours)
    held = RenyiFilter(cap, best_order(cap))
    count = math.floor(1 / held.used(event))
    assert held.holds(SelfComposedDpEvent(event, count))
    assert not held.holds(SelfComposedDpEvent(event, count + 1))
    price = epsilon(SelfComposedDpEvent(event, count), cap.delta, neighbours)
    least = 0.0 if isinstance(event, FailureDpEvent) else 0.7
    assert least <= price <= 1.0


def test_the_divergences_are_those_of_the_mechanisms() -> None:
    """Against integrals of p^α q^(1−α)."""
    x = np.linspace(-60, 60, 400_001)
    step = x[1] - x[0]

    def integral(p: Vector, q: Vector, order: float) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.log(np.sum(np.nan_to_num(np.exp(order * np.log(p) + (1 - order) * np.log(q)))) * step) / (order - 1))

    for order in (1.5, 4.0, 17.0):
        here, away, back = norm.pdf(x, 0, 3), norm.pdf(x, 1, 3), norm.pdf(x, -1, 3)
        assert renyi(GaussianDpEvent(3.0), order, "add-remove") == pytest.approx(integral(away, here, order), rel=1e-6)
        assert renyi(GaussianDpEvent(3.0), order, "replace-one") == pytest.approx(integral(away, back, order), rel=1e-6)
        mixed, other = 0.9 * here + 0.1 * away, 0.9 * here + 0.1 * back
        sampled = PoissonSampledDpEvent(0.1, GaussianDpEvent(3.0))
        exact = integral(mixed, here, order)
        assert exact * (1 - 1e-6) <= renyi(sampled, order, "add-remove") <= 1.5 * exact  # for orders that are not whole, a bound
        replaced = renyi(sampled, order, "replace-one")
        assert integral(mixed, other, order) <= replaced
        laplace, moved = np.exp(-np.abs(x) / 2) / 4, np.exp(-np.abs(x - 1) / 2) / 4
        assert integral(laplace, moved, order) <= renyi(LaplaceDpEvent(2.0), order, "add-remove")
        truth = 1 / (1 + math.exp(-0.5))
        exact = math.log(truth**order * (1 - truth) ** (1 - order) + (1 - truth) ** order * truth ** (1 - order)) / (order - 1)
        assert renyi(PureDpEvent(0.5), order, "add-remove") == pytest.approx(exact, rel=1e-9)


def test_failures_have_a_share_of_delta_of_their_own() -> None:
    cap = Budget(1.0, 1e-5)
    ledger = Ledger(cap)
    ledger.run().pay([FailureDpEvent(FAILURES * cap.delta / 2)])
    assert ledger.used == pytest.approx(0.5)
    assert not ledger.allows([FailureDpEvent(0.6 * FAILURES * cap.delta)])
    assert ledger.allows([GaussianDpEvent(10.0)])


def test_without_delta_the_pure_releases_add_up() -> None:
    ledger = Ledger(Budget(1.0))
    ledger.run().pay([PureDpEvent(0.25)] * 3)
    assert ledger.used == 0.75
    assert ledger.allows([PureDpEvent(0.25)])
    assert not ledger.allows([PureDpEvent(0.26)])
    assert not ledger.allows([GaussianDpEvent(1e6)])
    assert "basic composition" in (ledger.cap or "")


def test_releases_without_noise_and_fixed_samples() -> None:
    assert not Ledger(Budget(100.0, 0.5)).allows([NonPrivateDpEvent()])
    ledger = Ledger(Budget(1.0, 1e-5, "replace-one"))
    assert ledger.allows([SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(4.0))])
    assert not ledger.allows([SampledWithoutReplacementDpEvent(1000, 500, GaussianDpEvent(4.0))])


# ---------------------------------------------------------------- a plan that has the cap to itself


def plan_of(cap: Budget, rounds: int = 50) -> list[DpEvent]:
    """A plan that costs all of the cap."""
    noise = calibrate(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), rounds), cap)
    return [GaussianDpEvent(noise)] * rounds


def test_one_run_planned_within_the_cap_gets_all_of_it() -> None:
    cap = Budget(1.0, 1e-5)
    ledger, plan = Ledger(cap), plan_of(cap)
    assert not ledger.allows(plan)  # not by the filter
    run = ledger.run("planned")
    assert run.affordable(plan) == len(plan)
    run.pay(plan[:20])
    run.pay(plan[20:])
    assert ledger.holder == "planned"
    assert 0.99 < ledger.epsilon() <= 1.0
    assert "for one planned run," in (ledger.cap or "")


def test_nothing_else_is_charged_when_a_plan_has_the_cap_to_itself() -> None:
    """Not even when it was stopped at once: whether it goes on could depend on its answers."""
    cap = Budget(1.0, 1e-5)
    ledger, plan = Ledger(cap), plan_of(cap)
    run = ledger.run("planned")
    run.affordable(plan)
    run.pay(plan[:1])
    assert not ledger.allows([GaussianDpEvent(1000.0)])
    with pytest.raises(BudgetExceeded):
        ledger.run("other").pay([GaussianDpEvent(1000.0)])
    run.pay(plan[1:])


def test_a_plan_does_not_get_the_cap_after_something_was_released() -> None:
    """Else somebody could look first, and then choose between the plan and the filter."""
    cap = Budget(1.0, 1e-5)
    ledger, plan = Ledger(cap), plan_of(cap)
    late = ledger.run("late")
    assert late.affordable(plan) == len(plan)
    ledger.run("early").pay([GaussianDpEvent(1000.0)])
    with pytest.raises(BudgetExceeded):
        late.pay(plan)
    assert late.affordable(plan) < len(plan)
    assert ledger.holder is None


def test_a_plan_that_the_filter_holds_leaves_room_for_others() -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    run, plan = ledger.run(), plan_of(Budget(0.5, 1e-5))
    assert run.affordable(plan) == len(plan)
    run.pay(plan)
    assert ledger.holder is None
    assert 0.2 < ledger.used < 0.4
    ledger.run().pay(plan)
    assert "Rényi filter of order 18" in (ledger.cap or "")


@pytest.mark.parametrize(("own", "alone"), [(1.0, True), (0.95, True), (0.5, False)])
def test_a_run_that_surveys_first_is_planned_by_its_budget(own: float, alone: bool) -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    ledger.run("survey first", budget=Budget(own, 1e-5)).pay([GaussianDpEvent(100.0)])
    assert (ledger.holder is not None) == alone


def test_who_has_the_cap_is_written_in_the_file(tmp_path: object) -> None:
    path = f"{tmp_path}/ledger"
    cap = Budget(1.0, 1e-5)
    plan = plan_of(cap)
    with Ledger(cap, path) as ledger:
        run = ledger.run("planned")
        run.affordable(plan)
        run.pay(plan[:1])
    with Ledger(path=path) as ledger:
        assert ledger.holder == Ledger.read(path).holder == "planned"
        assert not ledger.allows([GaussianDpEvent(1000.0)])
        again = ledger.run("planned")
        assert again.affordable(plan) == len(plan)
        again.pay(plan)
        assert ledger.epsilon() <= 1.0
