"""AdaS: AdaDPS's preconditioning without privacy, for comparison.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), appendix C.2. Symbols as `adadps`.
"""

from typing import Any

from privopt.measure.queries import preconditioned_gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.measure.without_mechanism import in_the_clear
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.schedules import Schedule
from privopt.postprocess.side_information import PublicGradient
from privopt.postprocess.updates import descent
from privopt.recipe import Recipe, always
from privopt.recipes.adadps import Rule, known_scale
from privopt.recipes.ideal import agreed


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
    agreed("adas", without_privacy)
    side, own = known_scale(
        public, scale, rule=rule, decay=decay, first_decay=first_decay, weight=weight, stability=stability, method="adas"
    )
    update = descent(learning_rate, momentum_decay)
    asked = in_the_clear(sampling, preconditioned_gradient(own))
    return Recipe(rounds, always(asked), update, release, regularizer, side)
