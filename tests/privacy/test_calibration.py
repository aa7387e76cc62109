"""Law 5: calibrate ∘ account = identity. A calibrated plan costs at most ε, and at least 0.99 ε."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privopt.errors import BudgetExceeded, UnsupportedEvent
from privopt.measure.clips import l1, l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gamma_norm, gaussian, laplace
from privopt.measure.queries import gradient
from privopt.measure.samplers import disjoint_batches, fixed_size, full_batch, poisson
from privopt.postprocess.updates import sgd
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget, Neighbours
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import (
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
    compose,
)
from privopt.recipe import Recipe, always

Plan = Callable[[float], DpEvent]


def plan(rounds: int, measurement: Callable[[float], Measurement]) -> Plan:
    """The event of a whole recipe, as a function of its noise."""
    return lambda noise: Recipe(rounds, always(measurement(noise)), sgd(0.1)).planned_event()


L1, L2 = gradient() @ l1(1.0), gradient() @ l2(1.0)
PLANS: dict[str, tuple[Plan, Neighbours]] = {
    "full batch": (plan(100, lambda z: Measurement(full_batch(), [L2], gaussian(z))), "add-remove"),
    "full batch, replace one": (plan(100, lambda z: Measurement(full_batch(), [L2], gaussian(z))), "replace-one"),
    "poisson": (plan(1000, lambda z: Measurement(poisson(0.2), [L2], gaussian(z))), "add-remove"),
    "poisson, replace one": (plan(1000, lambda z: Measurement(poisson(0.2), [L2], gaussian(z))), "replace-one"),
    "fixed size": (plan(50, lambda z: Measurement(fixed_size(20, 1000), [L2], gaussian(z))), "replace-one"),
    "disjoint batches": (plan(40, lambda z: Measurement(disjoint_batches(4, key=0), [L2], gaussian(z))), "add-remove"),
    "laplace": (plan(20, lambda z: Measurement(full_batch(), [L1], laplace(z))), "add-remove"),
    "poisson laplace": (plan(20, lambda z: Measurement(poisson(0.1), [L1], laplace(z))), "add-remove"),
    "gamma norm": (plan(20, lambda z: Measurement(full_batch(), [L2], gamma_norm(z))), "add-remove"),
}
TARGETS = {"fixed size": (2.0,), "poisson, replace one": (1.0,)}  # priced slowly


def check_calibrated(plan: Plan, budget: Budget, *, spent: DpEvent | None = None, accountant: Accountant = "auto") -> float:
    noise = calibrate(plan, budget, spent=spent, accountant=accountant)
    total = compose([spent or NoOpDpEvent(), plan(noise)])
    cost = epsilon(total, budget.delta, budget.neighbours, accountant=accountant)
    assert 0.99 * budget.epsilon <= cost <= budget.epsilon
    return noise


@pytest.mark.parametrize(("name", "target"), [(name, target) for name in PLANS for target in TARGETS.get(name, (0.1, 1.0, 10.0))])
def test_a_calibrated_plan_costs_its_budget_to_within_one_percent(name: str, target: float) -> None:
    event, neighbours = PLANS[name]
    check_calibrated(event, Budget(target, 1e-6, neighbours))


@pytest.mark.parametrize(
    ("name", "target", "delta"),
    [
        ("full batch", 0.3, 1e-5),
        ("full batch", 2.0, 1e-9),
        ("poisson", 1.0, 1e-5),
        ("laplace", 2.0, 1e-9),
        ("gamma norm", 0.3, 1e-5),
    ],
)
def test_a_plan_calibrated_after_other_releases_fills_what_they_left(name: str, target: float, delta: float) -> None:
    event, neighbours = PLANS[name]
    spent = compose([GaussianDpEvent(25.0 / target), FailureDpEvent(delta / 10)])
    if name == "laplace":
        spent = compose([spent, PureDpEvent(target / 20)])
    noise = check_calibrated(event, Budget(target, delta, neighbours), spent=spent)
    assert epsilon(event(noise), delta, neighbours) < 0.99 * target


@pytest.mark.parametrize("target", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("name", ["laplace", "gamma norm"])
def test_at_delta_zero_pure_plans_are_calibrated_too(name: str, target: float) -> None:
    event, neighbours = PLANS[name]
    assert check_calibrated(event, Budget(target, 0.0, neighbours)) == pytest.approx(20 / target, rel=0.01)


@settings(max_examples=40)
@given(st.floats(0.05, 20), st.sampled_from([1e-4, 1e-6, 1e-10]), st.integers(1, 10_000), st.booleans())
def test_gaussian_plans_of_any_length_are_calibrated(target: float, delta: float, rounds: int, replace: bool) -> None:
    budget = Budget(target, delta, "replace-one" if replace else "add-remove")
    check_calibrated(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), rounds), budget)


@pytest.mark.parametrize("name", ["full batch", "laplace"])
def test_an_accountant_can_be_chosen_and_is_used(name: str) -> None:
    event, neighbours = PLANS[name]
    budget = Budget(1.0, 1e-6, neighbours)
    assert check_calibrated(event, budget, accountant="rdp") > check_calibrated(event, budget)


@pytest.mark.parametrize("target", [1e3, 1e6])
def test_an_epsilon_that_protects_hardly_anything_is_filled_all_the_same(target: float) -> None:
    check_calibrated(PLANS["poisson"][0], Budget(target, 1e-6))


def test_an_epsilon_that_protects_nothing_is_kept() -> None:
    event = PLANS["poisson"][0]
    noise = calibrate(event, Budget(1e12, 1e-6))
    assert 0 < noise < 1e-2
    assert epsilon(event(noise), 1e-6) <= 1e12
    assert epsilon(event(noise / 100), 1e-6) == math.inf


@pytest.mark.parametrize(("wrong", "most"), [(1.0, 3), (0.5, 6), (3.0, 6)])
def test_few_prices_are_exact_and_the_last_one_is(wrong: float, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse prices only point the way: where they are all wrong, the noise is right all the same."""
    asked: list[float] = []

    def price(event: DpEvent, delta: float, neighbours: Neighbours, *, accountant: Accountant, coarser: float = 1.0) -> float:
        asked.append(coarser)
        return epsilon(event, delta, neighbours, accountant=accountant, coarser=coarser) * (wrong if coarser > 1 else 1.0)

    monkeypatch.setattr("privopt.privacy.calibration.epsilon", price)
    check_calibrated(PLANS["poisson"][0], Budget(1.0, 1e-6))
    assert asked[-1] == 1.0
    assert asked.count(1.0) <= 1 + most  # one is for what is spent already


def test_the_least_noise_is_found_and_not_some_noise() -> None:
    """One Gaussian release, ε = 1, δ = 1e-5: z = 3.730632 (Balle & Wang's analytic Gaussian mechanism)."""
    assert calibrate(GaussianDpEvent, Budget(1.0, 1e-5)) == pytest.approx(3.730632, rel=3e-3)


def test_a_budget_that_is_spent_already_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match="is spent already"):
        calibrate(GaussianDpEvent, Budget(1.0, 1e-5), spent=GaussianDpEvent(1.0))


def test_a_plan_whose_other_releases_cost_too_much_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match="no noise keeps"):
        calibrate(lambda z: compose([GaussianDpEvent(z), PureDpEvent(2.0)]), Budget(1.0, 1e-5))
    for plan in (GaussianDpEvent, lambda z: PoissonSampledDpEvent(0.01, GaussianDpEvent(z))):
        with pytest.raises(BudgetExceeded, match="no noise keeps"):
            calibrate(lambda z, plan=plan: compose([plan(z), FailureDpEvent(1e-4)]), Budget(1.0, 1e-5))  # type: ignore[misc]


def test_gaussian_noise_cannot_keep_a_delta_of_zero() -> None:
    with pytest.raises(BudgetExceeded):
        calibrate(GaussianDpEvent, Budget(1.0, 0.0))


def test_a_plan_that_the_accountant_cannot_price_is_refused() -> None:
    with pytest.raises(UnsupportedEvent, match='accountant="pld"'):
        calibrate(lambda z: compose([LaplaceDpEvent(z), PureDpEvent(0.1)]), Budget(1.0, 1e-5), accountant="rdp")
