"""DP-SRM: private stochastic recursive momentum.

Wang, Jayaraman, Evans, Gu, Efficient Privacy-Preserving Stochastic Nonconvex Optimization (UAI 2023), Algorithm 1.
Symbols: C₁ -> clip_bound, C₂ -> change_bound, γ -> refresh, η -> learning_rate, ζ/(n₀L) -> longest_step, b₀ -> anchor_sampling
"""

import math

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient, gradient_difference
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import CEILING, POSITIVE, SHARE, SLOT, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds, default_steps
from privopt.postprocess.estimates import recursive_momentum
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, sgd
from privopt.recipe import Recipe, first


def dp_srm(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    change_bound: float,
    refresh: float,
    learning_rate: float | Schedule,
    longest_step: float = math.inf,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    anchor_sampling: Sampler | None = None,
    anchor_noise: float = 1.0,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − min{η, s/‖v‖} v, where v ← (1 − γ)v + γ·g̃ + (1 − γ)·(g̃ − g̃′) is carried from round to round.

    g and g′ are gradients of the same examples at this iterate and at the one before, which are close: their difference is
    clipped to C₂ ≪ C₁, and what is clipped to C₁ counts γ ≪ 1. The first round, an anchor, asks for g alone; it may sample
    otherwise, and its noise multiplier is `anchor_noise` × z. Where gradients are L-Lipschitz, steps of at most s = C₂/L cut no
    difference.

    **Guarantee** Query: Σᵢ γ·clip(gᵢ, C₁) + (1 − γ)·clip(gᵢ − g′ᵢ, C₂) in all rounds but the first, so one example moves it by at
    most γC₁ + (1 − γ)C₂ (eq. 6.1; section 7 prints C₁ and C₂ the other way round); Σᵢ clip(gᵢ, C₁) in the first. The noise is z
    times these bounds. Event: sampling(Gaussian(z)) per round. v is computed from answers.

    >>> recipe = dp_srm(rounds=3, noise_multiplier=2.0, clip_bound=1.0, change_bound=0.01, refresh=0.01, learning_rate=0.1)
    >>> round(recipe.measurement(0).bound, 4), round(recipe.measurement(1).bound, 4)
    (1.0, 0.0199)
    """
    if not 0 < refresh <= 1:
        raise CompositionError(f"refresh is {refresh}, but the weight of a new gradient lies in (0, 1].")
    noise = gaussian(noise_multiplier)
    whole = gradient() @ l2(clip_bound)
    moved = gradient_difference() @ l2(change_bound)
    anchor = Measurement(anchor_sampling or sampling, [whole], gaussian(anchor_noise * noise_multiplier))  # lines 1–3
    change = Measurement(sampling, [refresh * whole, (1 - refresh) * moved], noise)  # lines 6–8
    update = sgd(learning_rate, longest_step)  # line 5
    estimate = recursive_momentum(carry=1 - refresh)
    return Recipe(rounds, first(anchor, then=change), update, release, regularizer, estimate=estimate)


REFRESH, CHANGE = 0.2, 0.1  # γ, and C₂ in units of C₁


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """The rule for plain descent, with the noise that v has over many rounds.

    The noise of one answer, s = z(γC₁ + (1 − γ)C₂)/b, stays in v for 1/γ rounds and moves the iterate by ηs/γ in all: as far as
    plain descent is moved by the noise multiplier (1 + (1 − γ)C₂/(γC₁))z. A small γ makes v smooth, and a small C₂ keeps this
    factor near 1; but no step may be longer than C₂/(LR²), for a loss of curvature L and rows of length R, or changes would be
    cut. C₂ = C₁/10 leaves steps long enough to cross the space in a few hundred rounds, and γ = 1/5 makes the factor 1.4. A
    learning rate that was chosen is taken as it is, and steps have no limit unless `longest_step` is chosen, too.
    """
    options, rounds = problem.chosen.options, default_rounds(problem, descent=True)
    clip_bound = default_steps("descent", problem, noise_multiplier, rounds)["clip_bound"]
    refresh = options.get("refresh", REFRESH)
    change_bound = options.get("change_bound", CHANGE * clip_bound)
    lasting = refresh + (1 - refresh) * change_bound / clip_bound
    plain = default_steps("descent", problem.choosing(clip_bound=clip_bound), lasting / refresh * noise_multiplier, rounds)
    limit = {} if problem.chosen.learning_rate is not None else {"longest_step": change_bound / problem.smoothness}
    return {
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "clip_bound": clip_bound,
        "change_bound": change_bound,
        "refresh": refresh,
        "learning_rate": plain["learning_rate"],
        **limit,
    }


METHOD = Method(
    "dp-srm",
    dp_srm,
    defaults,
    paper="Wang, Jayaraman, Evans, Gu: Efficient Privacy-Preserving Stochastic Nonconvex Optimization",
    summary="a running estimate of the gradient, mostly from how it changes: little noise for short steps",
    options={
        "change_bound": POSITIVE,
        "refresh": SHARE,
        "longest_step": CEILING,
        "anchor_sampling": SLOT,
        "anchor_noise": POSITIVE,
        "release": SLOT,
    },
)
