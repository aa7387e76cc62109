"""DP-RMSProp: private gradients, scaled by the root of their running mean square under a ceiling.

Zhou, Chen, Hong, Wu, Banerjee, Private Stochastic Non-Convex Optimization, Algorithm 1 with φ = g and
ψ = (1 − β₂) Σ β₂^(t−j) g². Symbols: λ -> ceiling, ν -> stability, β₂ -> decay, η -> learning_rate
"""

import math

from privopt.measure.clips import Clip, as_clip
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import CEILING, DECAY, NOT_NEGATIVE, SLOT, Method
from privopt.methods.rules import adaptive_defaults
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, rmsprop
from privopt.recipe import Recipe, always


def dp_rmsprop(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | Clip,
    learning_rate: float | Schedule,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    decay: float = 0.99,
    stability: float = 1e-8,
    ceiling: float = math.inf,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η g̃/(√min(v, λ) + ν) with v the running mean of g̃².

    **Guarantee** As `dp_sgd`: the same measurement, and v is computed from its answers.
    """
    measurement = Measurement(sampling, [gradient() @ as_clip(clip_bound)], gaussian(noise_multiplier))
    update = rmsprop(learning_rate, decay, stability, ceiling)
    return Recipe(rounds, always(measurement), update, release, regularizer)


METHOD = Method(
    "dp-rmsprop",
    dp_rmsprop,
    adaptive_defaults,
    paper="Zhou, Chen, Hong, Wu, Banerjee: Private Stochastic Non-Convex Optimization",
    summary="private gradients scaled by their running root mean square",
    options={"decay": DECAY, "stability": NOT_NEGATIVE, "ceiling": CEILING, "release": SLOT},
)
