"""RRPSGD: private stochastic gradient descent that stops after a random number of rounds.

Zhang, Zheng, Mou, Wang, Efficient Private ERM for Smooth Objectives, Algorithm 2; made for losses that are not convex.
Symbols: R -> the round it stops after, n² -> max_rounds, L -> clip_bound, β -> smoothness, η -> learning_rate
"""

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import random_round
from privopt.postprocess.schedules import Schedule
from privopt.postprocess.updates import sgd
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
