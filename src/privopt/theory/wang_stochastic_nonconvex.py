"""DP-SRM: private stochastic recursive momentum. Wang, Jayaraman, Evans, Gu, Efficient Privacy-Preserving Stochastic Nonconvex
Optimization.

Symbols: G -> lipschitz, C₁ -> gradient_clip, C₂ -> change_clip, L -> smoothness, D_F -> gap, T -> rounds, b₀ -> first_batch,
b -> batch, γ -> refresh, ζ -> target, n₀ -> scale, σ₀ and σ -> first and later, α -> order, β -> share (of ε, for divergence).

The theorem leaves its constants C₁ … C₇ open. Plans take them as 1; `bound` adds up section 6.2 with whatever plan and noise.
Where the paper has an error, the corrected result is returned:

- section 7 prints 2((1−γ)C₁ + γC₂); eq. (6.1) and section 5 give the norm γC₁ + (1−γ)C₂ (`sensitivity`);
- Lemma 3.7's condition on α prints σ² where σ′² = σ²/Δ² is meant;
- Theorem 5.4 prints d ln(1/δ)^{2/3} for (d ln(1/δ))^{2/3}: only that makes the gradients (nε)²/(d ln(1/δ));
- section 6.2 needs n₀ ≥ 1, that is L·gap ≥ G²: beyond, the step 1/(2n₀L) exceeds 1/(2L);
- the log-loss of section 7 lacks its minus sign.
"""

import math
from dataclasses import dataclass

from privopt.errors import InputError
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from privopt.theory.theorems import Bound, Noise, Problem, check_positive, check_share, conclude, log_inverse, round_down, unless

_PLD_ROUNDS = 10**6  # that it prices in seconds
_ENOUGH = "nε ≥ max(G⁸ ln²(1/δ)/(L·gap·d)⁴, G²√(d ln(1/δ))/(L·gap))"


@dataclass(frozen=True)
class SrmPlan:
    """Theorem 5.4's parameters; the step is min(ζ/(n₀L‖v‖), `learning_rate`), the batches are rounded down."""

    rounds: int
    first_batch: int
    batch: int
    target: float
    scale: float
    refresh: float
    learning_rate: float
    failing: tuple[str, ...] = ()

    @property
    def gradients(self) -> int:
        """b₀ + 2bT: a round takes every gradient of its batch at two points."""
        return self.first_batch + 2 * self.batch * self.rounds


@dataclass(frozen=True)
class SrmNoise:
    """The noise of the first and of later rounds, and the order α at which the paper's proof bounds the divergence."""

    first: Noise
    later: Noise
    order: float


def sensitivity(*, gradient_clip: float, change_clip: float, refresh: float) -> float:
    """γC₁ + (1−γ)C₂: the norm of one example's γ·clip(∇f, C₁) + (1−γ)·clip(difference, C₂) (eq. (6.1)).

    Adding or removing the example moves the sum by this much, replacing it by twice that.

    >>> round(sensitivity(gradient_clip=1.0, change_clip=0.01, refresh=0.01), 6)
    0.0199
    """
    check_positive(gradient_clip=gradient_clip, change_clip=change_clip)
    if not 0 <= refresh <= 1:
        raise InputError(f"refresh is {refresh}; it is a weight, from 0 to 1.")
    return refresh * gradient_clip + (1 - refresh) * change_clip


def subsampled_divergence(*, order: float, sampling_rate: float, ratio: float) -> Bound:
    """Rényi divergence ≤ 3.5τ²α/σ′² of a Gaussian mechanism on a fixed-size sample, σ′ = σ/Δ (Lemma 3.7).

    Needs σ′² ≥ 0.7 and α ≤ (2/3)σ′² ln(1/(τα(1+σ′²))) + 1. Δ is how far *replacing* an example moves the query. The paper prints
    σ² in the condition, which would depend on the unit that the query is measured in.

    >>> subsampled_divergence(order=8, sampling_rate=0.001, ratio=4.0).value
    1.75e-06
    """
    check_positive(order=order, sampling_rate=sampling_rate, ratio=ratio)
    square = ratio**2
    largest = 2 / 3 * square * -math.log(sampling_rate * order * (1 + square)) + 1
    failing = unless(square >= 0.7, f"σ′² ≥ 0.7: σ′² = {square:.3g}") + unless(
        order <= largest, f"α ≤ (2/3)σ′² ln(1/(τα(1+σ′²))) + 1: α = {order:.4g}, which is above {largest:.4g}"
    )
    return conclude("the Rényi divergence of order α", 3.5 * sampling_rate**2 * order / square, "Lemma 3.7", failing)


def plan(problem: Problem, *, epsilon: float, delta: float) -> SrmPlan:
    """Theorem 5.4, every constant taken as 1.

    T = (nεL·gap)^{4/3}/(G^{8/3}(d ln(1/δ))^{2/3}), ζ = (GL·gap·d ln(1/δ))^{1/3}/(nε)^{2/3}, n₀ = L·gap/G², b = b₀ = G/(n₀ζ),
    γ = ζ/(n₀G). Then Tb = (nε)²/(d ln(1/δ)), whatever G, L and the gap are.
    """
    check_positive(epsilon=epsilon)
    lipschitz, reach = problem.lipschitz, problem.smoothness * problem.gap
    information, log = problem.n * epsilon, log_inverse(delta)
    cost = problem.d * log
    target = (lipschitz * reach * cost) ** (1 / 3) / information ** (2 / 3)
    scale = reach / lipschitz**2
    refresh = target / (scale * lipschitz)
    batch = lipschitz / (scale * target)
    rounds, failing = round_down((information * reach) ** (4 / 3) / (lipschitz ** (8 / 3) * cost ** (2 / 3)))
    least = max((lipschitz**2) ** 4 * log**2 / (reach * problem.d) ** 4, lipschitz**2 * math.sqrt(cost) / reach)
    failing += (
        unless(scale >= 1, f"n₀ = L·gap/G² ≥ 1: n₀ = {scale:.3g}; L = G²/gap = {lipschitz**2 / problem.gap:.3g} would do")
        + unless(information >= least, f"{_ENOUGH}: nε = {information:.4g}, which is below {least:.4g}")
        + unless(refresh <= 1, f"γ ≤ 1: γ = {refresh:.3g}")
        + unless(1 <= batch <= problem.n, f"1 ≤ b ≤ n: b = {batch:.4g}, n = {problem.n}")
    )
    whole_batch = min(problem.n, max(1, math.floor(batch)))
    step = 1 / (2 * scale * problem.smoothness)
    return SrmPlan(rounds, whole_batch, whole_batch, target, scale, min(1.0, refresh), step, failing)


def noise(problem: Problem, plan: SrmPlan, *, epsilon: float, delta: float, share: float = 0.5) -> SrmNoise:
    """σ₀² = 14TG²α/(βn²ε), σ² = 14T((1−γ)ζ/n₀ + γG)²α/(βn²ε), α = ln(1/δ)/((1−β)ε) + 1 (Theorem 5.1).

    By Lemma 3.7 with Δ = 2C/b, C the norm of one example's vector, each of T rounds has divergence βε/T. What is needed is
    priced for Poisson samples of the same rate; beyond a million rounds for the paper's fixed-size samples, which need more.
    """
    check_positive(epsilon=epsilon, share=share)
    check_share(share=share)
    n, rounds = problem.n, plan.rounds
    order = log_inverse(delta) / ((1 - share) * epsilon) + 1
    unit = math.sqrt(14 * rounds * order / (share * epsilon)) / n  # σ/C
    change = sensitivity(gradient_clip=problem.lipschitz, change_clip=plan.target / plan.scale, refresh=plan.refresh)
    smallest, largest = min(plan.first_batch, plan.batch), max(plan.first_batch, plan.batch)
    failing = subsampled_divergence(order=order, sampling_rate=largest / n, ratio=smallest * unit / 2).failing

    def event(multiplier: float) -> DpEvent:
        inner = GaussianDpEvent(multiplier)
        few = rounds <= _PLD_ROUNDS
        sampled = PoissonSampledDpEvent(largest / n, inner) if few else SampledWithoutReplacementDpEvent(n, largest, inner)
        return SelfComposedDpEvent(sampled, rounds)

    multiplier = calibrate(event, Budget(epsilon, delta, "replace-one"))
    first = Noise(unit * problem.lipschitz, multiplier * problem.lipschitz / plan.first_batch, "Theorem 5.1, σ₀", failing)
    return SrmNoise(first, Noise(unit * change, multiplier * change / plan.batch, "Theorem 5.1, σ", failing), order)


def bound(problem: Problem, plan: SrmPlan, *, first: float, later: float) -> Bound:
    """E‖∇F(θ)‖ ≤ 4n₀L·gap/(Tζ) + V/ζ + 2ζ + √V at a uniformly drawn iterate (section 6.2).

    V = 2(1−γ)²ζ²/(n₀²γb) + 2γG²/b + G²/(Tγb₀) + (Tdσ² + dσ₀²)/(Tγ) bounds the mean squared error of v. Of the conditions of
    Theorem 5.4 it needs n₀ ≥ 1 only, and it holds for the noise that is given, whether that is private or not.
    """
    check_positive(first=first, later=later)
    squared, refresh, rounds = problem.lipschitz**2, plan.refresh, plan.rounds
    error = (
        2 * ((1 - refresh) * plan.target / plan.scale) ** 2 / (refresh * plan.batch)
        + 2 * refresh * squared / plan.batch
        + squared / (rounds * refresh * plan.first_batch)
        + problem.d * (later**2 + first**2 / rounds) / refresh
    )
    value = 4 * plan.scale * problem.smoothness * problem.gap / (rounds * plan.target)
    value += error / plan.target + 2 * plan.target + math.sqrt(error)
    failing = unless(plan.scale >= 1, f"n₀ ≥ 1: n₀ = {plan.scale:.3g}")
    return conclude("E‖∇F(θ)‖", value, "section 6.2", failing)
