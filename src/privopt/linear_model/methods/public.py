"""The plans of methods with side information: the rule of `privopt.linear_model.defaults`, for gradients that are divided by A.

Let R be the length of a typical row and R_A that of a typical row divided by A, which public rows tell (or a survey, for a
scale). T rounds of step α, with noise s on each coordinate, shake the score of a typical row by α√T s R: DP-GD's step is what
makes that κ, or the inverse of the smoothness L R² if that is less.

- AdaDPS clips and hides g/A, which is R_A/R times as long: so is its C, and so is s. Its smoothness L Σ x²/A is at most L R R_A.
  Both limits of the step are R/R_A times those of DP-GD.
- DP-R-Pub and DP-Adam-Pub clip and hide g, as DP-GD does, and divide the noise, too: it shakes the score by α√T s R_A. Again
  the limits are R/R_A times those of DP-GD.
- PDA-DPMD steps as DP-GD. A warm start goes on as DP-SGD, after RMSProp steps on public rows, each of a length that adds up, over
  all of them, to the useful reach of a typical row's score.

ε keeps a coordinate that the public rows do not show from being divided by almost 0: see `least_seen`.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

from privopt.linear_model.defaults import shape
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Side
from privopt.linear_model.side import BATCH
from privopt.measure.samplers import poisson
from privopt.postprocess.release import average
from privopt.recipe import Recipe
from privopt.recipes import method as method_of

HIDDEN = ("public", "scale", "release", "clean_sampling", "without_privacy")  # what the statement says elsewhere, or not at all
Chosen = dict[str, Any]


def plan(problem: Problem) -> Planned:
    """AdaDPS, DP-R-Pub, DP-Adam-Pub, PDA-DPMD, warm start, ideal and AdaS."""
    settings, side, build = problem.settings, problem.side, method_of(problem.settings.method).recipe
    assert side is not None
    rounds = problem.rounds("dp-gd")
    takes = signature(build).parameters

    def chosen(noise_multiplier: float) -> Chosen:
        options = {name: value for name, value in settings.options.items() if name != "scale"}
        own = _OWN[settings.method](problem, side, noise_multiplier, rounds) | options
        known = {"public": side.public, "scale": side.scale, "sampling": problem.sampler, "noise_multiplier": noise_multiplier}
        return {name: value for name, value in (known | own).items() if name in takes}

    def recipe(noise_multiplier: float) -> Recipe:
        return build(rounds=rounds, regularizer=problem.regularizer, **chosen(noise_multiplier))

    def shown(noise_multiplier: float) -> dict[str, Any]:
        found = chosen(noise_multiplier)
        names = [name for name in found if name not in (*HIDDEN, "sampling", "noise_multiplier")]
        quiet = {} if "noise_multiplier" in takes else {"noise multiplier": "none"}
        scale = settings.options.get("scale")
        divided = {} if scale is None else {"scale": scale if isinstance(scale, str) else "given, a number for each column"}
        own = {name.replace("_", " "): found[name] for name in names}
        return {"batch size": problem.batch_phrase, **quiet, **own, **divided}

    return Planned(recipe, shown)


def _like(method: str, problem: Problem, noise_multiplier: float, rounds: int, longer: float = 1.0) -> Chosen:
    """The clip bound and step of a method that divides by nothing; a clip bound that is given is of vectors `longer` times g."""
    given = problem.settings.clip_bound
    clip_bound = None if given is None else given / longer
    steps = problem.steps(method, rounds, noise_multiplier, clip_bound=clip_bound, learning_rate=None)
    return {"clip_bound": steps.clip_bound, "learning_rate": steps.learning_rate, **steps.options}


def _adadps(problem: Problem, side: Side, noise_multiplier: float, rounds: int) -> Chosen:
    longer = side.scaled_norm / problem.row_norm
    like = _like("dp-sgd", problem, noise_multiplier, rounds, longer)
    return {
        **like,
        "clip_bound": like["clip_bound"] * longer,
        "learning_rate": problem.settings.learning_rate or like["learning_rate"] / longer,
        **({"stability": side.stability} if side.scale is None else {}),
        "clean_sampling": poisson(min(1.0, BATCH / problem.size)),
    }


def _divided(problem: Problem, side: Side, noise_multiplier: float, rounds: int) -> Chosen:
    like = _like("dp-gd", problem, noise_multiplier, rounds)
    return {
        "clip_bound": like["clip_bound"],
        "learning_rate": problem.settings.learning_rate or like["learning_rate"] * problem.row_norm / side.scaled_norm,
        "release": average("last half"),
        "stability": side.stability,
    }


def _mixed(problem: Problem, side: Side, noise_multiplier: float, rounds: int) -> Chosen:
    like = _like("dp-gd", problem, noise_multiplier, rounds)
    return like | {"learning_rate": problem.settings.learning_rate or like["learning_rate"]}


def _warm(problem: Problem, side: Side, noise_multiplier: float, rounds: int) -> Chosen:
    assert side.public is not None
    like = _like("dp-sgd", problem, noise_multiplier, rounds)
    steps = max(1, problem.settings.options.get("public_epochs", 10) * side.public.epoch)
    return {
        **like,
        "learning_rate": problem.settings.learning_rate or like["learning_rate"],
        "public_learning_rate": shape(problem.loss).reach / (problem.row_norm * steps),
    }


_OWN: dict[str, Callable[[Problem, Side, float, int], Chosen]] = {
    "adadps": _adadps,
    "ideal": _adadps,
    "adas": _adadps,
    "dp-r-pub": _divided,
    "dp-adam-pub": _divided,
    "pda-dpmd": _mixed,
    "warm-start": _warm,
}
