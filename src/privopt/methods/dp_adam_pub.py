"""DP-Adam-Pub: Adam on private gradients, with public ones mixed in and with the second moment of public ones.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), appendix C.1.
Symbols: β₁ -> weight, β₂ -> first_decay, β₃ -> second_decay, ε -> stability; others as `adadps`
"""

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.dp_r_pub import defaults
from privopt.methods.method import DECAY, NOT_NEGATIVE, SLOT, WEIGHT, Method
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import PublicGradient, public_gradient
from privopt.postprocess.updates import Schedule, public_adam
from privopt.recipe import Recipe, always


def dp_adam_pub(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    public: PublicGradient,
    weight: float = 0.9,
    first_decay: float = 0.9,
    second_decay: float = 0.999,
    stability: float = 1e-5,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """m ← β₂ m + (1 − β₂)(β₁ g̃ + (1 − β₁) ĝ); v ← β₃ v + (1 − β₃) ĝ²; θ ← θ − α m̂/(√v̂ + ε), bias-corrected.

    **Guarantee** As `dp_sgd`: the measurement is the same, and what comes after it sees g̃ and public data only.
    """
    measurement = Measurement(sampling, [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    update = public_adam(learning_rate, weight, first_decay, second_decay, stability)
    return Recipe(rounds, always(measurement), update, release, regularizer, public_gradient(public))


METHOD = Method(
    "dp-adam-pub",
    dp_adam_pub,
    defaults,
    paper="Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information",
    summary="Adam on private gradients with moments of public ones",
    options={"weight": WEIGHT, "first_decay": DECAY, "second_decay": DECAY, "stability": NOT_NEGATIVE, "release": SLOT},
    needs="public data",
    uses_public=True,
)
