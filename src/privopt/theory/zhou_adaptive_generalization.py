"""SAGD: RMSProp on a private gradient oracle. Zhou, Karimi, Yu, Xu, Li, Towards Better Generalization of Adaptive Gradient
Methods (supplement).

Symbols: G -> lipschitz, G₁ -> lipschitz_l1, L -> smoothness, T (C_s, for DPG-Sparse) -> rounds, σ -> noise (the scale of Laplace
noise on the mean gradient), β -> coordinate_failure, μ -> deviations, ν -> stability, m -> batch.

Where the paper has an error, the corrected result is returned:

- Lemmas 2 and 3 leave out the constants of advanced composition, and Lemma 2 that replacing an example moves the mean by 2G₁/n:
  the ε that they print is too small (`lap_privacy`, `sparse_privacy`);
- Lemma 1 rescales gradients to [−1, 1], but its source speaks of [0, 1]: the error is √d σ(2G + μ). Theorem 3 drops G altogether;
- Theorems 1 and 3 put ln(1/(σβ)) for ln(1/δ), δ = σβ/(26 ln(26/σ)). With that and the constants of composition the rounds
  are fewer than printed. Their lower limit on T is none: a run that is more private than it need be is private enough;
- Theorem 3 takes the larger of two tails for their sum, and 2e^{−√dμ/6} ≤ d e^{−μ} for granted, which fails for small d;
- Theorem 7 needs η ≤ ν/(4L), not ν/(2L); its last step but one drops a factor 1/4, and prints ε for ν;
- Theorem 7 takes v ≤ G², but v averages *noisy* gradients: v ≤ (G + α)² is what can be said.
"""

import math
from dataclasses import dataclass

from privopt.privacy.accountants import epsilon as price
from privopt.privacy.events import DpEvent, LaplaceDpEvent, PureDpEvent, SelfComposedDpEvent
from privopt.theory import zhou_private_nonconvex
from privopt.theory.theorems import Bound, Problem, check_positive, conclude, log_inverse, unless


@dataclass(frozen=True)
class Composition:
    """ε of a whole run: as printed, by advanced composition with its constants, and by the accountant (replace-one)."""

    printed: float
    advanced: float
    tight: float


@dataclass(frozen=True)
class SagdPlan:
    """What a theorem prescribes, the rounds that it prints, and those that the repaired conditions allow (0: not one)."""

    noise: float
    coordinate_failure: float
    deviations: float
    printed_rounds: float
    rounds: int
    source: str


# ---------------------------------------------------------------- privacy


def lap_privacy(problem: Problem, *, rounds: int, noise: float, lipschitz_l1: float, delta: float) -> Composition:
    """T answers of DPG-Lap. Printed (Lemma 2): √(T ln(1/δ)) G₁/(nσ)."""
    answer = _answer(problem, noise, lipschitz_l1)
    printed = math.sqrt(rounds * log_inverse(delta)) * answer
    return _composition(printed, 2 * answer, LaplaceDpEvent(1 / answer), rounds, delta)


def sparse_privacy(problem: Problem, *, rounds: int, noise: float, lipschitz_l1: float, delta: float) -> Composition:
    """C_s paid answers of DPG-Sparse on n private examples. Printed (Lemma 3): √(C_s ln(2/δ)) 2G₁/(nσ).

    A paid answer is two releases, the comparison and the gradient. It speaks of the private half only.
    """
    answer = 2 * _answer(problem, noise, lipschitz_l1)
    printed = math.sqrt(rounds * (math.log(2) + log_inverse(delta))) * answer
    return _composition(printed, 2 * answer, PureDpEvent(answer), rounds, delta)


def advanced_composition(epsilon: float, rounds: int, delta: float) -> float:
    """√(2T ln(1/δ)) ε + Tε(e^ε − 1), or Tε if that is less (Dwork & Roth, Theorem 3.20).

    >>> round(advanced_composition(0.1, 100, 1e-5), 3)
    5.85
    """
    return min(
        rounds * epsilon,
        math.sqrt(2 * rounds * log_inverse(delta)) * epsilon + rounds * epsilon * math.expm1(min(epsilon, 700.0)),
    )


def _answer(problem: Problem, noise: float, lipschitz_l1: float) -> float:
    """ε of one Laplace answer when an example is added or removed; replacing one costs twice that."""
    check_positive(noise=noise, lipschitz_l1=lipschitz_l1)
    return lipschitz_l1 / (problem.n * noise)


def _composition(printed: float, replaced: float, event: DpEvent, rounds: int, delta: float) -> Composition:
    check_positive(rounds=rounds)
    tight = price(SelfComposedDpEvent(event, rounds), delta, "replace-one")
    return Composition(printed, advanced_composition(replaced, rounds, delta), tight)


# ---------------------------------------------------------------- what the theorems prescribe


def lap_plan(problem: Problem, *, lipschitz_l1: float) -> SagdPlan:
    """σ = n^{−1/3}, β = 1/(d n^{5/3}), μ = ln(1/β), printed T = n^{2/3}/(169 G₁²(ln d + 7/3 ln n)) (Theorem 2).

    >>> plan = lap_plan(Problem(n=10**6, d=100), lipschitz_l1=1.0)
    >>> round(plan.printed_rounds, 2), plan.rounds
    (1.61, 0)
    """
    return _plan(problem, problem.n, problem.n ** (-1 / 3), lipschitz_l1, 1, "Theorem 2")


def sparse_plan(problem: Problem, *, lipschitz_l1: float) -> SagdPlan:
    """As `lap_plan`, with 676 for 169: a paid answer costs twice (Theorem 4)."""
    return _plan(problem, problem.n, problem.n ** (-1 / 3), lipschitz_l1, 2, "Theorem 4")


def minibatch_plan(problem: Problem, *, batch: int, lipschitz_l1: float) -> SagdPlan:
    """σ = (mn)^{−1/6}, printed epochs T = m^{4/3}/(169 n^{2/3} G₁²(ln d + 7/3 ln n)) (Theorem 5).

    Each of the n/m disjoint batches answers once an epoch, so the rounds are epochs, and m examples share the noise.
    """
    check_positive(batch=batch)
    return _plan(problem, batch, (batch * problem.n) ** (-1 / 6), lipschitz_l1, 1, "Theorem 5")


def _plan(problem: Problem, examples: int, noise: float, lipschitz_l1: float, releases: int, source: str) -> SagdPlan:
    check_positive(lipschitz_l1=lipschitz_l1)
    n, d = problem.n, problem.d
    coordinate_failure = 1 / (d * n ** (5 / 3))
    logs = math.log(d) + 7 / 3 * math.log(n)
    printed = examples**2 * noise**4 / (169 * releases**2 * lipschitz_l1**2 * logs) if logs else math.inf
    enough = examples >= _examples_needed(noise, coordinate_failure)
    allowed = _most_rounds(2 * releases * lipschitz_l1 / (examples * noise), noise, coordinate_failure) if enough else 0
    return SagdPlan(noise, coordinate_failure, -math.log(coordinate_failure), printed, allowed, source)


def _most_rounds(cost: float, noise: float, coordinate_failure: float) -> int:
    """The most answers of this ε that advanced composition keeps within σ/13 at `_delta`: a quadratic in √T."""
    linear, square = math.sqrt(2 * log_inverse(_delta(noise, coordinate_failure))) * cost, cost * math.expm1(min(cost, 700.0))
    limit = noise / 13
    root = 2 * limit / (linear + math.sqrt(linear**2 + 4 * square * limit))
    return max(math.floor(root**2 * (1 - 1e-12)), math.floor(limit / cost))


def _delta(noise: float, coordinate_failure: float) -> float:
    """The largest δ of Lemma 1: σβ/(26 ln(26/σ))."""
    return noise * coordinate_failure / (26 * math.log(26 / noise))


def _examples_needed(noise: float, coordinate_failure: float) -> float:
    """n ≥ 2 ln(8/δ)/ε², at the largest ε = σ/13 that Lemma 1 allows."""
    return 2 * 169 * (math.log(8) + log_inverse(_delta(noise, coordinate_failure))) / noise**2


# ---------------------------------------------------------------- how far an answer is from the population's gradient


def lap_deviation(
    problem: Problem, *, rounds: int, noise: float, lipschitz_l1: float, coordinate_failure: float, deviations: float
) -> Bound:
    """P(‖g̃_t − ∇f(w_t)‖ ≥ √d σ(2G + μ)) ≤ dβ + d e^{−μ} in each of T rounds of DPG-Lap (Theorem 1).

    Needs T rounds that are (σ/13, δ)-DP with δ = σβ/(26 ln(26/σ)), and n ≥ 338 ln(8/δ)/σ².
    """
    tail = problem.d * math.exp(-deviations)
    cost = 2 * _answer(problem, noise, lipschitz_l1)
    return _deviation(problem, rounds, noise, cost, coordinate_failure, deviations, tail, "Theorem 1")


def sparse_deviation(
    problem: Problem, *, rounds: int, noise: float, lipschitz_l1: float, coordinate_failure: float, deviations: float
) -> Bound:
    """P(‖g̃_t − ∇f(w_t)‖ ≥ √d σ(2G + μ)) ≤ dβ + d e^{−μ} + 2e^{−√dμ/6} with C_s paid answers of DPG-Sparse (Theorem 3).

    n is the number of private examples, and the threshold is 0, as in the paper: Laplace noise of scale 2σ, compared with 4σ.
    """
    tail = problem.d * math.exp(-deviations) + 2 * math.exp(-math.sqrt(problem.d) * deviations / 6)
    cost = 4 * _answer(problem, noise, lipschitz_l1)
    return _deviation(problem, rounds, noise, cost, coordinate_failure, deviations, tail, "Theorem 3, both tails added")


def _deviation(
    problem: Problem, rounds: int, noise: float, cost: float, failure: float, deviations: float, tail: float, source: str
) -> Bound:
    check_positive(rounds=rounds, coordinate_failure=failure, deviations=deviations)
    failing = unless(noise < 26, f"σ < 26: σ = {noise:.3g}")
    if not failing:
        delta, least = _delta(noise, failure), _examples_needed(noise, failure)
        spent = advanced_composition(cost, rounds, delta)
        failing += unless(spent <= noise / 13, f"ε ≤ σ/13 at δ = {delta:.3g}: ε = {spent:.3g}, σ/13 = {noise / 13:.3g}")
        failing += unless(problem.n >= least, f"n ≥ 338 ln(8/δ)/σ²: n = {problem.n}, which is below {least:.4g}")
    value = math.sqrt(problem.d) * noise * (2 * problem.lipschitz + deviations)
    of = "‖g̃_t − ∇f(w_t)‖ in one round, f the population loss"
    return conclude(of, value, f"{source}, coordinates of gradients in [−G, G]", failing, problem.d * failure + tail)


# ---------------------------------------------------------------- bound


def bound(problem: Problem, *, rounds: int, learning_rate: float, stability: float, deviation: Bound) -> Bound:
    """Mean (so also min) ‖∇f(w_t)‖² ≤ 4(G + α + ν)(gap/(ηT) + 3α²/(4ν)) for η ≤ ν/(4L) (eq. (7), repaired).

    While ‖g̃_t − ∇f(w_t)‖ ≤ α no coordinate of g̃_t exceeds G + α, so v ≤ (G + α)² takes the place of DPAGD's ceiling.
    """
    return zhou_private_nonconvex.rmsprop_bound(
        problem,
        rounds=rounds,
        learning_rate=learning_rate,
        stability=stability,
        ceiling=1.0 if deviation.value is None else (problem.lipschitz + deviation.value) ** 2,
        deviation=deviation,
    )
