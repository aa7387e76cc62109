"""DP-AdamBC: DP-Adam whose second moment has the known variance of the noise taken out.

Tang, Shpilevskiy, Lécuyer, DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias Correction) (AAAI 2024).
Symbols: σC/B -> noise_multiplier × clip_bound / expected_batch_size, γ′ -> floor × its square, β₁ -> first_decay,
β₂ -> second_decay, η -> learning_rate
"""

import math

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import DECAY, NOT_NEGATIVE, POSITIVE, SLOT, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, adaptive_defaults
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, adam
from privopt.recipe import Recipe, always


def dp_adam_bc(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    expected_batch_size: float,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    first_decay: float = 0.9,
    second_decay: float = 0.999,
    stability: float = 1e-8,
    floor: float = 0.3,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η m̂/(√max(v̂ − s², floor · s²) + ν), where s = zC/b is the standard deviation of the noise on g̃.

    E[g̃²] = g² + s², so v̂ − s² estimates what Adam without noise would divide by. The paper's floor is a number γ′; here it is in
    units of s². Without noise this is Adam. A wrong `expected_batch_size` (b: all examples, unless they are sampled) spoils the
    estimate, not the guarantee.

    **Guarantee** As `dp_sgd`: the same measurement; s is public, and m̂ and v̂ are computed from the answers.

    >>> dp_adam_bc(rounds=3, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, expected_batch_size=100).planned_event()
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    measurement = Measurement(sampling, [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    variance = (noise_multiplier * clip_bound / expected_batch_size) ** 2
    update = adam(learning_rate, first_decay, second_decay, stability, noise_variance=variance, floor=floor * variance)
    return Recipe(rounds, always(measurement), update, release, regularizer)


FLOOR = 0.3  # of the noise variance: three standard errors of a second moment of 200 answers


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of Adam. It divides by √floor times the noise where noise dominates, instead of by the noise: so is its rate."""
    found = adaptive_defaults(problem, noise_multiplier)
    floor = problem.chosen.options.get("floor", FLOOR)
    rate = math.sqrt(floor) * found["learning_rate"]
    return {**found, "expected_batch_size": problem.batch, "floor": floor, "learning_rate": rate}


METHOD = Method(
    "dp-adam-bc",
    dp_adam_bc,
    defaults,
    paper="Tang, Shpilevskiy, Lécuyer: DP-AdamBC: Your DP-Adam Is Actually DP-SGD",
    summary="DP-Adam that takes the variance of the noise out of what it divides by",
    options={
        "first_decay": DECAY,
        "second_decay": DECAY,
        "stability": NOT_NEGATIVE,
        "floor": POSITIVE,
        "release": SLOT,
    },
)
