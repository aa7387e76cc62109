"""DPAGD: DP-GD, DP-RMSProp and DP-Adam. Zhou, Chen, Hong, Wu, Banerjee, Private Stochastic Non-Convex Optimization.

Symbols: p (also d) -> d, G -> lipschitz, L -> smoothness, f(w₁) − f* -> gap, T -> rounds, η -> learning_rate, σ -> noise (of the
mean gradient), μ -> deviations, α -> a deviation's value, ν -> stability, λ -> ceiling, β₁, β₂ -> first_decay, second_decay.

The bounds need only ‖g̃_t − ∇f(w_t)‖ ≤ α in every round. With `population_deviation` f is the population loss, with
`noise_deviation` the empirical one. Where the paper has an error, the corrected result is returned:

- Theorem 2 leaves out that its source speaks of functions into [0, 1]: coordinates of gradients lie in [−G, G], so the error is
  √d σ(2G + μ), not √d σ(1 + μ);
- the proof of Theorem 8 sets η = L/4; eq. (24) follows for η = 1/(4L), as the theorem says;
- eq. (32) drops a factor 1/4: the RMSProp bound is 4 times eq. (35);
- eq. (43) drops a factor 2 in front of the noise: Adam's noise term is twice that of eq. (49);
- Adam's condition solves 4kx² + x ≤ 1, k = β₁/(1−β₁)², x = ηL/ν: there is 1/4 under the root, not 1/2;
- eq. (56) loses a factor 2: its first term is 2L·gap/T. Eq. (54) prints η + Lη²/2 for η − Lη²/2;
- eq. (63) prints 2pσ² for pσ²/(2ν), and ψ_{t−1} under the ceiling is at most λ, not β₂λ. Its constant can be halved.
"""

import math

from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent
from privopt.theory.theorems import (
    Bound,
    Noise,
    Plan,
    Problem,
    check_positive,
    check_share,
    conclude,
    log_inverse,
    round_down,
    unless,
)

_MEAN = "the mean over the rounds of ‖∇f(w_t)‖²"
_EXPECTED = "the expected mean over the rounds of ‖∇f(w_t)‖², f the empirical loss"


# ---------------------------------------------------------------- noise


def noise_constant(epsilon: float, delta: float) -> float:
    """A c₂ with which σ² = c₂ G² T ln(1/δ)/(n²ε²) is (ε, δ)-DP, for any T; the paper only says that there is one.

    c₂ = 2(1 + √(1 + ε/ln(1/δ)))². Replacing one example moves the mean gradient by ≤ 2G/n, so T rounds are ρ-zCDP with
    ρ = 2TG²/(n²σ²), which is (ρ + 2√(ρ ln(1/δ)), δ)-DP; this c₂ solves that for ε. It falls to 8 as δ → 0, and no constant below
    8 serves every δ: a Gaussian mechanism needs σ² → 2 ln(1/δ)Δ²/ε².

    >>> round(noise_constant(1.0, 1e-5), 3)
    8.344
    """
    check_positive(epsilon=epsilon)
    return 2 * (1 + math.sqrt(1 + epsilon / log_inverse(delta))) ** 2


def noise(problem: Problem, *, rounds: int, epsilon: float, delta: float) -> Noise:
    """σ by eq. (6) with `noise_constant`, and as much as is needed: T Gaussian releases are one, with σ/√T."""
    check_positive(rounds=rounds)
    printed = problem.lipschitz * math.sqrt(noise_constant(epsilon, delta) * rounds * log_inverse(delta)) / (problem.n * epsilon)
    multiplier = calibrate(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), rounds), Budget(epsilon, delta, "replace-one"))
    return Noise(printed, multiplier * problem.lipschitz / problem.n, "Theorem 1, eq. (6); c₂ from zero-concentrated DP")


# ---------------------------------------------------------------- what the theorems prescribe


def gd_plan(problem: Problem, *, epsilon: float, delta: float) -> Plan:
    """T = nε√L/(G√(d ln(1/δ))), η = 1/(4L) (Theorem 3.1).

    >>> gd_plan(Problem(n=32561, d=123), epsilon=0.2, delta=1e-5).rounds
    86
    """
    return _plan(problem, math.sqrt(problem.smoothness), 1 / (4 * problem.smoothness), epsilon, delta, "Theorem 3.1")


def gd_expected_plan(problem: Problem, *, epsilon: float, delta: float) -> Plan:
    """The same T, η = 1/L (Theorem 4, on the empirical loss)."""
    return _plan(problem, math.sqrt(problem.smoothness), 1 / problem.smoothness, epsilon, delta, "Theorem 4")


def rmsprop_plan(problem: Problem, *, epsilon: float, delta: float, stability: float) -> Plan:
    """T = nε/(G√(d ln(1/δ))), the largest step η = ν/(4L) (Theorem 3.2)."""
    check_positive(stability=stability)
    return _plan(problem, 1.0, stability / (4 * problem.smoothness), epsilon, delta, "Theorem 3.2")


def adam_plan(problem: Problem, *, epsilon: float, delta: float, stability: float, first_decay: float) -> Plan:
    """T = nε/(G√(d ln(1/δ))), the largest step of `adam_step` (Theorem 3.3)."""
    step = adam_step(problem.smoothness, stability=stability, first_decay=first_decay)
    return _plan(problem, 1.0, step, epsilon, delta, "Theorem 3.3; its step from eq. (47)")


def adam_step(smoothness: float, *, stability: float, first_decay: float) -> float:
    """The largest η: (√(1/4 + 4k) − 1/2)/(4k) · ν/L, k = β₁/(1−β₁)².

    That is the root of 2k x² + x/2 − 1/2 (below eq. (47)); the paper prints 1/2 for 1/4, which allows any step as β₁ → 0.

    >>> round(adam_step(1.0, stability=1.0, first_decay=0.9), 4)
    0.0513
    """
    check_positive(smoothness=smoothness, stability=stability)
    check_share(first_decay=first_decay)
    k = first_decay / (1 - first_decay) ** 2
    return stability / smoothness * 2 / (1 + math.sqrt(1 + 16 * k))  # the same root, also for k = 0


def deviations_for(d: int, rounds: int, failure: float) -> float:
    """μ = √(2 ln(4dT/β)): the μ with which all rounds keep their deviation, except with probability β."""
    check_positive(d=d, rounds=rounds, failure=failure)
    return math.sqrt(2 * max(0.0, math.log(4 * d * rounds / failure)))


def _plan(problem: Problem, factor: float, step: float, epsilon: float, delta: float, source: str) -> Plan:
    exact = problem.n * epsilon * factor / (problem.lipschitz * math.sqrt(problem.d * log_inverse(delta)))
    rounds, failing = round_down(exact)
    return Plan(rounds, step, noise(problem, rounds=rounds, epsilon=epsilon, delta=delta), source, failing)


# ---------------------------------------------------------------- how far a noisy gradient is from the true one


def population_deviation(problem: Problem, *, noise: float, epsilon: float, delta: float, deviations: float) -> Bound:
    """P(‖g̃_t − ∇f(w_t)‖ ≥ √d σ(2G + μ)) ≤ 4d e^{−μ²/2} in each round of an (ε, δ)-DP run, f the population loss (Theorem 2).

    Needs ε ≤ σ/13, δ ≤ σe^{−μ²/2}/(13 ln(26/σ)) and n ≥ 2 ln(8/δ)/ε². An (ε, δ)-DP run is (ε′, δ′)-DP for larger ε′ and δ′, so
    a condition that fails because ε or δ is small may be met with a larger one.
    """
    check_positive(noise=noise, epsilon=epsilon, deviations=deviations)
    tail = math.exp(-(deviations**2) / 2)
    largest = noise * tail / (13 * math.log(26 / noise)) if noise < 26 else math.nan
    least = 2 * (math.log(8) + log_inverse(delta)) / epsilon**2
    failing = (
        unless(noise < 26, f"σ < 26: σ = {noise:.3g}")
        + unless(epsilon <= noise / 13, f"ε ≤ σ/13: ε = {epsilon:.3g}, σ/13 = {noise / 13:.3g}")
        + unless(not delta > largest, f"δ ≤ σ exp(−μ²/2)/(13 ln(26/σ)): δ = {delta:.3g}, which is above {largest:.3g}")
        + unless(problem.n >= least, f"n ≥ 2 ln(8/δ)/ε²: n = {problem.n}, which is below {least:.4g}")
    )
    value = math.sqrt(problem.d) * noise * (2 * problem.lipschitz + deviations)
    source = "Theorem 2, with coordinates of gradients in [−G, G]"
    return conclude("‖g̃_t − ∇f(w_t)‖ in one round, f the population loss", value, source, failing, 4 * problem.d * tail)


def noise_deviation(d: int, *, noise: float, deviations: float) -> Bound:
    """P(‖g̃_t − ∇f(w_t)‖ ≥ √d σμ) ≤ 2d e^{−μ²/2} in each round, f the empirical loss (Lemma 3, which needs no condition).

    >>> noise_deviation(100, noise=0.01, deviations=5.0).value
    0.5
    """
    check_positive(d=d, noise=noise, deviations=deviations)
    value, failure = math.sqrt(d) * noise * deviations, 2 * d * math.exp(-(deviations**2) / 2)
    return conclude("‖g̃_t − ∇f(w_t)‖ in one round, f the empirical loss", value, "Lemma 3", (), failure)


# ---------------------------------------------------------------- bounds


def gd_bound(problem: Problem, *, rounds: int, deviation: Bound) -> Bound:
    """Mean ‖∇f(w_t)‖² ≤ 16L·gap/T + 3α² for η = 1/(4L) (eq. (26)).

    By (22) a step gains (η/2 − Lη²)‖g‖² = ‖g‖²/(16L) and loses (η/2 + Lη²)α² = 3α²/(16L).

    >>> gd_bound(Problem(100, 4, smoothness=1.0), rounds=160, deviation=noise_deviation(4, noise=0.01, deviations=5.0)).value
    0.13
    """
    check_positive(rounds=rounds)
    value = 16 * problem.smoothness * problem.gap / rounds + 3 * deviation.number**2
    return conclude(_MEAN, value, "eq. (26), η = 1/(4L)", deviation.failing, rounds * deviation.failure)


def rmsprop_bound(
    problem: Problem, *, rounds: int, learning_rate: float, stability: float, ceiling: float, deviation: Bound
) -> Bound:
    """Mean ‖∇f(w_t)‖² ≤ 4(√λ + ν)(gap/(ηT) + 3α²/(4ν)) for η ≤ ν/(4L) (eq. (35), with the 1/4 that (32) drops)."""
    check_positive(rounds=rounds, learning_rate=learning_rate, stability=stability, ceiling=ceiling)
    failing = deviation.failing + _small_step(learning_rate, stability / (4 * problem.smoothness), "ν/(4L)")
    scale = 4 * (math.sqrt(ceiling) + stability)
    value = scale * (problem.gap / (learning_rate * rounds) + 3 * deviation.number**2 / (4 * stability))
    return conclude(_MEAN, value, "eq. (35) × 4: (32) drops a factor 1/4", failing, rounds * deviation.failure)


def adam_bound(
    problem: Problem,
    *,
    rounds: int,
    learning_rate: float,
    stability: float,
    ceiling: float,
    first_decay: float,
    deviation: Bound,
) -> Bound:
    """Mean ‖∇f(w_t)‖² ≤ ((√λ + ν)/(1−β₁))(2·gap/(ηT) + 2α²/((1−β₁)ν)) for η ≤ `adam_step` (eq. (49), with the 2 that (43) drops).

    For Adam without bias correction, with a ceiling.
    """
    check_positive(rounds=rounds, learning_rate=learning_rate, stability=stability, ceiling=ceiling)
    largest = adam_step(problem.smoothness, stability=stability, first_decay=first_decay)
    failing = deviation.failing + _small_step(learning_rate, largest, "(√(1/4 + 4k) − 1/2)/(4k) · ν/L with k = β₁/(1−β₁)²")
    share = 1 - first_decay
    scale = (math.sqrt(ceiling) + stability) / share
    value = scale * (2 * problem.gap / (learning_rate * rounds) + 2 * deviation.number**2 / (share * stability))
    return conclude(_MEAN, value, "eq. (49), noise term × 2: (43) drops it", failing, rounds * deviation.failure)


def gd_expected_bound(problem: Problem, *, rounds: int, noise: float) -> Bound:
    """E mean ‖∇f(w_t)‖² ≤ 2L·gap/T + dσ² for η = 1/L (eq. (56), which prints L·gap/T).

    A step gains (η − Lη²/2)‖g‖² = ‖g‖²/(2L) and loses Lη²dσ²/2 = dσ²/(2L).

    >>> gd_expected_bound(Problem(100, 4, smoothness=1.0), rounds=20, noise=0.1).value
    0.14
    """
    check_positive(rounds=rounds)
    value = 2 * problem.smoothness * problem.gap / rounds + problem.d * noise**2
    return conclude(_EXPECTED, value, "eq. (56), η = 1/L; it drops a factor 2", ())


def rmsprop_expected_bound(
    problem: Problem, *, rounds: int, learning_rate: float, stability: float, ceiling: float, second_decay: float, noise: float
) -> Bound:
    """E mean ‖∇f(w_t)‖² ≤ 2(√λ + ν)(gap/(ηT) + dσ²/(2ν)) for η ≤ ν/(2L) and 1 − β₂ ≤ ν²/(16G²) (eq. (63), repaired).

    u = min(β₂ψ_{t−1}, λ) is known before round t, and √v_t − √u ≤ √(1−β₂)|g̃|. So a step gains
    η Σ g²/(√u+ν), and loses at most η(G√(1−β₂)/ν + Lη/(2ν)) ≤ η/2 times Σ (g² + σ²)/(√u+ν). The paper keeps half of the rest.
    """
    check_positive(rounds=rounds, learning_rate=learning_rate, stability=stability, ceiling=ceiling)
    check_share(second_decay=second_decay)
    allowed = stability**2 / (16 * problem.lipschitz**2)
    failing = _small_step(learning_rate, stability / (2 * problem.smoothness), "ν/(2L)") + unless(
        1 - second_decay <= allowed, f"1 − β₂ ≤ ν²/(16G²): 1 − β₂ = {1 - second_decay:.3g}, which is above {allowed:.3g}"
    )
    scale = 2 * (math.sqrt(ceiling) + stability)
    value = scale * (problem.gap / (learning_rate * rounds) + problem.d * noise**2 / (2 * stability))
    return conclude(_EXPECTED, value, "eq. (63), with pσ²/(2ν) for 2pσ²", failing)


def _small_step(learning_rate: float, largest: float, formula: str) -> tuple[str, ...]:
    fits = learning_rate <= largest * (1 + 1e-12)
    return unless(fits, f"η ≤ {formula}: η = {learning_rate:.3g}, which is above {largest:.3g}")
