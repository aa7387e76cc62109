"""Private SpiderBoost: an accurate gradient now and then, and in between only how it changed.

Arora, Bassily, González, Guzmán, Menart, Ullah, Faster Rates of Convergence to Stationary Points in Differentially Private
Optimization (ICML 2023), Algorithm 1. Symbols: L₀ -> clip_bound, L₁ -> smoothness, q -> period, η -> learning_rate,
b₁, σ₁ -> anchor_sampling, anchor_noise; b₂, σ₂ -> sampling, noise_multiplier
"""

from privopt.errors import CompositionError
from privopt.measure.clips import l2, l2_moved
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient, gradient_difference
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import COUNT, NOT_NEGATIVE, POSITIVE, SLOT, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds, default_steps
from privopt.postprocess.estimates import recursive_momentum
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, sgd
from privopt.recipe import Recipe, every


def spiderboost(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    smoothness: float,
    period: int,
    learning_rate: float | Schedule,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    anchor_sampling: Sampler = full_batch(),  # noqa: B008
    anchor_noise: float = 1.0,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − ηv, where v ← g̃ in every `period`-th round, an anchor, and v ← v + (g̃ − g̃′) in all others.

    g′ is the gradient of the same examples at the iterate before. Noise on a difference is proportional to how far the iterate
    moved, which is public; differences are clipped to what that bounds, min{L₁‖θ − θ′‖, 2L₀}, instead of being trusted.

    **Guarantee** Query: Σᵢ clip(gᵢ, L₀) at anchors, Σᵢ clip(gᵢ − g′ᵢ, min{L₁‖θ − θ′‖, 2L₀}) elsewhere; one example moves either
    by at most its clip bound, and the noise is z times that (`anchor_noise` × z at anchors). Event: sampling(Gaussian) per
    round. v is computed from answers.

    >>> recipe = spiderboost(rounds=20, noise_multiplier=2.0, clip_bound=1.0, smoothness=0.25, period=10, learning_rate=0.1)
    >>> [round_ for round_ in range(20) if recipe.measurement(round_).bound == 1.0]
    [0, 10]
    """
    if period < 1:
        raise CompositionError(f"period is {period}, but anchors are at least one round apart.")
    noise = gaussian(noise_multiplier)
    anchor = Measurement(anchor_sampling, [gradient() @ l2(clip_bound)], gaussian(anchor_noise * noise_multiplier))
    moved = l2_moved(smoothness, most=2 * clip_bound)
    change = Measurement(sampling, [gradient_difference() @ moved], noise)
    return Recipe(
        rounds,
        every(period, anchor, otherwise=change),
        sgd(learning_rate),
        release,
        regularizer,
        estimate=recursive_momentum(carry=lambda round_: float(round_ % period > 0)),
    )


PERIOD = 10  # rounds from one anchor to the next
ANCHOR_NOISE = 0.2  # of an anchor's mean, in noise multipliers of a change's mean


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """The rule for plain descent, with the noise of an anchor.

    Anchors have the noise of the clip bound, changes of LR² times the step. Dividing the budget so that the noise of v is least
    gives a change aC₁ a noise multiplier that is √(√2/a) times that of an anchor; steps change a gradient by a twentieth.
    """
    rounds = default_rounds(problem, descent=True)
    anchor_noise = problem.chosen.options.get("anchor_noise", ANCHOR_NOISE * problem.size / problem.batch)
    plain = default_steps("descent", problem, anchor_noise * noise_multiplier * problem.batch / problem.size, rounds)
    return {
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "clip_bound": plain["clip_bound"],
        "smoothness": problem.smoothness,
        "period": PERIOD,
        "anchor_noise": anchor_noise,
        "learning_rate": plain["learning_rate"],
    }


METHOD = Method(
    "spiderboost",
    spiderboost,
    defaults,
    paper="Arora, Bassily, González, Guzmán, Menart, Ullah: Faster Rates of Convergence to Stationary Points in Differentially "
    "Private Optimization",
    summary="an accurate gradient now and then, and in between how it changes, with noise by the distance moved",
    options={"smoothness": NOT_NEGATIVE, "period": COUNT, "anchor_sampling": SLOT, "anchor_noise": POSITIVE, "release": SLOT},
)
