"""Default rules of federations: users instead of rows, changes of the model instead of gradients.

Nothing here depends on a value of the data. Rounds are few, because each sends the model to every node; a user's steps cost
next to nothing beside that.

- A user takes s = 5 steps. Their rate is the longest that is stable for rows of length R, η = 1/(L R²) with the smoothness L of
  the loss; with a network, R is the length of a typical gradient of its score.
- A user's change is then at most s η times the gradient of a row. As for rows, the clip bound C is that of a typical row, and
  grows with √q towards the largest possible one, where q = b√T/(z f) is what the budget makes of b users in each of T rounds.
- The server's step α is what lets noise displace the score of a typical row by κ, as for rows: noise of zC/b on each coordinate
  of the mean adds up to α/(1 − β) · √T zC/b with momentum β. It is at most a whole mean change, α = 1 − β in the long run, times
  `AHEAD`: users agree about some directions, in which the mean may be trusted further.
- Cohorts are as large as possible, up to 1000 users: noise falls with their size.
"""

import math

from privopt.methods.problem import Problem
from privopt.methods.rules import MOMENTUM, Arguments
from privopt.postprocess.release import average

ROUNDS = 40
LOCAL_STEPS, LOCAL_BATCH = 5, 32
AHEAD = 2.0


def averaging_defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """For the mean of changes, with momentum."""
    found = _local(problem, noise_multiplier, 1.0)
    noise, shake = found.pop("noise"), found.pop("shake")
    decay = problem.chosen.options.get("momentum_decay", MOMENTUM)
    rate = min(shake / max(noise, 1e-300), AHEAD) * (1 - decay)
    return {**found, "learning_rate": rate, "momentum_decay": decay}


def adaptive_server_defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """For a server that divides its steps by the size of changes, like Adam."""
    found = _local(problem, noise_multiplier, 1.0)
    noise, shake = found.pop("noise"), found.pop("shake")
    return {**found, "learning_rate": shake, "stability": max(noise, found["clip_bound"] / problem.row_norm * 1e-3)}


def divided_averaging_defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """For changes whose steps were divided by A: as in the rule of AdaDPS, they are `longer` times as long."""
    assert problem.side is not None
    side = problem.side
    longer = side.scaled_norm / problem.row_norm
    found = _local(problem, noise_multiplier, longer)
    noise, shake = found.pop("noise"), found.pop("shake")
    decay = problem.chosen.options.get("momentum_decay", MOMENTUM)
    known = {"public": side.public, "scale": side.scale, **({"stability": side.stability} if side.scale is None else {})}
    return {**found, **known, "learning_rate": min(shake / max(noise, 1e-300), AHEAD) * (1 - decay), "momentum_decay": decay}


def _local(problem: Problem, z: float, longer: float) -> Arguments:
    """The users' part of the defaults; and `noise` on each coordinate of a mean change, and the step `shake` that it allows."""
    loss, row_norm, cohort = problem.loss, problem.row_norm, problem.batch
    chosen, options = problem.chosen, problem.chosen.options
    rounds = chosen.rounds or ROUNDS
    steps = options.get("local_steps", LOCAL_STEPS)
    rate = options.get("local_rate", 1 / (problem.smoothness * longer))
    quality = cohort * math.sqrt(rounds) / (max(z, 1e-12) * problem.width)
    growth = max(1.0, math.sqrt(quality / loss.outputs) / 3)
    bound = chosen.bound
    if bound is None:
        bound = steps * rate * row_norm * longer * min(loss.residual * growth, loss.largest)
    limited = 1 / math.sqrt(1 / quality**2 + problem.width / (cohort * rounds))
    shake = loss.reach * min(max(limited ** (1 / 3), 0.25), 4.0)
    device = options.get("device_noise")
    return {
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "clip_bound": bound,
        "local_steps": steps,
        "local_rate": rate,
        "local_batch": LOCAL_BATCH,
        "release": average("last half"),
        **({} if device is None else {"cohort": cohort, "noise_multiplier": device * math.sqrt(cohort)}),
        "noise": z * bound / cohort,
        "shake": shake / (row_norm * math.sqrt(rounds)),
    }
