"""DP-Adam: private gradients through Adam, whose second moment may have a ceiling.

Zhou, Chen, Hong, Wu, Banerjee, Private Stochastic Non-Convex Optimization, Algorithm 1 with φ = (1 − β₁) Σ β₁^(t−j) g and
ψ as in DP-RMSProp, without bias correction; Li, Zaheer, Reddi, Smith (AdaDPS), Algorithm 2, with it and without a ceiling.
Symbols: λ -> ceiling, ν -> stability, β₁ -> first_decay, β₂ -> second_decay, η -> learning_rate
"""

import math

from privopt.measure.clips import Clip, as_clip
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import CEILING, DECAY, FLAG, NOT_NEGATIVE, SLOT, Method
from privopt.methods.rules import adaptive_defaults
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, adam
from privopt.recipe import Recipe, always


def dp_adam(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | Clip,
    learning_rate: float | Schedule,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    first_decay: float = 0.9,
    second_decay: float = 0.999,
    stability: float = 1e-8,
    ceiling: float = math.inf,
    bias_correction: bool = True,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η m/(√min(v, λ) + ν) with m and v running means of g̃ and g̃².

    **Guarantee** As `dp_sgd`: the same measurement, and m and v are computed from its answers.
    """
    measurement = Measurement(sampling, [gradient() @ as_clip(clip_bound)], gaussian(noise_multiplier))
    update = adam(learning_rate, first_decay, second_decay, stability, ceiling, bias_correction)
    return Recipe(rounds, always(measurement), update, release, regularizer)


METHOD = Method(
    "dp-adam",
    dp_adam,
    adaptive_defaults,
    paper="Zhou, Chen, Hong, Wu, Banerjee: Private Stochastic Non-Convex Optimization",
    summary="Adam on private gradients: the default, self-scaling",
    options={
        "first_decay": DECAY,
        "second_decay": DECAY,
        "stability": NOT_NEGATIVE,
        "ceiling": CEILING,
        "bias_correction": FLAG,
        "release": SLOT,
    },
    tables=True,
)
