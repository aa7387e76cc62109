"""AdaDPS: precondition, then privatise. Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information.

Symbols: A -> preconditioner (a positive vector; its sum is ΣA), α -> learning_rate, D -> distance, C -> clip_bound,
σ -> noise_multiplier (of the sum: N(0, (σC)²)), b -> batch, R -> second_moment, a -> similarity, γ -> forgetting, τ -> spread.

The paper states O(·); these are the constants of its proofs. It writes E‖N‖² without the 1/b² that N has and, in the text that
we have, Theorem 5 with α ≤ ε/T where its proof uses α ≤ ε/L.
"""

import math
from collections.abc import Sequence

from privopt.errors import InputError
from privopt.theory.theorems import Bound, Problem, check_positive, conclude, unless

_EXCESS = "min over the rounds of E F(w_t) − min F"


def convex_bound(
    preconditioner: Sequence[float],
    *,
    rounds: int,
    learning_rate: float,
    distance: float,
    clip_bound: float,
    noise_multiplier: float,
    batch: float,
    second_moment: float | None = None,
) -> Bound:
    """E F(w_t) − min F ≤ (ΣA/√T)(D²/(2α) + αR + α(σC/b)²) for some t, with A fixed and step α/√t (Theorem 3, eqs. (41)–(45)).

    For convex F, per-example gradients with ‖g/A‖ ≤ C, and iterates within D of the minimiser. R = max E g²/A² is at most C²,
    which is taken if it is not given.

    >>> noise = {"clip_bound": 1.0, "noise_multiplier": 10.0, "batch": 10}
    >>> convex_bound([1.0] * 4, rounds=400, learning_rate=1.0, distance=1.0, **noise).value
    0.5
    """
    check_positive(rounds=rounds, learning_rate=learning_rate, distance=distance, clip_bound=clip_bound, batch=batch)
    moment = clip_bound**2 if second_moment is None else second_moment
    noise = (noise_multiplier * clip_bound / batch) ** 2
    inside = distance**2 / (2 * learning_rate) + learning_rate * (moment + noise)
    return conclude(_EXCESS, _sum(preconditioner) / math.sqrt(rounds) * inside, "proof of Theorem 3", ())


def public_convex_bound(
    preconditioner: Sequence[float],
    *,
    rounds: int,
    learning_rate: float,
    distance: float,
    clip_bound: float,
    noise_multiplier: float,
    batch: float,
    similarity: float,
    forgetting: float,
) -> Bound:
    """E F(w_t) − min F ≤ (ΣA/√T)(D²/(2α) + α(2−γ)/(aγ) + α(σC/b)²) for some t, A from public gradients (Theorem 2, eq. (38)).

    `preconditioner` bounds A in every round. Needs a·ĝ² ≤ g² ≤ ĝ²/a in every coordinate and round, and decays β_t with
    1 − γ/t ≥ β_t ≥ 1 − 1/t.
    """
    check_positive(rounds=rounds, learning_rate=learning_rate, distance=distance, clip_bound=clip_bound, batch=batch)
    check_positive(similarity=similarity, forgetting=forgetting)
    failing = unless(similarity <= 1, f"a ≤ 1: a = {similarity:.3g}") + unless(forgetting <= 1, f"γ ≤ 1: γ = {forgetting:.3g}")
    noise = (noise_multiplier * clip_bound / batch) ** 2
    inside = distance**2 / (2 * learning_rate) + learning_rate * ((2 - forgetting) / (similarity * forgetting) + noise)
    return conclude(_EXCESS, _sum(preconditioner) / math.sqrt(rounds) * inside, "eq. (38)", failing)


def nonconvex_bound(
    problem: Problem,
    preconditioner: Sequence[float],
    *,
    rounds: int,
    learning_rate: float,
    clip_bound: float,
    noise_multiplier: float,
    batch: float,
    spread: float,
) -> Bound:
    """E mean Σ_j (∂_jF(w_t))²/A_j ≤ 2·gap/(αT) + (αL/ε)(τ²/b)Σ 1/A_j + αLd(σC/b)² for α ≤ ε/L, ε = min A (Theorem 5, eq. (64)).

    `spread` bounds the standard deviation τ of every coordinate of a per-example gradient. No per-example gradient is clipped.
    """
    check_positive(rounds=rounds, learning_rate=learning_rate, clip_bound=clip_bound, batch=batch)
    _sum(preconditioner)
    least, smoothness = min(preconditioner), problem.smoothness
    largest = least / smoothness
    failing = unless(len(preconditioner) == problem.d, f"one A for each of the d = {problem.d} parameters: {len(preconditioner)}")
    failing += unless(
        learning_rate <= largest * (1 + 1e-12), f"α ≤ min A/L: α = {learning_rate:.3g}, which is above {largest:.3g}"
    )
    sampling = smoothness * learning_rate / least * spread**2 / batch * sum(1 / value for value in preconditioner)
    noise = learning_rate * smoothness * problem.d * (noise_multiplier * clip_bound / batch) ** 2
    value = 2 * problem.gap / (learning_rate * rounds) + sampling + noise
    return conclude("the expected mean over the rounds of Σ (∂F(w_t))²/A", value, "eq. (64), α ≤ ε/L", failing)


def _sum(preconditioner: Sequence[float]) -> float:
    if not preconditioner:
        raise InputError("preconditioner is empty; it has one number above 0 for each parameter.")
    check_positive(preconditioner=min(preconditioner))
    return sum(preconditioner)
