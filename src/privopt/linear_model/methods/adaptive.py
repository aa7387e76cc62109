"""The plans of DP-AdamBC and DP²-RMSProp: the rule of `privopt.linear_model.defaults`, for what they divide by.

- DP-AdamBC divides by √floor times the noise where noise dominates, instead of by the noise: its rate is √floor times Adam's.
- DP²: the mean of a phase's answers has noise s/√phase on each coordinate, s that of one answer. Less is not told from noise,
  so ν is that; and not less than a hundredth of a typical coordinate C/√f of a clipped gradient, for steps along flat
  directions would not end. A typical coordinate is then divided by a few ν: C′ = C/(TYPICAL · ν). Noise may displace a
  coordinate by as much as under RMSProp, in half of the rounds; and a coordinate whose gradient is as large as what it is
  divided by moves by no more than RMSProp's rate.
"""

import math
from typing import Any

from privopt.linear_model.defaults import Steps
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem
from privopt.recipe import Recipe
from privopt.recipes import dp2_rmsprop, dp_adam_bc

FLOOR = 0.3  # of the noise variance: three standard errors of a second moment of 200 answers
CYCLES = 10  # of two phases
TYPICAL = 3.0
RESOLUTION = 0.01


def plan_adam_bc(problem: Problem) -> Planned:
    """DP-AdamBC."""
    floor = problem.settings.options.get("floor", FLOOR)

    def own(steps: Steps, noise_multiplier: float) -> dict[str, Any]:
        rate = problem.settings.learning_rate or math.sqrt(floor) * steps.learning_rate
        return {"expected_batch_size": problem.batch, "floor": floor, "learning_rate": rate, **steps.options}

    return _planned(problem, "dp-adam", dp_adam_bc, own)


def plan_dp2(problem: Problem) -> Planned:
    """DP²-RMSProp."""
    rounds = problem.rounds("dp-rmsprop")
    phase = problem.settings.options.get("phase", max(1, rounds // (2 * CYCLES)))

    def own(steps: Steps, noise_multiplier: float) -> dict[str, Any]:
        noise = noise_multiplier * steps.clip_bound / problem.batch
        stability = max(noise / math.sqrt(phase), RESOLUTION * steps.clip_bound / math.sqrt(problem.width))
        clip = steps.clip_bound / (TYPICAL * stability)
        rate = math.sqrt(2) * steps.learning_rate / max(noise_multiplier * clip / problem.batch, 1.0)
        return {
            "learning_rate": problem.steps("dp-gd", rounds, noise_multiplier).learning_rate,
            "phase": phase,
            "preconditioned_clip_bound": clip,
            "preconditioned_learning_rate": rate,
            "release": steps.options["release"],
            "stability": stability,
        }

    return _planned(problem, "dp-rmsprop", dp2_rmsprop, own)


def _planned(problem: Problem, like: str, build: Any, own: Any) -> Planned:
    """A plan with the clip bound, and what follows from it, that the method `like` has by default."""
    rounds = problem.rounds(like)

    def chosen(noise_multiplier: float) -> dict[str, Any]:
        steps = problem.steps(like, rounds, noise_multiplier)
        return {"clip_bound": steps.clip_bound, **own(steps, noise_multiplier), **problem.settings.options}

    def recipe(noise_multiplier: float) -> Recipe:
        return build(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            sampling=problem.sampler,
            regularizer=problem.regularizer,
            **chosen(noise_multiplier),
        )

    def shown(noise_multiplier: float) -> dict[str, Any]:
        settings = chosen(noise_multiplier)
        hidden = ("release", "expected_batch_size")
        return {
            "batch size": problem.batch_phrase,
            **{name.replace("_", " "): settings[name] for name in settings if name not in hidden},
        }

    return Planned(recipe, shown)
