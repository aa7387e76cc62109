"""Smooth ERM: output-perturbation gradient descent, and RRPSGD. Zhang, Zheng, Mou, Wang, Efficient Private ERM for Smooth
Objectives.

Symbols: L -> lipschitz, β -> smoothness (of the whole objective, ridge term included), μ -> strong_convexity, D -> radius (of the
ball that holds the minimiser), T -> rounds, Δ -> sensitivity, F(w₀) − F* -> gap. Descent starts at 0.

Where the paper has an error, the corrected result is returned:

- Theorem 1 says "for any ε"; its Gaussian noise is proven for ε ≤ 1, and too little for large ε (at δ = 1e-5, from ε = 10 on);
- the proof of Theorem 2 prints 50(d+1)d for 25 d ln(2/δ) in the noise term of (ε, δ)-DP, and 25 for 25/2 in that of ε-DP;
- Lemmas 11 and 12 lack the factor β that Theorem 5 has; the proof of Theorem 5 loses the d in σ²;
- the proof of Theorem 4 spends ε on the first term of strong composition and forgets the second; the noise is enough;
- the logistic loss is ln(1 + exp(−y⟨w, x⟩)), printed with exp(1 + y⟨w, x⟩).
"""

import math
from dataclasses import dataclass

from privopt.errors import InputError
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent
from privopt.theory.theorems import Bound, Noise, Plan, Problem, check_positive, conclude, log_inverse, round_down, unless

_EXCESS = "E F(w_priv) − min F"


@dataclass(frozen=True)
class Sensitivity:
    """How far replacing one example can move the last iterate: as the paper proves, and a smaller bound that is proven too."""

    printed: float
    tight: float


@dataclass(frozen=True)
class DescentPlan:
    """Rounds (up to a constant, taken as 1), step size, and how far one example then moves the result."""

    rounds: int
    learning_rate: float
    sensitivity: Sensitivity
    source: str
    failing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Constants:
    """What a loss of a linear model satisfies when every row has norm ≤ R."""

    lipschitz: float
    smoothness: float


def logistic(row_norm: float) -> Constants:
    """ln(1 + exp(−y⟨w, x⟩)): L = R, β = R²/4.

    >>> logistic(2.0)
    Constants(lipschitz=2.0, smoothness=1.0)
    """
    check_positive(row_norm=row_norm)
    return Constants(row_norm, row_norm**2 / 4)


def huber(row_norm: float, threshold: float) -> Constants:
    """Huber's loss of ⟨w, x⟩ − y: L = hR, β = R²."""
    check_positive(row_norm=row_norm, threshold=threshold)
    return Constants(threshold * row_norm, row_norm**2)


# ---------------------------------------------------------------- gradient descent, noise on its last iterate


def convex_sensitivity(problem: Problem, *, rounds: int, learning_rate: float) -> Sensitivity:
    """3LTη/n (Lemma 2), and 2LTη/n, for η ≤ 1/β.

    A gradient step on a convex β-smooth F does not move two points apart (η ≤ 2/β), and replacing an example changes the
    step by ≤ 2Lη/n.

    >>> convex_sensitivity(Problem(n=1024, d=10), rounds=64, learning_rate=4.0)
    Sensitivity(printed=0.75, tight=0.5)
    """
    check_positive(rounds=rounds, learning_rate=learning_rate)
    _stable_step(learning_rate, 1 / problem.smoothness, "1/β")
    unit = problem.lipschitz * rounds * learning_rate / problem.n
    return Sensitivity(3 * unit, 2 * unit)


def strongly_convex_sensitivity(
    problem: Problem, *, strong_convexity: float, rounds: int, learning_rate: float, data_lipschitz: float | None = None
) -> Sensitivity:
    """5L(μ+β)/(nμβ) (Lemma 3), and 2L₀(1 − (1−ημ)^T)/(nμ), for η ≤ 1/(β+μ).

    L₀ (`data_lipschitz`, by default L) is the Lipschitz constant of the loss without its ridge term, which is the same for both
    data sets. A step on a μ-strongly convex F brings two points together by 1 − ημ; the changes 2L₀η/n of T steps add up.
    """
    changing = problem.lipschitz if data_lipschitz is None else data_lipschitz
    check_positive(strong_convexity=strong_convexity, rounds=rounds, learning_rate=learning_rate, data_lipschitz=changing)
    mu, beta, n = strong_convexity, problem.smoothness, problem.n
    _stable_step(learning_rate, 1 / (beta + mu), "1/(β+μ)")
    moved = 2 * changing / (n * mu) * -math.expm1(rounds * math.log1p(-learning_rate * mu))
    return Sensitivity(5 * problem.lipschitz * (mu + beta) / (n * mu * beta), moved)


def _stable_step(learning_rate: float, largest: float, formula: str) -> None:
    if learning_rate > largest * (1 + 1e-12):
        raise InputError(
            f"learning_rate is {learning_rate:.4g}, but the sensitivity of descent is known up to {formula} = {largest:.4g} "
            "only. Take a smaller step."
        )


def gaussian_noise(sensitivity: float, *, epsilon: float, delta: float) -> Noise:
    """σ = √(2 ln(2/δ)) Δ/ε (Algorithm 1, line 7), and what the Gaussian mechanism needs. Proven for ε ≤ 1 only."""
    check_positive(sensitivity=sensitivity, epsilon=epsilon)
    printed = math.sqrt(2 * (math.log(2) + log_inverse(delta))) * sensitivity / epsilon
    needed = sensitivity * calibrate(GaussianDpEvent, Budget(epsilon, delta))  # Δ is whatever one change does
    return Noise(printed, needed, "Algorithm 1, line 7", unless(epsilon <= 1, f"ε ≤ 1: ε = {epsilon:.3g}"))


def gamma_square(d: int, *, sensitivity: float, epsilon: float) -> float:
    """E‖z‖² = d(d+1)(Δ/ε)² of noise with density ∝ exp(−ε‖z‖/Δ) (Lemma 6)."""
    check_positive(sensitivity=sensitivity, epsilon=epsilon)
    return d * (d + 1) * (sensitivity / epsilon) ** 2


def gaussian_square(d: int, *, noise: float) -> float:
    """E‖z‖² = dσ² (Lemma 7)."""
    return d * noise**2


def convex_plan(problem: Problem, *, radius: float, epsilon: float, delta: float = 0.0) -> DescentPlan:
    """T = (β²n²ε²D²/(L²d²))^{1/3} for ε-DP, (β²n²ε²D²/(L²d ln(1/δ)))^{1/3} for (ε, δ)-DP; η = 1/β (Theorem 3)."""
    check_positive(radius=radius, epsilon=epsilon)
    exact = (problem.smoothness * problem.n * epsilon * radius / problem.lipschitz) ** 2 / _price(problem, delta)
    rounds, failing = round_down(exact ** (1 / 3))
    step = 1 / problem.smoothness
    return DescentPlan(rounds, step, convex_sensitivity(problem, rounds=rounds, learning_rate=step), "Theorem 3", failing)


def strongly_convex_plan(
    problem: Problem, *, strong_convexity: float, radius: float, epsilon: float, delta: float = 0.0
) -> DescentPlan:
    """T = ((μ²+β²)/(μβ)) ln(μ²n²ε²D²/(L²d²)), with d ln(1/δ) for d² in (ε, δ)-DP; η = 1/(μ+β) (Theorem 2)."""
    check_positive(strong_convexity=strong_convexity, radius=radius, epsilon=epsilon)
    mu, beta = strong_convexity, problem.smoothness
    inside = (mu * problem.n * epsilon * radius / problem.lipschitz) ** 2 / _price(problem, delta)
    rounds, failing = round_down((mu**2 + beta**2) / (mu * beta) * math.log(inside))
    step = 1 / (mu + beta)
    moved = strongly_convex_sensitivity(problem, strong_convexity=mu, rounds=rounds, learning_rate=step)
    return DescentPlan(rounds, step, moved, "Theorem 2", failing)


def convex_bound(problem: Problem, *, radius: float, rounds: int, noise_square: float) -> Bound:
    """E F(w_priv) − min F ≤ 2βD²/T + (β/2)E‖z‖² for η = 1/β (Theorem 3)."""
    check_positive(radius=radius, rounds=rounds)
    value = 2 * problem.smoothness * radius**2 / rounds + problem.smoothness / 2 * noise_square
    return conclude(_EXCESS, value, "proof of Theorem 3, η = 1/β", ())


def strongly_convex_bound(problem: Problem, *, strong_convexity: float, radius: float, rounds: int, noise_square: float) -> Bound:
    """E F(w_priv) − min F ≤ (β/2)e^{−2μβT/(μ+β)²}D² + (β/2)E‖z‖² for η = 1/(μ+β) (Theorem 2)."""
    check_positive(strong_convexity=strong_convexity, radius=radius, rounds=rounds)
    mu, beta = strong_convexity, problem.smoothness
    left = math.exp(-2 * mu * beta * rounds / (mu + beta) ** 2) * radius**2
    failing = unless(mu <= beta, f"μ ≤ β: μ = {mu:.3g}, β = {beta:.3g}")
    return conclude(_EXCESS, beta / 2 * (left + noise_square), "proof of Theorem 2, η = 1/(μ+β)", failing)


def _price(problem: Problem, delta: float) -> float:
    return problem.d**2 if delta == 0 else problem.d * log_inverse(delta)


# ---------------------------------------------------------------- RRPSGD


def rrpsgd_plan(problem: Problem, *, epsilon: float, delta: float) -> Plan:
    """n² rounds of one example, σ² = 4L² ln(3n/δ) ln(2/δ)/ε², η = min(1/β, D_F/(σ_tot n)) (Theorems 4 and 5; ε ≤ 1).

    σ_tot² = 4L² + dσ² and D_F = √(2 gap/β). The step is constant, so R is uniform on 1 … n². The noise that is needed is priced
    by Rényi divergences, for samples of one of n.
    """
    check_positive(epsilon=epsilon)
    logs = (math.log(3 * problem.n) + log_inverse(delta)) * (math.log(2) + log_inverse(delta))
    printed = 2 * problem.lipschitz * math.sqrt(logs) / epsilon
    rounds = problem.n**2
    multiplier = calibrate(
        lambda z: SelfComposedDpEvent(SampledWithoutReplacementDpEvent(problem.n, 1, GaussianDpEvent(z)), rounds),
        Budget(epsilon, delta, "replace-one"),
    )
    failing = unless(epsilon <= 1, f"ε ≤ 1: ε = {epsilon:.3g}")
    noise = Noise(printed, multiplier * problem.lipschitz, "Algorithm 2, line 4", failing)
    step = min(1 / problem.smoothness, _distance(problem) / (_total(problem, printed) * problem.n))
    return Plan(rounds, step, noise, "Theorem 5")


def rrpsgd_bound(problem: Problem, *, rounds: int, noise: float) -> Bound:
    """E‖∇F(w)‖² ≤ β²D_F²/N + 2βD_Fσ_tot/√N for η = min(1/β, D_F/(σ_tot√N)), N the most rounds (Lemma 12, times β).

    w is the iterate *before* step R, R uniform on 1 … N.
    """
    check_positive(rounds=rounds)
    size = problem.smoothness * _distance(problem)
    value = size**2 / rounds + 2 * size * _total(problem, noise) / math.sqrt(rounds)
    return conclude("E‖∇F(w)‖²", value, "Lemma 12 × β, η = min(1/β, D_F/(σ_tot√N))", ())


def _distance(problem: Problem) -> float:
    return math.sqrt(2 * problem.gap / problem.smoothness)


def _total(problem: Problem, noise: float) -> float:
    return math.sqrt(4 * problem.lipschitz**2 + problem.d * noise**2)
