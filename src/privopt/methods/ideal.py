"""Ideal AdaDPS: preconditioned by clean private gradients, for comparison. How good AdaDPS could be with perfect knowledge.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), table 4. Symbols as `adadps`.
"""

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import preconditioned_gradient
from privopt.measure.samplers import Sampler, full_batch, poisson
from privopt.measure.without_mechanism import by_clean_scale
from privopt.methods.adadps import divided_defaults
from privopt.methods.method import DECAY, FLAG, NOT_NEGATIVE, SLOT, Method, no_guarantee
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, descent
from privopt.recipe import Recipe, always


def ideal(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    without_privacy: bool = False,
    decay: float = 0.9,
    stability: float = 1e-5,
    momentum_decay: float = 0.0,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    clean_sampling: Sampler | None = None,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """AdaDPS with RMSProp whose A is that of a clean batch of private examples (drawn by `clean_sampling`, else `sampling`).

    **No guarantee** A is computed from private gradients in the clear, and everything after depends on it. The noise is that of
    an AdaDPS run, but it hides nothing. Event: `rounds` × NonPrivate, so ε is infinite.

    >>> ideal(rounds=3, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, without_privacy=True).planned_event()
    SelfComposedDpEvent(event=NonPrivateDpEvent(), count=3)
    """
    if without_privacy is not True:
        raise CompositionError(no_guarantee("ideal"))
    measurement = Measurement(sampling, [preconditioned_gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    clean = by_clean_scale(measurement, clean_sampling or sampling, decay, stability)
    update = descent(learning_rate, momentum_decay)
    return Recipe(rounds, always(clean), update, release, regularizer)


CLEAN_BATCH = 64  # private examples whose clean gradients are divided by


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of AdaDPS, for clean batches as large as public ones."""
    clean = poisson(min(1.0, CLEAN_BATCH / problem.size))
    return {**divided_defaults(problem, noise_multiplier), "clean_sampling": clean}


METHOD = Method(
    "ideal",
    ideal,
    defaults,
    paper="Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information",
    summary="NOT PRIVATE: AdaDPS that divides by the size of clean private gradients, for comparison",
    options={
        "without_privacy": FLAG,
        "decay": DECAY,
        "stability": NOT_NEGATIVE,
        "momentum_decay": DECAY,
        "clean_sampling": SLOT,
        "release": SLOT,
    },
    needs="the option without_privacy",
    guarantee="none",
    private=False,
)
