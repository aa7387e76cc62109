"""DP-FedAvg: users train the model on their own rows; the noisy mean of their changes moves it.

McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models (ICLR 2018); the baseline of Li, Zaheer,
Reddi, Smith (AdaDPS), Algorithm 3 with A = 1 and server momentum.
Symbols: s -> local_steps, η -> local_rate, C -> clip_bound, σ -> noise_multiplier, b -> cohort, server learning rate ->
learning_rate, server momentum -> momentum_decay

Clips, noise, options and default rules here are those of all federated methods.
"""

import math
from typing import Literal, get_args

from privopt.errors import CompositionError
from privopt.measure.clips import Clip, adaptive, as_clip
from privopt.measure.measurement import Measurement, Measuring, shared_noise
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import Term, client_update
from privopt.measure.samplers import Sampler, full_batch
from privopt.measure.units import each_user
from privopt.methods.method import COUNT, DECAY, POSITIVE, SLOT, Method, one_of
from privopt.methods.problem import Problem
from privopt.methods.rules import MOMENTUM, Arguments
from privopt.perexample.user_vectors import LocalSteps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, average, last
from privopt.postprocess.updates import Schedule, descent
from privopt.recipe import Recipe, always

Noise = Literal["server", "shares", "paper"]
Clipping = Literal["fixed", "adaptive"]


def dp_fedavg(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | Clip,
    learning_rate: float | Schedule,
    local_steps: int,
    local_rate: float,
    local_batch: int = 32,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    momentum_decay: float = 0.9,
    clipping: Clipping = "fixed",
    noise: Noise = "server",
    cohort: float | None = None,
    device_noise: float | None = None,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − α ṽ, where ṽ is the noisy mean of clipped changes θ − w of users (or its running sum, with momentum).

    **Guarantee** Query: the sum of users' changes, each clipped to l2 norm C, so one user, with all rows, moves it by at most
    C. It is divided by the expected number of users: weights by numbers of rows would let a user with many rows move it
    further. Noise N(0, (zC)² I), by the server or in shares by the devices. Event: `rounds` × sampling(Gaussian(z)); unit: one
    user.

    `noise="paper"` is what the listing of AdaDPS says: each of b devices adds N(0, (σC)² I) with σ = `device_noise`. It is
    priced as what it is, Gaussian(√b σ) for b = `cohort`, and not as Gaussian(σ), by which the paper comes to ε = 34. (Devices
    add √(b/k) σ C where k of them are drawn, so that the noise does not tell k.)

    >>> dp_fedavg(
    ...     rounds=3, noise_multiplier=2.0, clip_bound=1.0, learning_rate=1.0, local_steps=5, local_rate=0.1
    ... ).planned_event()
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    term = client_update(LocalSteps(local_steps, local_rate, local_batch)) @ federated_clip(clip_bound, clipping)
    asked = federated_round(sampling, term, noise_multiplier, noise, cohort, device_noise)
    return Recipe(rounds, always(asked), descent(learning_rate, momentum_decay), release, regularizer)


def federated_clip(clip_bound: float | Clip, clipping: str) -> Clip:
    """The clip of users' changes: to this bound, or to one that begins there and follows the median of their lengths."""
    if clipping not in get_args(Clipping):
        raise CompositionError(f"clipping is {clipping!r}; it is one of {', '.join(get_args(Clipping))}.")
    clip = as_clip(clip_bound)
    return adaptive(clip.bound) if clipping == "adaptive" else clip


def federated_round(
    sampling: Sampler, term: Term, noise_multiplier: float, noise: str, cohort: float | None, device_noise: float | None
) -> Measuring:
    """What a round asks of the users, with noise by the server or by their devices."""
    if noise not in get_args(Noise):
        raise CompositionError(f"noise is {noise!r}; it is one of {', '.join(get_args(Noise))}.")
    if (noise == "paper") != (device_noise is not None):
        raise CompositionError('noise="paper" goes with device_noise, the σ of each device; other noise is found by calibration.')
    if noise == "server":
        return Measurement(sampling, [term], gaussian(noise_multiplier), unit=each_user())
    if noise == "shares":
        return shared_noise(sampling, term, noise_multiplier)
    if device_noise is None or cohort is None:
        raise CompositionError('noise="paper" is that of each of b devices: say how many take part in a round, cohort=b.')
    return shared_noise(sampling, term, device_noise * math.sqrt(cohort))


ROUNDS = 40
LOCAL_STEPS, LOCAL_BATCH = 5, 32
AHEAD = 2.0


def federated_defaults(problem: Problem, noise_multiplier: float, longer: float) -> tuple[Arguments, float, float]:
    """The defaults but for the server's step; the noise on each coordinate of a mean change; the step that noise allows.

    Rounds are few, because each sends the model to every node; a user's steps cost next to nothing beside that. `longer` is how
    many times as long as a gradient the vectors are that local steps follow.

    - A user takes s = 5 steps. Their rate is the longest that is stable for rows of length R, η = 1/(L R²) with the smoothness L
      of the loss; with a network, R is the length of a typical gradient of its score.
    - A user's change is then at most s η times the gradient of a row. As for rows, the clip bound C is that of a typical row, and
      grows with √q towards the largest possible one, where q = b√T/(z f) is what the budget makes of b users in each of T rounds.
    - Cohorts are as large as possible, up to 1000 users: noise falls with their size.
    - The server's step is what lets noise displace the score of a typical row by κ, as for rows.
    """
    loss, row_norm, cohort = problem.loss, problem.row_norm, problem.batch
    chosen, options = problem.chosen, problem.chosen.options
    rounds = chosen.rounds or ROUNDS
    steps = options.get("local_steps", LOCAL_STEPS)
    rate = options.get("local_rate", 1 / (problem.smoothness * longer))
    quality = cohort * math.sqrt(rounds) / (max(noise_multiplier, 1e-12) * problem.width)
    growth = max(1.0, math.sqrt(quality / loss.outputs) / 3)
    bound = chosen.bound
    if bound is None:
        bound = steps * rate * row_norm * longer * min(loss.residual * growth, loss.largest)
    limited = 1 / math.sqrt(1 / quality**2 + problem.width / (cohort * rounds))
    shake = loss.reach * min(max(limited ** (1 / 3), 0.25), 4.0)
    device = options.get("device_noise")
    found = {
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "clip_bound": bound,
        "local_steps": steps,
        "local_rate": rate,
        "local_batch": LOCAL_BATCH,
        "release": average("last half"),
        **({} if device is None else {"cohort": cohort, "noise_multiplier": device * math.sqrt(cohort)}),
    }
    return found, noise_multiplier * bound / cohort, shake / (row_norm * math.sqrt(rounds))


def averaging_defaults(problem: Problem, noise_multiplier: float, longer: float = 1.0) -> Arguments:
    """For the mean of changes, with momentum.

    Noise of zC/b on each coordinate of the mean adds up to α/(1 − β) · √T zC/b with momentum β, which may displace a score by κ.
    α is at most a whole mean change, 1 − β in the long run, times `AHEAD`: users agree about some directions, in which the mean
    may be trusted further.
    """
    found, noise, allowed = federated_defaults(problem, noise_multiplier, longer)
    decay = problem.chosen.options.get("momentum_decay", MOMENTUM)
    rate = min(allowed / max(noise, 1e-300), AHEAD) * (1 - decay)
    return {**found, "learning_rate": rate, "momentum_decay": decay}


LOCAL_OPTIONS = {
    "local_steps": COUNT,
    "local_rate": POSITIVE,
    "local_batch": COUNT,
    "clipping": one_of(*get_args(Clipping)),
    "noise": one_of(*get_args(Noise)),
    "device_noise": POSITIVE,
    "release": SLOT,
}
METHOD = Method(
    "dp-fedavg",
    dp_fedavg,
    averaging_defaults,
    paper="McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models",
    summary="users train on their own rows; the noisy mean of their clipped changes moves the model, with momentum",
    options={**LOCAL_OPTIONS, "momentum_decay": DECAY},
    needs="users of a federation",
    models=("federated",),
)
