"""DP²-RMSProp: gradients preconditioned before they are clipped, by averages of earlier private answers.

Li, Zaheer, Liu, Reddi, McMahan, Smith, Differentially Private Adaptive Optimization with Delayed Preconditioners (ICLR 2023),
Algorithm 1, with phases of one length.
Symbols: s₁ = s₂ -> phase, C₁ -> clip_bound, C₂ -> preconditioned_clip_bound, α -> learning_rate and
preconditioned_learning_rate, β -> decay, ε -> stability, D -> the scale of `delayed_preconditioner`
"""

import math

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import preconditioned_gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import COUNT, DECAY, NOT_NEGATIVE, POSITIVE, RATE, SLOT, Method, optional
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, adaptive_defaults, default_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import delayed_preconditioner
from privopt.postprocess.updates import Schedule, as_schedule, sgd
from privopt.recipe import Recipe


def dp2_rmsprop(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    phase: int = 20,
    preconditioned_clip_bound: float | None = None,
    preconditioned_learning_rate: float | Schedule | None = None,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    decay: float = 0.9,
    stability: float = 1e-8,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η g̃ in odd phases of so many rounds; θ ← θ − η′ g̃′ in even ones, of gradients divided by √v + ν before the clip.

    At the end of an odd phase v ← β v + (1 − β) ḡ², with ḡ the mean of the phase's answers, whose noise is √phase times smaller
    than one answer's. Bound C′ and rate η′ of even phases are those of odd ones unless given. A regulariser is added to either
    answer as it is, as the authors' code does. The paper's phases may differ in length, and it lets v start from 0 as here.

    **Guarantee** As `dp_sgd`: a sum of vectors clipped to norm C (or C′) under noise that is relative to that bound; what they
    are divided by comes from earlier answers and is the same for all examples. Event: `rounds` × sampling(Gaussian(z)).

    >>> dp2_rmsprop(rounds=9, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, phase=3).planned_event()
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=9)
    """
    side = delayed_preconditioner(phase, decay, stability)
    bounds = clip_bound, clip_bound if preconditioned_clip_bound is None else preconditioned_clip_bound
    rates = learning_rate, learning_rate if preconditioned_learning_rate is None else preconditioned_learning_rate
    plain, scaled = (Measurement(sampling, [preconditioned_gradient() @ l2(c)], gaussian(noise_multiplier)) for c in bounds)
    return Recipe(
        rounds,
        lambda round_: scaled if side.ready(round_) else plain,
        sgd(lambda round_: as_schedule(rates[side.ready(round_)])(round_)),
        release,
        regularizer,
        side,
    )


CYCLES = 10  # of two phases
TYPICAL = 3.0
RESOLUTION = 0.01


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of RMSProp, for what gradients are divided by.

    The mean of a phase's answers has noise s/√phase on each coordinate, s that of one answer. Less is not told from noise, so ν
    is that; and not less than a hundredth of a typical coordinate C/√f of a clipped gradient, for steps along flat directions
    would not end. A typical coordinate is then divided by a few ν: C′ = C/(TYPICAL · ν). Noise may displace a coordinate by as
    much as under RMSProp, in half of the rounds; and a coordinate whose gradient is as large as what it is divided by moves by no
    more than RMSProp's rate.
    """
    found = adaptive_defaults(problem, noise_multiplier)
    phase = problem.chosen.options.get("phase", max(1, found["rounds"] // (2 * CYCLES)))
    noise = noise_multiplier * found["clip_bound"] / problem.batch
    stability = max(noise / math.sqrt(phase), RESOLUTION * found["clip_bound"] / math.sqrt(problem.width))
    clip = found["clip_bound"] / (TYPICAL * stability)
    return {
        **found,
        "learning_rate": default_steps("descent", problem, noise_multiplier, found["rounds"])["learning_rate"],
        "phase": phase,
        "preconditioned_clip_bound": clip,
        "preconditioned_learning_rate": math.sqrt(2) * found["learning_rate"] / max(noise_multiplier * clip / problem.batch, 1.0),
        "stability": stability,
    }


METHOD = Method(
    "dp2-rmsprop",
    dp2_rmsprop,
    defaults,
    paper="Li, Zaheer, Liu, Reddi, McMahan, Smith: Differentially Private Adaptive Optimization with Delayed Preconditioners",
    summary="gradients preconditioned before they are clipped, by averages of earlier private answers",
    options={
        "phase": COUNT,
        "preconditioned_clip_bound": optional(POSITIVE),
        "preconditioned_learning_rate": optional(RATE),
        "decay": DECAY,
        "stability": NOT_NEGATIVE,
        "release": SLOT,
    },
)
