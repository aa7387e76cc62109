"""RRPSGD: private stochastic gradient descent that stops after a random number of rounds.

Zhang, Zheng, Mou, Wang, Efficient Private ERM for Smooth Objectives, Algorithm 2; made for losses that are not convex.
Symbols: R -> the round it stops after, n² -> max_rounds, L -> clip_bound, β -> smoothness, η -> learning_rate
"""

import math
from typing import Any

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import NOT_NEGATIVE, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import random_round
from privopt.postprocess.updates import Schedule, sgd
from privopt.recipe import Recipe, always


def rrpsgd(
    *,
    max_rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    smoothness: float = 0.0,
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η g̃ for R rounds, P(R = k + 1) ∝ 2ηₖ − βηₖ² on 1 … `max_rounds`: uniform, if the step is constant.

    **Guarantee** As `dp_sgd`, for the R rounds that are run: R is drawn before any data are read and depends on none of them, so
    for each R the run is private, and so is the pair (R, model). `Recipe.stop` draws R before noise is calibrated, for exactly R
    rounds: noise that is planned for `max_rounds` and paid for R would leave part of the budget unspent.

    >>> recipe = rrpsgd(max_rounds=1000, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1)
    >>> from privopt.measure.randomness import generator
    >>> rounds = recipe.stop(generator(0))  # a seed: for this page
    >>> rounds, recipe.stopped(rounds).planned_event()
    (389, SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=389))
    """
    measurement = Measurement(sampling, [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))  # lines 3 and 4
    release = random_round()
    if callable(learning_rate):
        steps = [learning_rate(round_) for round_ in range(max_rounds)]
        weights = tuple(2 * step - smoothness * step**2 for step in steps)
        if not all(weight > 0 for weight in weights):
            raise CompositionError(
                f"every step has to be above 0 and below 2/smoothness = {2 / smoothness:.6g}, or no R is left."
            )
        release = random_round(weights)
    return Recipe(max_rounds, always(measurement), sgd(learning_rate), release, regularizer)  # lines 1, 2 and 5


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """The paper's step η = min{1/β, D_F/(σ√T)}, from public numbers.

    T is the most rounds. D_F² = 2(F(w₀) − F*)/β is bounded by the loss at 0, where training starts; σ² = 4C²/b + d(zC/b)² bounds
    the variance of a noisy gradient: the first term is that of a batch, and absent when every row takes part.
    """
    rounds, clip_bound = default_rounds(problem), problem.chosen.bound or problem.loss.largest * problem.row_norm
    spread = clip_bound * math.sqrt(problem.dimension) * noise_multiplier / problem.batch
    if problem.batch < problem.size:
        spread = math.hypot(spread, 2 * clip_bound / math.sqrt(problem.batch))
    reach = math.sqrt(2 * problem.loss.at_zero / problem.smoothness)
    return {
        "max_rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "clip_bound": clip_bound,
        "learning_rate": min(1 / problem.smoothness, reach / max(spread * math.sqrt(rounds), 1e-300)),
    }


def remarks(problem: Problem, arguments: Arguments) -> dict[str, Any]:
    """How many rounds there could have been."""
    return {"most rounds": arguments["max_rounds"]}


METHOD = Method(
    "rrpsgd",
    rrpsgd,
    defaults,
    paper="Zhang, Zheng, Mou, Wang: Efficient Private ERM for Smooth Objectives",
    summary="private gradient descent that stops after a random number of rounds",
    options={"smoothness": NOT_NEGATIVE},
    remarks=remarks,
    refuses={"release": "rrpsgd has a release rule of its own: leave release out."},
)
