"""The plan of DP-AGD, whose steps are chosen by comparing losses.

The clip bound is that of the rule in `privopt.linear_model.defaults`. Losses are clipped at four times the largest one before
training: lower, and a step that is far too long for some rows would look good for all of them. The longest step moves the score
of a typical row across all useful scores. Fewer rounds than for descent are enough, since each goes as far as it can.
"""

from typing import Any

from privopt.errors import InputError
from privopt.linear_model.defaults import default_steps, shape, worst_at_zero
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Settings
from privopt.perexample.losses import Loss
from privopt.recipe import Recipe
from privopt.recipes.dp_agd import dp_agd

ROUNDS = 60
REACH = 4.0  # of the longest step, in useful scores of a typical row
WORSE = 4.0  # than the largest loss before training may a loss become and still be told apart


def plan(problem: Problem) -> Planned:
    """DP-AGD."""
    settings = problem.settings
    rounds = settings.rounds or ROUNDS

    def arguments(noise_multiplier: float) -> dict[str, Any]:
        steps = default_steps(
            "dp-gd",
            problem.loss,
            size=problem.size,
            batch=problem.size,
            width=problem.width,
            row_norm=problem.row_norm,
            rounds=1,
            noise_multiplier=noise_multiplier,
            clip_bound=settings.clip_bound,
        )
        return {
            "clip_bound": steps.clip_bound,
            "loss_bound": WORSE * worst_at_zero(problem.loss),
            "longest_step": REACH * shape(problem.loss).reach / problem.row_norm,
            **settings.options,
        }

    def recipe(noise_multiplier: float) -> Recipe:
        return dp_agd(
            rounds=rounds, noise_multiplier=noise_multiplier, regularizer=problem.regularizer, **arguments(noise_multiplier)
        )

    def shown(noise_multiplier: float) -> dict[str, Any]:
        named = {name.replace("_", " "): value for name, value in arguments(noise_multiplier).items() if name != "release"}
        return {"batch size": problem.batch_phrase, **named}

    return Planned(recipe, shown)


def check(settings: Settings, loss: Loss) -> None:
    """It chooses its steps itself, by the losses of all rows."""
    if settings.learning_rate is not None:
        raise InputError("dp-agd chooses its step sizes itself: leave learning_rate out, or say options={'longest_step': …}.")
    if settings.batch_size is not None:
        raise InputError("dp-agd uses every row in every round: leave batch_size out, or use dp-srm.")
