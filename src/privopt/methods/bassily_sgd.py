"""Bassily SGD: private stochastic gradient descent with the step sizes of the convex theory, inside a ball.

Bassily, Smith, Thakurta, Private Empirical Risk Minimization: Efficient Algorithms and Tight Error Bounds, Algorithm 1 (and its
strongly convex variant), on mini-batches as Zhang, Zheng, Mou, Wang compare with it.
Symbols: m -> batch_size, n -> size, p -> dimension, ‖C‖ -> 2 × radius, L -> clip_bound, μ -> the ridge's strength
"""

import math
from typing import Any

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import full_batch, poisson
from privopt.methods.method import POSITIVE, SLOT, Method
from privopt.methods.output_perturbation import radius
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds
from privopt.postprocess.regularizers import Regularizer, ridge, strong_convexity
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import inverse, inverse_sqrt, projected, sgd
from privopt.recipe import Recipe, always

BATCH = 50  # as in Zhang et al.


def bassily_sgd(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    radius: float,
    size: int,
    dimension: int,
    batch_size: int = BATCH,
    release: ReleaseRule = last(),  # noqa: B008  # frozen
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← Π(θ − ηₜ g̃), Π onto ‖θ − θ₀‖ ≤ D; ηₜ = 2D/(G√t) with G² = C² + d(zC/m)², or 1/(μt) with a ridge on every parameter.

    2D is the diameter of the ball, G the root mean square of a noisy gradient's length, at most. The paper sets the noise by
    strong composition; here it is what the accountant asks for, which is several times less.

    **Guarantee** As `dp_sgd` on Poisson batches of m of n: `rounds` × PoissonSampled(m/n, Gaussian(z)). Steps and projections see
    only g̃.

    >>> bassily_sgd(rounds=900, noise_multiplier=2.0, clip_bound=1.0, radius=10.0, size=5000, dimension=20).planned_event().count
    900
    """
    sampling = poisson(batch_size / size) if batch_size < size else full_batch()
    convexity = strong_convexity(regularizer)
    longest = clip_bound * math.hypot(1.0, math.sqrt(dimension) * noise_multiplier / min(batch_size, size))
    steps = inverse(1 / convexity) if convexity else inverse_sqrt(2 * radius / longest)
    measurement = Measurement(sampling, [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    return Recipe(rounds, always(measurement), projected(sgd(steps), radius), release, regularizer)


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Batches of 50, nothing clipped, and a ball that holds useful parameters; a ridge is on the intercept, too."""
    small = problem.choosing(batch_size=min(problem.chosen.batch_size or BATCH, problem.size))
    return {
        "rounds": default_rounds(small),
        "clip_bound": problem.chosen.bound or problem.loss.largest * problem.row_norm,
        "radius": radius(problem),
        "size": problem.size,
        "dimension": problem.dimension,
        "batch_size": small.chosen.batch_size,
        "regularizer": ridge(problem.ridge) if problem.ridge else None,
    }


def remarks(problem: Problem, arguments: Arguments) -> dict[str, Any]:
    """What the ridge is on."""
    return {"ridge": "on the intercept, too"} if problem.ridge else {}


METHOD = Method(
    "bassily-sgd",
    bassily_sgd,
    defaults,
    paper="Bassily, Smith, Thakurta: Private Empirical Risk Minimization",
    summary="small batches, decreasing steps, inside a ball: the baseline of convex theory",
    options={"radius": POSITIVE, "release": SLOT},
    needs="a convex loss",
    models=("linear",),
    convex=True,
    remarks=remarks,
    refuses={
        "learning_rate": "bassily-sgd has steps of its own, which decrease: leave learning_rate out; options={'radius': …} "
        "scales them."
    },
)
