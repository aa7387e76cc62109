"""The plan of output perturbation: rows of bounded length, and as many steps as the bound on the excess risk asks for.

One example moves the end of T steps η by Δ ≤ ηTL/n (`privopt.measure.solutions`): more steps come closer to the optimum and
need more noise. The number of steps minimises what is known of both, from public numbers:

    F(w_T) − F(ŵ) ≤ (β′D²/2) max{1/(1 + 2Th), (1 − h)^{2T}},  h = ηβ′,  β′ = β + μ;  with a ridge also ≤ (β′D²/2) (1 − ημ)^{2T}
    E F(w_T + z) − F(w_T) ≤ (tR² + μd)σ²/2,  σ² the variance of z along any direction, t the trace of the loss's curvature

The first is the rate of Drori and Teboulle (proven for h ≤ 1, their conjecture above; no guarantee rests on it). The second holds
because a row x sees its scores shaken by xᵀz alone, so no factor d appears as in the paper's (β/2)E‖z‖². D bounds ‖ŵ‖, which
nobody knows: 15 over the length of a row, and the rule depends on it weakly.
"""

import math
from itertools import product
from typing import Any

from privopt.errors import InputError
from privopt.linear_model.defaults import shape
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Settings
from privopt.measure.mechanisms import gaussian
from privopt.measure.solutions import Sensitivity, stable_solution
from privopt.perexample.losses import Loss
from privopt.postprocess.regularizers import ridge
from privopt.recipe import Recipe
from privopt.recipes import output_perturbation

NAME = "output-perturbation"
RADIUS = 15.0  # ‖ŵ‖, for rows of length 1 and scores of reach 1
MOST = 400  # steps: what more of them would gain is small beside the time that they take
WORTH = 1e-4  # of the bound: what one more step has to gain
STEPS = (0.5, 0.75, 0.95)  # of the longest that are stable; the paper's are 0.5 of it
OPTIONS = {"sensitivity"}  # δ = 0 asks for pure noise


def check(settings: Settings, loss: Loss) -> None:
    """Refuse what no constants are known for, before any data are read."""
    if math.isinf(loss.steepness):
        raise InputError(f"{NAME} needs gradients of bounded length, which squared loss has not. HuberRegressor has them.")
    convex_penalty(settings)
    if settings.batch_size is not None:
        raise InputError(f"{NAME} uses every row in every step: leave batch_size out, or use bassily-sgd.")
    if settings.clip_bound is not None:
        raise InputError(f"{NAME} cuts rows, not gradients: leave clip_bound out; bounds=… says how long a row may be.")
    if unknown := set(settings.options) - OPTIONS:
        raise InputError(f"{NAME} has no option {', '.join(sorted(unknown))}; its options are {', '.join(sorted(OPTIONS))}.")


def convex_penalty(settings: Settings) -> None:
    """Refuse a penalty that is not convex."""
    if settings.alpha and settings.penalty != "ridge":
        raise InputError(f"{settings.method} is for convex objectives, which penalty={settings.penalty!r} is not. Use 'ridge'.")


def radius(problem: Problem) -> float:
    """How long useful parameters are, at most."""
    return RADIUS * shape(problem.loss).reach / problem.row_norm


def plan(problem: Problem) -> Planned:
    """Steps and their size by the rule above, unless they are given; the ridge is on the intercept, too."""
    settings, loss, pure = problem.settings, problem.loss, problem.pure
    sensitivity: Sensitivity = settings.options.get("sensitivity", "tight")
    lipschitz, smoothness, convexity = loss.steepness * problem.row_norm, loss.curvature * problem.row_norm**2, settings.alpha
    dimension, longest = loss.outputs * problem.width, 2 / (smoothness + 2 * convexity)

    def bound(steps: int, step: float) -> float:
        return stable_solution(steps, step, lipschitz, smoothness, gaussian(0.0), convexity, sensitivity).bound(problem.size)

    def excess(choice: tuple[int, float]) -> float:
        (steps, step), whole = choice, smoothness + convexity
        left = max(1 / (1 + 2 * steps * step * whole), (1 - step * whole) ** (2 * steps))
        left = min(left, (1 - step * convexity) ** (2 * steps)) if convexity else left
        trace = smoothness * min(loss.outputs, 2)  # of diag(p) − ppᵀ: at most 1, twice the largest eigenvalue
        spread = (problem.alone * bound(steps, step)) ** 2 * (dimension + 1 if pure else 1)
        return (whole * radius(problem) ** 2 * left + (trace + convexity * dimension) * spread) / 2 * (1 + WORTH * steps)

    numbers = [settings.rounds] if settings.rounds else range(1, MOST + 1)
    sizes = [share * longest for share in (STEPS if sensitivity == "tight" else STEPS[:1])]
    steps, step = min(product(numbers, [settings.learning_rate] if settings.learning_rate else sizes), key=excess)

    def recipe(noise_multiplier: float) -> Recipe:
        return output_perturbation(
            steps=steps,
            noise_multiplier=noise_multiplier,
            lipschitz=lipschitz,
            smoothness=smoothness,
            learning_rate=step,
            regularizer=ridge(convexity) if convexity else None,
            sensitivity=sensitivity,
            pure=pure,
        )

    def shown(noise_multiplier: float) -> dict[str, Any]:
        return {
            "gradient steps, without noise": steps,
            "learning rate": step,
            "longest row": problem.row_norm,
            "one example moves the solution by": bound(steps, step),
            "sensitivity": sensitivity,
            **({"ridge": "on the intercept, too"} if convexity and settings.fit_intercept else {}),
        }

    return Planned(recipe, shown, limit=problem.row_norm)
