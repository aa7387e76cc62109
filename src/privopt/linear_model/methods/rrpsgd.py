"""The plan of RRPSGD: the paper's step η = min{1/β, D_F/(σ√T)}, from public numbers.

T is the most rounds. D_F² = 2(F(w₀) − F*)/β is bounded by the loss at 0, where training starts; σ² = 4C²/b + d(zC/b)² bounds the
variance of a noisy gradient: the first term is that of a batch, and absent when every row takes part.
"""

import math
from typing import Any

from privopt.linear_model.defaults import shape, worst_at_zero
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem
from privopt.recipe import Recipe
from privopt.recipes import rrpsgd


def plan(problem: Problem) -> Planned:
    """The most rounds, clip bound and step, unless they are given."""
    settings, kind = problem.settings, shape(problem.loss)
    rounds = problem.rounds("rrpsgd")
    clip_bound = settings.clip_bound or kind.largest * problem.row_norm
    smoothness = problem.loss.curvature * problem.row_norm**2
    dimension = problem.loss.outputs * problem.width

    def rate(noise_multiplier: float) -> float:
        spread = clip_bound * math.sqrt(dimension) * noise_multiplier / problem.batch
        if problem.batch < problem.size:
            spread = math.hypot(spread, 2 * clip_bound / math.sqrt(problem.batch))
        reach = math.sqrt(2 * worst_at_zero(problem.loss) / smoothness)
        return settings.learning_rate or min(1 / smoothness, reach / max(spread * math.sqrt(rounds), 1e-300))

    def recipe(noise_multiplier: float) -> Recipe:
        return rrpsgd(
            max_rounds=rounds,
            noise_multiplier=noise_multiplier,
            clip_bound=clip_bound,
            learning_rate=rate(noise_multiplier),
            sampling=problem.sampler,
            regularizer=problem.regularizer,
            **settings.options,
        )

    def shown(noise_multiplier: float) -> dict[str, Any]:
        return {
            "most rounds": rounds,
            "batch size": problem.batch_phrase,
            "clip bound": clip_bound,
            "learning rate": rate(noise_multiplier),
            **settings.options,
        }

    return Planned(recipe, shown)
