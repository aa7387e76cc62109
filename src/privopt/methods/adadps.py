"""AdaDPS: precondition each gradient by side information, then clip and hide it.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), Algorithm 1.
Symbols: σ -> noise_multiplier, C -> clip_bound, α -> learning_rate, A -> scale, ε -> stability, β of A and of M -> decay and
first_decay, β of 𝒜 -> weight
"""

from typing import Any, Literal, get_args

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import preconditioned_gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import DECAY, NOT_NEGATIVE, SCALE, SLOT, WEIGHT, Method, one_of
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds, default_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import (
    PublicGradient,
    SideInformation,
    fixed_scale,
    public_moments,
    public_rms,
    public_sum,
)
from privopt.postprocess.updates import Schedule, descent
from privopt.recipe import Recipe, always

Rule = Literal["rmsprop", "adagrad", "adam"]


def adadps(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
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
    """θ ← θ − α g̃, where g̃ is the noisy mean of gradients that were divided by A and then clipped (or its running sum).

    A (and for Adam a momentum M, mixed in as β gᵢ + (1 − β) M) comes from gradients of public data, `public`, by a `rule`, or was
    fixed before training, `scale`. Nothing is divided by A after the noise.

    **Guarantee** Query: Σ clip(𝒜(gᵢ, A, M), C). A and M depend on public data, on iterates that are private already and on no
    example of the round, so each summand is a function of one example and has l2 norm at most C: one example moves the sum by at
    most C, whatever A is. Noise N(0, (zC)² I). Event: `rounds` × sampling(Gaussian(z)), that of DP-SGD.

    >>> import numpy as np
    >>> adadps(rounds=3, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, scale=np.array([1.0, 0.01])).planned_event()
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    side, own = known_scale(
        public, scale, rule=rule, decay=decay, first_decay=first_decay, weight=weight, stability=stability, method="adadps"
    )
    measurement = Measurement(sampling, [preconditioned_gradient(own) @ l2(clip_bound)], gaussian(noise_multiplier))
    update = descent(learning_rate, momentum_decay)
    return Recipe(rounds, always(measurement), update, release, regularizer, side)


def known_scale(
    public: PublicGradient | None,
    scale: Any,
    *,
    rule: str,
    decay: float,
    first_decay: float,
    weight: float,
    stability: float,
    method: str,
) -> tuple[SideInformation, float]:
    """Where A and M come from, and the weight of an example's own gradient beside M."""
    if (public is None) == (scale is None):
        both = "both are given" if public is not None else "neither is given"
        raise CompositionError(
            f"{method} divides gradients by what is publicly known of their size: public=… (public data, whose gradients are "
            f"used in the clear) or scale=… (a number > 0 for each coordinate); {both}."
        )
    if rule not in get_args(Rule):
        raise CompositionError(f"rule is {rule!r}; it is one of {', '.join(get_args(Rule))}.")
    if public is None:
        return fixed_scale(scale), 1.0
    if rule == "adam":
        return public_moments(public, first_decay, decay, stability), weight
    return (public_sum(public, stability) if rule == "adagrad" else public_rms(public, decay, stability)), 1.0


def divided_defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """The rule for descent with momentum, for gradients that are divided by A before they are clipped.

    Let R be the length of a typical row and R_A that of a typical row divided by A, which public rows tell (or a survey, for a
    scale). T rounds of step α, with noise s on each coordinate, shake the score of a typical row by α√T s R: DP-GD's step is what
    makes that κ, or the inverse of the smoothness L R² if that is less. g/A is R_A/R times as long: so is C, and so is s. The
    smoothness L Σ x²/A is at most L R R_A. Both limits of the step are R/R_A times those of DP-GD.

    ε keeps a coordinate that the public rows do not show from being divided by almost 0: see `least_seen`.
    """
    assert problem.side is not None
    side, rounds = problem.side, default_rounds(problem, descent=True)
    longer = side.scaled_norm / problem.row_norm
    steps = default_steps("momentum", problem.choosing(learning_rate=None), noise_multiplier, rounds, longer=longer)
    return {
        **steps,
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "clip_bound": steps["clip_bound"] * longer,
        "learning_rate": steps["learning_rate"] / longer,
        **({"stability": side.stability} if side.scale is None else {}),
    }


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """The rule for divided gradients, and what divides them."""
    assert problem.side is not None
    known = {"public": problem.side.public, "scale": problem.side.scale}
    return {**divided_defaults(problem, noise_multiplier), **known}


OPTIONS = {
    "scale": SCALE,
    "rule": one_of("rmsprop", "adagrad", "adam"),
    "decay": DECAY,
    "first_decay": DECAY,
    "weight": WEIGHT,
    "stability": NOT_NEGATIVE,
    "momentum_decay": DECAY,
    "release": SLOT,
}
METHOD = Method(
    "adadps",
    adadps,
    defaults,
    paper="Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information",
    summary="gradients divided by what public data, or common knowledge, say of their size, then clipped and hidden",
    options=OPTIONS,
    needs="public data, or a scale of the columns",
    uses_public=True,
    uses_scale=True,
)
