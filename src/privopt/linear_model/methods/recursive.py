"""The plans of methods that measure how the gradient changes: DP-SRM and Private SpiderBoost.

Both descend along an estimate v of the gradient, so the rule of `privopt.linear_model.defaults` holds for them with the noise
that v has *over many rounds*: what v gets wrong stays wrong for a while, and moves the iterate in one direction.

DP-SRM. The noise of one answer, s = z(γC₁ + (1 − γ)C₂)/b, stays in v for 1/γ rounds and moves the iterate by ηs/γ in all: as far
as plain descent is moved by the noise multiplier (1 + (1 − γ)C₂/(γC₁))z. A small γ makes v smooth, and a small C₂ keeps this
factor near 1; but no step may be longer than C₂/(LR²), for a loss of curvature L and rows of length R, or changes would be cut.
C₂ = C₁/10 leaves steps long enough to cross the space in a few hundred rounds, and γ = 1/5 makes the factor 1.4.

SpiderBoost. Anchors have the noise of the clip bound, changes of LR² times the step. Dividing the budget so that the noise of v
is least gives a change aC₁ a noise multiplier that is √(√2/a) times that of an anchor; steps change a gradient by a twentieth.
"""

from typing import Any

from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem
from privopt.recipe import Recipe
from privopt.recipes.dp_srm import dp_srm
from privopt.recipes.spiderboost import spiderboost

PERIOD = 10  # rounds from one anchor to the next
ANCHOR_NOISE = 0.2  # of an anchor's mean, in noise multipliers of a change's mean
REFRESH, CHANGE = 0.2, 0.1  # γ, and C₂ in units of C₁


def plan_srm(problem: Problem) -> Planned:
    """DP-SRM."""
    settings, rounds = problem.settings, problem.rounds("dp-gd")

    def arguments(noise_multiplier: float) -> dict[str, Any]:
        clip_bound = problem.steps("dp-gd", rounds, noise_multiplier).clip_bound
        refresh = settings.options.get("refresh", REFRESH)
        change_bound = settings.options.get("change_bound", CHANGE * clip_bound)
        lasting = refresh + (1 - refresh) * change_bound / clip_bound
        plain = problem.steps("dp-gd", rounds, lasting / refresh * noise_multiplier, clip_bound=clip_bound)
        return {
            "clip_bound": clip_bound,
            "change_bound": change_bound,
            "refresh": refresh,
            "learning_rate": plain.learning_rate,
            "longest_step": change_bound / (problem.loss.curvature * problem.row_norm**2),
            **settings.options,
        }

    def recipe(noise_multiplier: float) -> Recipe:
        return dp_srm(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            sampling=problem.sampler,
            regularizer=problem.regularizer,
            **arguments(noise_multiplier),
        )

    return Planned(recipe, lambda noise_multiplier: _shown(problem, arguments(noise_multiplier)))


def plan_spiderboost(problem: Problem) -> Planned:
    """Private SpiderBoost."""
    settings, rounds = problem.settings, problem.rounds("dp-gd")

    def arguments(noise_multiplier: float) -> dict[str, Any]:
        anchor_noise = settings.options.get("anchor_noise", ANCHOR_NOISE * problem.size / problem.batch)
        plain = problem.steps("dp-gd", rounds, anchor_noise * noise_multiplier * problem.batch / problem.size)
        return {
            "clip_bound": plain.clip_bound,
            "smoothness": problem.loss.curvature * problem.row_norm**2,
            "period": PERIOD,
            "anchor_noise": anchor_noise,
            "learning_rate": plain.learning_rate,
            **settings.options,
        }

    def recipe(noise_multiplier: float) -> Recipe:
        return spiderboost(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            sampling=problem.sampler,
            regularizer=problem.regularizer,
            **arguments(noise_multiplier),
        )

    return Planned(recipe, lambda noise_multiplier: _shown(problem, arguments(noise_multiplier)))


def _shown(problem: Problem, arguments: dict[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", " "): value for name, value in arguments.items() if name != "release"}
    return {"batch size": problem.batch_phrase, **named}
