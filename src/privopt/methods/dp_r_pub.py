"""DP-R-Pub: private gradients, then divided by the root mean square of public ones: AdaDPS in the other order.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), section 6.1.1.
Symbols: E[ĝ²] -> a running mean with `decay`, ε -> stability; others as `adadps`
"""

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import DECAY, NOT_NEGATIVE, SLOT, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds, default_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, average, last
from privopt.postprocess.side_information import PublicGradient, public_gradient
from privopt.postprocess.updates import Schedule, public_rmsprop
from privopt.recipe import Recipe, always


def dp_r_pub(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    public: PublicGradient,
    decay: float = 0.9,
    stability: float = 1e-5,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − α g̃/(√E[ĝ²] + ε), where ĝ is the mean gradient of a batch of public data.

    **Guarantee** As `dp_sgd`: the measurement is the same, and what comes after it sees g̃ and public data only.
    """
    measurement = Measurement(sampling, [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    update = public_rmsprop(learning_rate, decay, stability)
    return Recipe(rounds, always(measurement), update, release, regularizer, public_gradient(public))


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """The rule for plain descent, for answers that are divided by A after the noise.

    They are clipped and hidden as those of DP-GD; dividing makes the noise shake the score of a typical row by α√T s R_A, R_A the
    length of a typical row divided by A. So the limits of the step are R/R_A times those of DP-GD.
    """
    assert problem.side is not None
    rounds = default_rounds(problem, descent=True)
    plain = default_steps("descent", problem.choosing(learning_rate=None), noise_multiplier, rounds)
    return {
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "clip_bound": plain["clip_bound"],
        "learning_rate": plain["learning_rate"] * problem.row_norm / problem.side.scaled_norm,
        "release": average("last half"),
        "stability": problem.side.stability,
        "public": problem.side.public,
    }


METHOD = Method(
    "dp-r-pub",
    dp_r_pub,
    defaults,
    paper="Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information",
    summary="private gradients, then divided by the size of public ones",
    options={"decay": DECAY, "stability": NOT_NEGATIVE, "release": SLOT},
    needs="public data",
    uses_public=True,
)
