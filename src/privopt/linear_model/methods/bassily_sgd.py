"""The plan of Bassily SGD: batches of 50, nothing clipped, and a ball that holds useful parameters."""

from typing import Any

from privopt.errors import InputError
from privopt.linear_model.defaults import default_rounds, shape
from privopt.linear_model.methods.output_perturbation import convex_penalty, radius
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Settings
from privopt.perexample.losses import Loss
from privopt.postprocess.regularizers import ridge
from privopt.recipe import Recipe
from privopt.recipes import bassily_sgd
from privopt.recipes.bassily_sgd import BATCH


def check(settings: Settings, loss: Loss) -> None:
    """Refuse what the theory does not speak of."""
    convex_penalty(settings)
    if settings.learning_rate is not None:
        raise InputError(
            "bassily-sgd has steps of its own, which decrease: leave learning_rate out; options={'radius': …} scales them."
        )


def plan(problem: Problem) -> Planned:
    """Rounds, clip bound, batch size and radius, unless they are given; the ridge is on the intercept, too."""
    settings = problem.settings
    batch = min(settings.batch_size or BATCH, problem.size)
    rounds = settings.rounds or default_rounds("bassily-sgd", size=problem.size, batch=batch, alone=problem.alone)
    clip_bound = settings.clip_bound or shape(problem.loss).largest * problem.row_norm
    options = {"radius": radius(problem), **settings.options}

    def recipe(noise_multiplier: float) -> Recipe:
        return bassily_sgd(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            clip_bound=clip_bound,
            size=problem.size,
            dimension=problem.loss.outputs * problem.width,
            batch_size=batch,
            regularizer=ridge(settings.alpha) if settings.alpha else None,
            **options,
        )

    def shown(noise_multiplier: float) -> dict[str, Any]:
        penalised = {"ridge": "on the intercept, too"} if settings.alpha and settings.fit_intercept else {}
        return {"batch size": batch, "clip bound": clip_bound, **options, **penalised}

    return Planned(recipe, shown)
