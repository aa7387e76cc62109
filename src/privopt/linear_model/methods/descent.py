"""The plan of descent methods on private gradients: the rule of `privopt.linear_model.defaults`."""

from typing import Any

from privopt.errors import InputError
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Settings
from privopt.perexample.losses import Loss
from privopt.recipe import Recipe
from privopt.recipes import method as method_of


def check(settings: Settings, loss: Loss) -> None:
    """DP-GD has no batches."""
    if settings.method == "dp-gd" and settings.batch_size is not None:
        raise InputError("dp-gd uses every row in every round: leave batch_size out, or use dp-sgd.")


def plan(problem: Problem) -> Planned:
    """DP-Adam, DP-RMSProp, DP-SGD and DP-GD."""
    settings = problem.settings
    build = method_of(settings.method).recipe
    sampling = {"sampling": problem.sampler} if problem.batch < problem.size else {}
    rounds = problem.rounds(settings.method)

    def recipe(noise_multiplier: float) -> Recipe:
        chosen = problem.steps(settings.method, rounds, noise_multiplier)
        return build(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            clip_bound=chosen.clip_bound,
            learning_rate=chosen.learning_rate,
            regularizer=problem.regularizer,
            **sampling,
            **{**chosen.options, **settings.options},
        )

    def shown(noise_multiplier: float) -> dict[str, Any]:
        chosen = problem.steps(settings.method, rounds, noise_multiplier)
        return {
            "batch size": problem.batch_phrase,
            "clip bound": chosen.clip_bound,
            "learning rate": chosen.learning_rate,
            **settings.options,
        }

    return Planned(recipe, shown)
