"""DP-SRM: sensitivity by example, Lemma 3.7 against the accountant, the noise from the lemma, the bound against runs."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from privopt.errors import InputError
from privopt.perexample.losses import Logistic
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent
from privopt.theory import Problem
from privopt.theory import wang_stochastic_nonconvex as paper

Vector = np.ndarray


# ---------------------------------------------------------------- sensitivity


def clipped(vectors: Vector, bound: float) -> Vector:
    return vectors * np.minimum(1, bound / np.linalg.norm(vectors, axis=-1, keepdims=True))


@pytest.mark.parametrize("refresh", [0.0, 0.01, 0.4, 1.0])
def test_misprint_the_norm_of_an_examples_vector_is_gamma_c1_plus_the_rest_c2(refresh: float) -> None:
    rng, large, small = np.random.default_rng(0), 1.0, 0.01
    bound = paper.sensitivity(gradient_clip=large, change_clip=small, refresh=refresh)
    gradients, changes = rng.standard_normal((2, 1000, 5)) * 10
    norms = np.linalg.norm(refresh * clipped(gradients, large) + (1 - refresh) * clipped(changes, small), axis=1)
    aligned = np.linalg.norm(refresh * clipped(gradients, large) + (1 - refresh) * clipped(gradients, small), axis=1)
    assert np.all(norms <= bound * (1 + 1e-12))
    assert aligned == pytest.approx(bound)  # so nothing smaller would do
    printed = (1 - refresh) * large + refresh * small
    if refresh == 0.01:
        assert printed / bound == pytest.approx(large / (2 * small), rel=0.01)  # the noise that the misprint would waste


def test_a_weight_is_between_0_and_1() -> None:
    with pytest.raises(InputError, match=r"refresh is 1\.5"):
        paper.sensitivity(gradient_clip=1.0, change_clip=0.1, refresh=1.5)


# ---------------------------------------------------------------- Lemma 3.7


def priced(order: int, rate: float, ratio: float) -> float:
    """The Rényi divergence by dp-accounting, for fixed-size samples and replaced examples."""
    accountant = RdpAccountant([order], neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(SampledWithoutReplacementDpEvent(10**6, round(rate * 10**6), GaussianDpEvent(ratio)))
    return float(accountant._rdp[0])


def test_lemma_3_7_is_never_below_the_accountant() -> None:
    held = 0
    for order, rate, ratio in itertools.product((2, 3, 4, 8, 20), (1e-4, 1e-3, 1e-2), (0.84, 1.0, 3.0, 10.0)):
        bound = paper.subsampled_divergence(order=order, sampling_rate=rate, ratio=ratio)
        if bound.holds:
            held += 1
            assert priced(order, rate, ratio) <= bound.number
    assert held > 30


def test_misprint_lemma_3_7_does_not_depend_on_the_unit_of_the_query() -> None:
    """τ = 0.01, α = 40, σ/Δ = 1: measured in a unit with Δ = 100, σ² = 10⁴ meets the printed condition, but the accountant's
    divergence is far above 3.5τ²α."""
    printed_limit = 2 * 10**4 * math.log(1 / (0.01 * 40 * 2)) / 3 + 1
    assert printed_limit > 40
    assert priced(40, 0.01, 1.0) > 100 * 3.5 * 0.01**2 * 40
    bound = paper.subsampled_divergence(order=40, sampling_rate=0.01, ratio=1.0)
    assert bound.value is None
    assert bound.failing[0].startswith("α ≤ (2/3)σ′² ln(1/(τα(1+σ′²))) + 1")


def test_a_ratio_that_is_too_small_is_named() -> None:
    bound = paper.subsampled_divergence(order=1.1, sampling_rate=1e-6, ratio=0.8)
    assert bound.failing == ("σ′² ≥ 0.7: σ′² = 0.64",)


# ---------------------------------------------------------------- plan and noise


def test_the_plan_by_hand() -> None:
    """G = 1, L·gap = 4, d ln(1/δ) = 64, nε = 4096: ζ = 256^{1/3}/256, n₀ = 4."""
    problem = Problem(8192, 4, smoothness=2.0, gap=2.0)
    plan = paper.plan(problem, epsilon=0.5, delta=math.exp(-16))
    target = 256 ** (1 / 3) / 256
    assert plan.target == pytest.approx(target)
    assert plan.scale == 4
    assert plan.learning_rate == pytest.approx(1 / 16)
    assert plan.refresh == pytest.approx(target / 4)
    assert plan.batch == plan.first_batch == math.floor(1 / (4 * target))
    assert plan.rounds == math.floor(16384 ** (4 / 3) / 16)
    assert plan.failing == ()
    assert plan.gradients == plan.batch * (1 + 2 * plan.rounds)


@pytest.mark.parametrize(("lipschitz", "smoothness", "gap"), [(1.0, 1.0, 1.0), (2.0, 5.0, 3.0), (0.5, 0.25, 2.0)])
def test_misprint_rounds_times_batch_is_the_gradient_complexity(lipschitz: float, smoothness: float, gap: float) -> None:
    """(nε)²/(d ln(1/δ)) whatever the loss: with d ln(1/δ)^{2/3} for (d ln(1/δ))^{2/3} it would be d^{1/3} times less."""
    problem = Problem(10**9, 50, lipschitz=lipschitz, smoothness=smoothness, gap=gap)
    plan = paper.plan(problem, epsilon=0.3, delta=1e-8)
    assert plan.rounds * plan.batch == pytest.approx((10**9 * 0.3) ** 2 / (50 * math.log(1e8)), rel=1e-3)


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (Problem(10**5, 10, smoothness=0.25), "n₀ = L·gap/G² ≥ 1"),
        (Problem(100, 10**4, smoothness=1.0), "nε ≥ max("),
        (Problem(3, 100, smoothness=1.0), "γ ≤ 1"),
        (Problem(10**5, 10, smoothness=1e5), "1 ≤ b ≤ n"),
        (Problem(2, 100, smoothness=0.01), "T ≥ 1"),
    ],
)
def test_what_the_theorem_needs_is_named(problem: Problem, says: str) -> None:
    assert any(condition.startswith(says) for condition in paper.plan(problem, epsilon=0.5, delta=1e-5).failing)


def test_the_noise_is_what_lemma_3_7_asks_for_and_more_than_is_needed() -> None:
    """T rounds of 3.5τ²Δ²α/σ², Δ = 2C/b, are βε; with ln(1/δ)/(α−1) = (1−β)ε that is ε."""
    problem, target, delta = Problem(2000, 10, smoothness=1.0), 1.0, 1e-4
    plan = paper.plan(problem, epsilon=target, delta=delta)
    noise = paper.noise(problem, plan, epsilon=target, delta=delta, share=0.4)
    change = paper.sensitivity(gradient_clip=1.0, change_clip=plan.target / plan.scale, refresh=plan.refresh)
    rate = plan.batch / 2000
    for each, bound in ((noise.first, 1.0), (noise.later, change)):
        divergence = 3.5 * rate**2 * (2 * bound / plan.batch) ** 2 * noise.order / each.printed**2
        assert plan.rounds * divergence == pytest.approx(0.4 * target)
        assert each.needed < each.printed

        def cost(sigma: float, bound: float = bound) -> float:
            one = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma * plan.batch / bound))
            return epsilon(SelfComposedDpEvent(one, plan.rounds), delta, "replace-one")

    assert math.log(1 / delta) / (noise.order - 1) == pytest.approx(0.6 * target)
    assert 0.99 * target <= cost(noise.later.needed) <= target
    ratio = noise.later.printed / (2 * change / plan.batch)  # σ/Δ
    lemma = paper.subsampled_divergence(order=noise.order, sampling_rate=rate, ratio=ratio)
    assert noise.later.failing == noise.first.failing == lemma.failing
    assert lemma.failing[0].startswith("α ≤")  # too few examples for the paper's own proof


# ---------------------------------------------------------------- bound


def estimated(
    problem: Problem, plan: paper.SrmPlan, first: float, later: float, examples: Vector, start: Vector, runs: int
) -> float:
    """The mean of ‖∇F‖ over all iterates of many runs of Algorithm 1 on the mean of ½L‖θ − x‖², without clipping."""
    rng, smoothness = np.random.default_rng(0), problem.smoothness
    theta = np.tile(start, (runs, 1))

    def gradients(at: Vector, batch: int) -> tuple[Vector, Vector]:
        """The rows' mean, and what it is subtracted from: one batch of distinct rows for each run."""
        chosen = np.argsort(rng.random((runs, len(examples))), axis=1)[:, :batch]
        means = examples[chosen].mean(axis=1)
        return smoothness * (at - means), means

    estimate = gradients(theta, plan.first_batch)[0] + first * rng.standard_normal(theta.shape)
    total = 0.0
    for _ in range(plan.rounds):
        total += float(np.mean(np.linalg.norm(smoothness * (theta - examples.mean(axis=0)), axis=1))) / plan.rounds
        norms = np.linalg.norm(estimate, axis=1, keepdims=True)
        before = theta
        theta = theta - np.minimum(plan.target / (plan.scale * smoothness * norms), plan.learning_rate) * estimate
        fresh, means = gradients(theta, plan.batch)
        old = smoothness * (before - means)
        estimate = fresh + (1 - plan.refresh) * (estimate - old) + later * rng.standard_normal(theta.shape)
    return total


def test_the_bound_of_section_6_2_holds() -> None:
    """60 runs of 100 rounds; the mean is below a half of the bound, and its standard error is below 2 % of it."""
    rng = np.random.default_rng(1)
    examples = 0.2 * rng.standard_normal((50, 3))
    start = np.full(3, 1.0)
    gap = float(np.sum((start - examples.mean(axis=0)) ** 2) / 2)
    problem = Problem(50, 3, lipschitz=1.0, smoothness=1.0, gap=gap)  # G bounds what varies between examples
    for later in (0.001, 0.05):
        plan = paper.SrmPlan(rounds=100, first_batch=20, batch=10, target=0.05, scale=1.0, refresh=0.3, learning_rate=1 / 2)
        bound = paper.bound(problem, plan, first=0.1, later=later)
        found = estimated(problem, plan, 0.1, later, examples, start, runs=60)
        assert 0.02 * bound.number < found <= bound.number


def test_the_bound_by_hand() -> None:
    problem = Problem(1000, 2, lipschitz=2.0, smoothness=0.5, gap=3.0)
    plan = paper.SrmPlan(rounds=100, first_batch=40, batch=20, target=0.1, scale=2.0, refresh=0.2, learning_rate=0.5)
    error = 2 * 0.64 * 0.01 / (4 * 0.2 * 20) + 2 * 0.2 * 4 / 20 + 4 / (100 * 0.2 * 40) + 2 * (100 * 0.0001 + 0.0004) / (100 * 0.2)
    value = 4 * 2 * 0.5 * 3 / (100 * 0.1) + error / 0.1 + 0.2 + math.sqrt(error)
    assert paper.bound(problem, plan, first=0.02, later=0.01).value == pytest.approx(value)


def test_misprint_a_scale_below_one_leaves_no_bound() -> None:
    """n₀ = 0.1: on ½Lθ² the step 1/(2n₀L) = 5/L overshoots, and ‖∇F‖ settles near ζ/(2n₀) = 5ζ, above what 6.2 would say."""
    problem = Problem(1000, 1, lipschitz=1.0, smoothness=1.0, gap=0.245)
    plan = paper.SrmPlan(rounds=10_000, first_batch=1000, batch=1000, target=0.1, scale=0.1, refresh=0.5, learning_rate=5.0)
    theta, total = 0.7, 0.0
    for _ in range(plan.rounds):
        total += abs(theta) / plan.rounds
        theta -= min(plan.target / (plan.scale * abs(theta)), plan.learning_rate) * theta
    error = 2 * 0.25 * 0.01 / (0.01 * 0.5 * 1000) + 2 * 0.5 / 1000 + 1 / (10_000 * 0.5 * 1000)  # noise is next to nothing
    assert total > 4 * 0.1 * 0.245 / (10_000 * 0.1) + error / 0.1 + 0.2 + math.sqrt(error)
    bound = paper.bound(problem, plan, first=1e-9, later=1e-9)
    assert bound.value is None
    assert bound.failing == ("n₀ ≥ 1: n₀ = 0.1",)


# ---------------------------------------------------------------- the loss


def test_misprint_the_log_loss_has_a_minus_sign() -> None:
    """Printed: y ln φ + (1 − y) ln(1 − φ), which is never above 0 and least for wrong predictions."""
    scores = np.linspace(-6, 6, 13)
    for label in (0.0, 1.0):
        chance = 1 / (1 + np.exp(-scores))
        printed = label * np.log(chance) + (1 - label) * np.log(1 - chance)
        assert Logistic().values(scores, np.full(13, label)) == pytest.approx(-printed)
        assert np.all(printed < 0)
