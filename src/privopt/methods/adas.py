"""AdaS: AdaDPS's preconditioning without privacy, for comparison.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), appendix C.2. Symbols as `adadps`.
"""

from typing import Any

from privopt.errors import CompositionError
from privopt.measure.queries import preconditioned_gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.measure.without_mechanism import in_the_clear
from privopt.methods.adadps import OPTIONS, Rule, known_scale
from privopt.methods.adadps import defaults as adadps_defaults
from privopt.methods.method import FLAG, Method, no_guarantee
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import PublicGradient
from privopt.postprocess.updates import Schedule, descent
from privopt.recipe import Recipe, always


def adas(
    *,
    rounds: int,
    learning_rate: float | Schedule,
    without_privacy: bool = False,
    public: PublicGradient | None = None,
    scale: Any = None,
    rule: Rule = "rmsprop",
    decay: float = 0.9,
    first_decay: float = 0.9,
    weight: float = 0.9,
    stability: float = 1e-5,
    momentum_decay: float = 0.0,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − α 𝒜(ḡ, A, M), where ḡ is the mean gradient itself.

    **No guarantee** Gradients are neither clipped nor hidden. Event: `rounds` × NonPrivate, so ε is infinite.

    >>> import numpy as np
    >>> adas(rounds=3, learning_rate=0.1, scale=np.ones(2), without_privacy=True).planned_event()
    SelfComposedDpEvent(event=NonPrivateDpEvent(), count=3)
    """
    if without_privacy is not True:
        raise CompositionError(no_guarantee("adas"))
    side, own = known_scale(
        public, scale, rule=rule, decay=decay, first_decay=first_decay, weight=weight, stability=stability, method="adas"
    )
    update = descent(learning_rate, momentum_decay)
    asked = in_the_clear(sampling, preconditioned_gradient(own))
    return Recipe(rounds, always(asked), update, release, regularizer, side)


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of AdaDPS, but for what clips and hides."""
    found = adadps_defaults(problem, noise_multiplier)
    return {name: value for name, value in found.items() if name != "clip_bound"}


METHOD = Method(
    "adas",
    adas,
    defaults,
    paper="Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information",
    summary="NOT PRIVATE: AdaDPS without clipping and noise, for comparison",
    options={"without_privacy": FLAG, **OPTIONS},
    needs="public data, or a scale of the columns; the option without_privacy",
    guarantee="none",
    private=False,
    noisy=False,
    uses_public=True,
    uses_scale=True,
)
