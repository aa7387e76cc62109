"""What events cost: dp-accounting's traps (0.6), golden values, and closed forms.

Golden numbers are those of dp-accounting 0.6.0 alone: `RdpAccountant`, and `PLDAccountant` on its default grid of 1e-4, unless a
test says another.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, laplace, norm

from privopt.errors import InputError, UnsupportedEvent
from privopt.measure.samplers import several_rows
from privopt.perexample.grads import Vector
from privopt.privacy import accountants
from privopt.privacy.accountants import Accountant, choose, epsilon, renyi
from privopt.privacy.budget import Neighbours
from privopt.privacy.events import (
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    compose,
)
from privopt.privacy.mixtures import mixture_distribution

MNIST = 128 / 60000  # sampling probability of the DPAGD paper's experiment
STEPS = 46875  # 100 epochs


def sampled(probability: float, noise_multiplier: float, count: int) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(probability, GaussianDpEvent(noise_multiplier)), count)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Balle & Wang (2018), Theorem 8: δ(ε) = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ), solved for ε."""

    def excess(value: float) -> float:
        low = norm.logcdf(-0.5 / noise_multiplier - value * noise_multiplier)
        return float(norm.cdf(0.5 / noise_multiplier - value * noise_multiplier) - math.exp(value + low) - delta)

    return float(brentq(excess, 0, 1000, xtol=1e-13))


# ---------------------------------------------------------------- golden values


@pytest.mark.parametrize(
    ("probability", "noise_multiplier", "steps", "delta", "rdp", "pld"),
    [
        (MNIST, 2.0, STEPS, 1e-5, 1.0012, 0.9158),
        (MNIST, 4.0, STEPS, 1e-5, 0.4470, 0.4074),
        (MNIST, 8.0, STEPS, 1e-5, 0.2089, 0.1906),
        (64 / 25000, 1.0, 11718, 1 / 25000, 1.4624, 1.3118),
    ],
)
def test_the_golden_table_holds_to_four_digits(
    probability: float, noise_multiplier: float, steps: int, delta: float, rdp: float, pld: float
) -> None:
    event = sampled(probability, noise_multiplier, steps)
    assert epsilon(event, delta, accountant="rdp") == pytest.approx(rdp, abs=5e-5)
    assert epsilon(event, delta, accountant="pld", grid=1e-4) == pytest.approx(pld, abs=5e-5)


@pytest.mark.parametrize("noise_multiplier", [2.0, 20.0, 200.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_a_hundred_gaussians_cost_what_the_analytic_formula_says(noise_multiplier: float, delta: float) -> None:
    event = SelfComposedDpEvent(GaussianDpEvent(noise_multiplier), 100)
    analytic = gaussian_epsilon(noise_multiplier / 10, delta)
    assert epsilon(event, delta) == pytest.approx(analytic, rel=1e-6)
    if analytic < 20:
        assert epsilon(event, delta, grid=1e-4) == pytest.approx(analytic, rel=1e-3)
        assert epsilon(event, delta, grid=1e-4) >= analytic * (1 - 1e-9)


def test_gaussians_of_different_noise_cost_what_their_precisions_sum_to() -> None:
    event = compose([GaussianDpEvent(3.0)] * 4 + [GaussianDpEvent(5.0)] * 9)
    together = 1 / math.sqrt(4 / 3**2 + 9 / 5**2)
    assert epsilon(event, 1e-6) == pytest.approx(gaussian_epsilon(together, 1e-6), rel=1e-6)
    assert epsilon(event, 1e-6, grid=1e-4) == pytest.approx(gaussian_epsilon(together, 1e-6), rel=1e-3)


# ---------------------------------------------------------------- the traps


def test_replace_one_doubles_the_sensitivity_in_dp_accounting_s_pld_but_not_in_its_rdp() -> None:
    """The trap itself: should dp-accounting ever change it, our conversion has to change with it."""
    relation = NeighboringRelation.REPLACE_ONE
    pld = PLDAccountant(relation, value_discretization_interval=0.01).compose(dp_accounting.GaussianDpEvent(2.0), 100)
    rdp = RdpAccountant(neighboring_relation=relation).compose(dp_accounting.GaussianDpEvent(2.0), 100)
    assert pld.get_epsilon(1e-5) == pytest.approx(91.8, abs=0.05)
    assert rdp.get_epsilon(1e-5) == pytest.approx(35.1, abs=0.05)


@pytest.mark.parametrize(("accountant", "grid"), [("pld", None), ("pld", 1e-3), ("rdp", None)])
def test_replacing_costs_what_removing_and_adding_does_by_either_accountant(accountant: Accountant, grid: float | None) -> None:
    event = SelfComposedDpEvent(GaussianDpEvent(2.0), 100)
    exact = gaussian_epsilon(2.0 / 2 / 10, 1e-5)
    cost = epsilon(event, 1e-5, "replace-one", accountant=accountant, grid=grid)
    assert exact == pytest.approx(91.8, abs=0.05)
    assert exact * (1 - 1e-9) <= cost <= exact * (1.06 if accountant == "rdp" else 1.001)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_replacing_under_laplace_noise_costs_twice_the_noise(accountant: Accountant) -> None:
    replaced = epsilon(SelfComposedDpEvent(LaplaceDpEvent(20.0), 50), 1e-6, "replace-one", accountant=accountant)
    assert replaced == pytest.approx(
        epsilon(SelfComposedDpEvent(LaplaceDpEvent(10.0), 50), 1e-6, accountant=accountant), rel=5e-3
    )


def test_randomized_response_ignores_its_count_in_dp_accounting_s_pld() -> None:
    """The trap: 1, 10 and 100 compositions cost the same."""
    event = dp_accounting.dp_event.RandomizedResponseDpEvent(0.5, 2)
    relation = NeighboringRelation.REPLACE_ONE
    costs = [PLDAccountant(relation).compose(event, count).get_epsilon(1e-5) for count in (1, 10, 100)]
    assert costs == pytest.approx([1.0987, 1.0987, 1.0987], abs=2e-4)


def test_a_hundred_pure_releases_cost_a_hundred_releases() -> None:
    """100 × ln 3 at δ = 1e-5, by dp-accounting's distribution of any ε₀-DP release (`from_privacy_parameters`), composed."""
    assert epsilon(SelfComposedDpEvent(PureDpEvent(math.log(3)), 100), 1e-5) == pytest.approx(90.79, abs=0.02)


def test_pld_refuses_fixed_size_samples_and_says_that_rdp_can() -> None:
    event = SelfComposedDpEvent(SampledWithoutReplacementDpEvent(1000, 50, GaussianDpEvent(2.0)), 10)
    with pytest.raises(UnsupportedEvent, match=r'pld cannot account .*fixed-size samples of 50 of 1000.*accountant="rdp"'):
        epsilon(event, 1e-5, "replace-one", accountant="pld")
    assert choose(event, "replace-one") == "rdp"


def test_rdp_refuses_poisson_samples_under_replace_one_and_says_that_pld_can() -> None:
    with pytest.raises(UnsupportedEvent, match=r'rdp cannot account .*Poisson sampling.*replace-one.*accountant="pld"'):
        epsilon(sampled(0.01, 2.0, 10), 1e-5, "replace-one", accountant="rdp")
    assert choose(sampled(0.01, 2.0, 10), "replace-one") == "pld"


def test_fixed_size_samples_under_add_remove_are_refused_and_the_error_names_replace_one() -> None:
    event = SampledWithoutReplacementDpEvent(1000, 50, GaussianDpEvent(2.0))
    for accountant in ("auto", "pld", "rdp"):
        with pytest.raises(UnsupportedEvent, match="replace-one"):
            epsilon(event, 1e-5, accountant=accountant)


def test_fixed_size_samples_cost_dp_accounting_s_price_at_half_the_noise() -> None:
    """Two clipped vectors differ by 2C, so the noise relative to the change is z/2, which dp-accounting's RDP leaves to us."""
    raw = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    raw.compose(dp_accounting.SampledWithoutReplacementDpEvent(1000, 50, dp_accounting.GaussianDpEvent(1.0)), 30)
    event = SelfComposedDpEvent(SampledWithoutReplacementDpEvent(1000, 50, GaussianDpEvent(2.0)), 30)
    assert epsilon(event, 1e-5, "replace-one") == pytest.approx(raw.get_epsilon(1e-5), rel=1e-12)


def test_events_that_only_different_accountants_price_are_refused_together() -> None:
    both = compose([SampledWithoutReplacementDpEvent(100, 5, GaussianDpEvent(2.0)), PureDpEvent(0.1)])
    with pytest.raises(UnsupportedEvent, match="together"):
        epsilon(both, 1e-5, "replace-one")


def test_a_coarse_grid_overstates_and_ours_does_not() -> None:
    """`PLDAccountant` says 0.340 on a grid of 1e-3 and 0.1906 on one of 1e-4; 0.188 in truth."""
    event = sampled(MNIST, 8.0, STEPS)
    assert epsilon(event, 1e-5, grid=1e-3) == pytest.approx(0.340, abs=5e-4)
    assert epsilon(event, 1e-5, grid=1e-4) == pytest.approx(0.1906, abs=5e-5)
    assert 0.1870 <= epsilon(event, 1e-5) <= 0.1885


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (sampled(0.01, 3.0, 500), 1e-5),
        (sampled(0.2, 20.0, 300), 1e-7),
        (sampled(0.01, 0.05, 1000), 1e-5),  # ε about 5000, Rényi's bound 170,000
        (SelfComposedDpEvent(LaplaceDpEvent(50.0), 200), 1e-6),
        (SelfComposedDpEvent(PureDpEvent(0.02), 200), 1e-6),
    ],
    ids=lambda value: "" if isinstance(value, float) else str(type(value.event).__name__),
)
def test_a_much_finer_grid_than_ours_saves_less_than_half_a_percent(event: DpEvent, delta: float) -> None:
    ours = epsilon(event, delta)
    assert ours <= 1.005 * epsilon(event, delta, grid=ours / 50_000)


@pytest.mark.parametrize(
    "event", [sampled(0.01, 3.0, 500), sampled(0.2, 20.0, 300), sampled(256 / 60_000, 0.8, 4688), GaussianDpEvent(2.0)]
)
def test_a_coarser_grid_is_a_bound_and_close(event: DpEvent) -> None:
    ours = epsilon(event, 1e-6)
    assert ours * (1 - 1e-9) <= epsilon(event, 1e-6, coarser=8.0) <= 1.02 * ours


def test_rdp_overstates_tiny_samples_and_pld_does_not() -> None:
    """q = 64/246092, z = 0.95: 0.79 by RDP and 0.475 by PLD's default grid."""
    event = sampled(64 / 246092, 0.95, 115355)
    assert epsilon(event, 1 / 246092, accountant="rdp") == pytest.approx(0.79, abs=5e-3)
    assert epsilon(event, 1 / 246092, grid=1e-4) == pytest.approx(0.475, abs=5e-4)
    assert choose(event, "add-remove") == "pld"


# ---------------------------------------------------------------- one sampled release, from its two distributions

GRID = np.linspace(-40, 40, 800_001)


def worst_delta(one: Vector, other: Vector, value: float) -> float:
    """The hockey stick between two densities on `GRID`, the worse way round."""
    step = GRID[1] - GRID[0]
    return max(float(np.maximum(p - math.exp(value) * r, 0).sum() * step) for p, r in ((one, other), (other, one)))


@pytest.mark.parametrize("density", [norm.pdf, laplace.pdf], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("probability", "noise_multiplier"), [(0.3, 1.0), (0.05, 2.0)])
def test_one_sampled_release_costs_what_its_two_distributions_say(
    density: Callable[..., Vector], neighbours: Neighbours, probability: float, noise_multiplier: float
) -> None:
    """A row that is drawn with probability q shifts the answer by 1, or its replacement by −1. Never less is claimed.

    Sampled Laplace noise under replace-one is priced as two changes of a pure release, which is more than the truth.
    """

    def answer(shift: float) -> Vector:
        hidden = [density(GRID, loc=place, scale=noise_multiplier) for place in (0.0, shift)]
        return (1 - probability) * hidden[0] + probability * hidden[1]

    mechanism = GaussianDpEvent if density == norm.pdf else LaplaceDpEvent
    cost = epsilon(PoissonSampledDpEvent(probability, mechanism(noise_multiplier)), 1e-3, neighbours, grid=5e-4)
    truth = (answer(1.0), answer(-1.0) if neighbours == "replace-one" else answer(0.0))
    assert worst_delta(*truth, cost) <= 1e-3 * (1 + 1e-3)
    if mechanism is GaussianDpEvent or neighbours == "add-remove":
        assert worst_delta(*truth, cost * 0.99) > 1e-3


# ---------------------------------------------------------------- pure events


@pytest.mark.parametrize("event", [PureDpEvent(0.1), LaplaceDpEvent(10.0)], ids=["pure", "laplace"])
@pytest.mark.parametrize("count", [1, 7, 100])
@pytest.mark.parametrize(("neighbours", "changes"), [("add-remove", 1), ("replace-one", 2)])
def test_at_delta_zero_pure_releases_add_up(event: DpEvent, count: int, neighbours: Neighbours, changes: int) -> None:
    assert epsilon(SelfComposedDpEvent(event, count), 0.0, neighbours) == pytest.approx(0.1 * changes * count, rel=5e-3)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_poisson_sampling_amplifies_pure_releases(delta: float) -> None:
    """An ε-DP release on a sample of probability q is ln(1 + q(e^ε − 1))-DP."""
    amplified = math.log1p(0.1 * math.expm1(1.0))
    event = PoissonSampledDpEvent(0.1, PureDpEvent(1.0))
    assert epsilon(event, delta) == pytest.approx(amplified, rel=5e-3)
    assert epsilon(event, delta, "replace-one") == pytest.approx(2 * amplified, rel=5e-3)


def test_sampled_laplace_noise_costs_no_more_than_the_pure_release_that_it_is() -> None:
    exact = epsilon(SelfComposedDpEvent(PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)), 50), 1e-6)
    assert exact <= epsilon(SelfComposedDpEvent(PoissonSampledDpEvent(0.1, PureDpEvent(1.0)), 50), 1e-6) * (1 + 1e-6)


def test_gaussian_noise_has_no_price_at_delta_zero() -> None:
    for event in (GaussianDpEvent(9.0), sampled(0.1, 9.0, 3)):
        assert epsilon(event, 0.0) == math.inf


# ---------------------------------------------------------------- failures, nothing, everything


def test_samples_without_replacement_with_more_noise_than_dp_accounting_can_take_cost_no_more() -> None:
    costs = [
        epsilon(SampledWithoutReplacementDpEvent(10**6, 10, GaussianDpEvent(z)), 1e-6, "replace-one") for z in (1e5, 1e9, 1e12)
    ]
    assert costs[0] >= costs[1] == costs[2] >= 0


def test_a_failure_uses_up_delta_and_nothing_else() -> None:
    alone = epsilon(GaussianDpEvent(2.0), 1e-5)
    with_failure = epsilon(compose([GaussianDpEvent(2.0), FailureDpEvent(1e-6)]), 1.1e-5)
    assert with_failure == pytest.approx(alone, rel=1e-9)
    assert epsilon(compose([GaussianDpEvent(2.0), FailureDpEvent(1e-6)]), 1.1e-5, grid=1e-4) == pytest.approx(alone, rel=1e-3)
    assert epsilon(FailureDpEvent(1e-6), 1e-5) == pytest.approx(0.0, abs=1e-6)
    assert epsilon(FailureDpEvent(1e-4), 1e-5) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        NoOpDpEvent(),
        GaussianDpEvent(1e6),
        PoissonSampledDpEvent(0.01, GaussianDpEvent(1e6)),
        PoissonSampledDpEvent(0.01, LaplaceDpEvent(1e6)),
        LaplaceDpEvent(1e6),
        PureDpEvent(1e-6),
    ],
    ids=str,
)
def test_failures_that_exceed_delta_cost_everything_however_much_noise_there_is_beside_them(event: DpEvent) -> None:
    """A failure of probability 1e-4 cannot be within δ = 1e-5, and two of 3e-6 cannot within 5e-6."""
    assert epsilon(compose([event, FailureDpEvent(1e-4)]), 1e-5) == math.inf
    assert epsilon(compose([event, FailureDpEvent(3e-6), event, FailureDpEvent(3e-6)]), 5e-6) == math.inf
    assert epsilon(compose([event, FailureDpEvent(3e-6)]), 5e-6, "replace-one") == math.inf


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_what_failures_leave_of_delta_is_all_that_noise_may_use(neighbours: Neighbours) -> None:
    """So much noise costs nothing at δ = 0.01, but it costs something at what is left of that."""
    share = 1.0 if neighbours == "add-remove" else 0.5
    noise = PoissonSampledDpEvent(1.0, GaussianDpEvent(1000.0))
    assert epsilon(noise, 0.01, neighbours) == 0
    left = epsilon(compose([noise, FailureDpEvent(0.0099 * share)]), 0.01, neighbours)
    assert left >= epsilon(GaussianDpEvent(1000.0), 0.000102, neighbours) > 0


def test_a_failure_under_replace_one_happens_twice() -> None:
    event = compose([GaussianDpEvent(2.0), SelfComposedDpEvent(FailureDpEvent(1e-6), 5)])
    assert epsilon(event, 2e-5, "replace-one") == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-6)


def test_nothing_costs_nothing() -> None:
    assert epsilon(NoOpDpEvent(), 0.0) == 0.0
    assert epsilon(compose([]), 1e-5, "replace-one", accountant="rdp") == 0.0


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    "event",
    [
        NonPrivateDpEvent(),
        GaussianDpEvent(0.0),
        LaplaceDpEvent(0.0),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(0.0)),
        PoissonSampledDpEvent(0.1, NonPrivateDpEvent()),
        SampledWithoutReplacementDpEvent(10, 2, NonPrivateDpEvent()),
        compose([GaussianDpEvent(3.0), NonPrivateDpEvent()]),
    ],
    ids=str,
)
def test_a_release_without_noise_costs_everything(event: DpEvent, neighbours: Neighbours) -> None:
    assert epsilon(event, 1e-5, neighbours) == math.inf


def test_an_accountant_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="auto, pld, rdp"):
        epsilon(GaussianDpEvent(1.0), 1e-5, accountant="moments")  # type: ignore[arg-type]


# ---------------------------------------------------------------- order


@settings(max_examples=25)
@given(st.floats(0.5, 20), st.floats(1.01, 3), st.integers(1, 200), st.sampled_from([1e-4, 1e-6, 1e-9]))
def test_more_noise_fewer_rounds_and_a_larger_delta_cost_less(noise: float, factor: float, count: int, delta: float) -> None:
    cost = epsilon(SelfComposedDpEvent(GaussianDpEvent(noise), count), delta)
    assert epsilon(SelfComposedDpEvent(GaussianDpEvent(noise * factor), count), delta) < cost
    assert epsilon(SelfComposedDpEvent(GaussianDpEvent(noise), count + 1), delta) > cost
    assert epsilon(SelfComposedDpEvent(GaussianDpEvent(noise), count), delta * factor) < cost
    assert epsilon(SelfComposedDpEvent(GaussianDpEvent(noise), count), delta, "replace-one") > cost


def test_sampling_costs_less_than_taking_everybody_and_rdp_never_less_than_pld() -> None:
    everybody = epsilon(SelfComposedDpEvent(GaussianDpEvent(8.0), 100), 1e-5)
    before = 0.0
    for probability in (0.01, 0.1, 0.5):
        cost = epsilon(sampled(probability, 8.0, 100), 1e-5)
        assert before < cost < everybody
        assert cost <= epsilon(sampled(probability, 8.0, 100), 1e-5, accountant="rdp")
        before = cost
    assert epsilon(sampled(1.0, 8.0, 100), 1e-5) == pytest.approx(everybody, rel=5e-3)


def test_the_order_of_events_does_not_change_their_price() -> None:
    one, other = GaussianDpEvent(30.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(20.0))
    prices = [epsilon(compose(events), 1e-5) for events in ([one, other, one, other], [one, one, other, other])]
    assert prices[0] == pytest.approx(prices[1], rel=1e-9)


def test_a_price_is_computed_once_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    compute = accountants._compose_distributions

    def counted(event: DpEvent, delta: float, *rest: Any) -> float:
        asked.append(delta)
        return compute(event, delta, *rest)

    monkeypatch.setattr(accountants, "_compose_distributions", counted)
    accountants._price.cache_clear()
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)), 100)
    first = epsilon(event, 1e-5)
    assert epsilon(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)), 100), 1e-5) == first
    assert asked == [1e-5]
    assert epsilon(event, 1e-6) > first
    assert epsilon(event, 1e-5, "replace-one") > first
    assert epsilon(event, 1e-5, accountant="rdp") > first
    assert len(asked) == 3


# ---------------------------------------------------------------- rows of persons


@pytest.mark.parametrize(("share", "most", "noise"), [(0.3, 2, 1.0), (0.05, 4, 2.0), (0.01, 8, 0.7), (0.5, 3, 3.0)])
def test_rows_of_a_person_cost_what_their_two_distributions_say(share: float, most: int, noise: float) -> None:
    """A person's rows, each drawn with probability q, shift the answer by how many of them were drawn."""
    hidden = [norm.pdf(GRID, loc=place, scale=noise) for place in range(most + 1)]
    present = sum(chance * one for chance, one in zip(binom.pmf(range(most + 1), most, share), hidden, strict=True))
    cost = epsilon(several_rows(share, most, noise), 1e-3, grid=5e-4)
    assert 1e-3 * (1 - 1e-3) <= worst_delta(present, hidden[0], cost) <= 1e-3 * (1 + 1e-5)


def test_dp_accounting_s_own_distribution_of_a_mixture_is_ours() -> None:
    mixture = several_rows(0.1, 3, 2.0)
    theirs = PLDAccountant(value_discretization_interval=0.01)
    theirs.compose(SelfComposedDpEvent(mixture, 20))
    assert epsilon(SelfComposedDpEvent(mixture, 20), 1e-5, grid=0.01) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-4)


def test_one_row_of_a_person_costs_what_a_row_does_and_more_rows_cost_more() -> None:
    one = MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.99, 0.01))
    row = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    assert several_rows(0.01, 1, 1.0) == row
    assert epsilon(SelfComposedDpEvent(one, 100), 1e-6) == pytest.approx(epsilon(SelfComposedDpEvent(row, 100), 1e-6), rel=1e-4)
    costs = [epsilon(SelfComposedDpEvent(several_rows(0.01, most, 1.0), 100), 1e-6) for most in (1, 2, 3, 8)]
    assert costs == sorted(costs)
    assert costs[1] > 1.1 * costs[0]


def test_all_rows_of_a_person_in_every_batch_are_one_long_vector() -> None:
    assert several_rows(1.0, 4, 2.0) == GaussianDpEvent(0.5)


@pytest.mark.parametrize(("share", "most", "noise", "rounds"), [(0.001, 32, 2.0, 3000), (1e-4, 4, 0.6, 1000)])
def test_the_grid_of_a_mixture_overstates_by_less_than_half_a_percent(share: float, most: int, noise: float, rounds: int) -> None:
    event = SelfComposedDpEvent(several_rows(share, most, noise), rounds)
    cost = epsilon(event, 1e-6)
    assert epsilon(event, 1e-6, grid=cost / (400 * math.sqrt(rounds))) <= cost * (1 + 1e-4)
    assert cost <= 1.005 * epsilon(event, 1e-6, grid=cost / (400 * math.sqrt(rounds)))


def test_a_person_who_is_in_almost_every_batch_loses_as_much_in_either_direction() -> None:
    """32 rows, each drawn with probability 0.99: to be in no batch has a chance of 10⁻⁶⁴, which 1 − P rounds away."""
    added = mixture_distribution(several_rows(0.99, 32, 1.0), 0.5, -40.0)._pmf_add
    assert added.get_delta_for_epsilon(50.0) > 0.999


def test_mixtures_have_no_price_for_a_replacement_or_by_rdp_and_a_bound_for_filters() -> None:
    mixture = several_rows(0.01, 3, 2.0)
    with pytest.raises(UnsupportedEvent, match="under replace-one"):
        epsilon(mixture, 1e-5, "replace-one")
    with pytest.raises(UnsupportedEvent, match="pld can"):
        epsilon(mixture, 1e-5, accountant="rdp")
    assert renyi(mixture, 8.0, "add-remove") > renyi(several_rows(0.01, 1, 2.0), 8.0, "add-remove")


@pytest.mark.parametrize("rounds", [1, 300])
@pytest.mark.parametrize("noise", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("share", [0.001, 0.1])
def test_the_rough_bound_is_the_smallest_of_all_orders(share: float, noise: float, rounds: int) -> None:
    event = PoissonSampledDpEvent(share, GaussianDpEvent(noise))
    every = RdpAccountant()
    every.compose(event, rounds)
    assert accountants._rough_epsilon(Counter({event: rounds}), 1e-5, "add-remove") == every.get_epsilon(1e-5)
