"""PDA-DPMD: mirror descent by a public loss, in its practical form.

Amid et al., Public Data-Assisted Mirror Descent for Private Model Training (ICML 2022), as compared in Li, Zaheer, Reddi, Smith,
Private Adaptive Optimization with Side Information (ICML 2022), table 2. Symbols: K -> horizon; others as `adadps`
"""

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import COUNT, SLOT, Method, optional
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds, default_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import PublicGradient, public_gradient
from privopt.postprocess.updates import Schedule, mirror_mix
from privopt.recipe import Recipe, always


def pda_dpmd(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    public: PublicGradient,
    horizon: int | None = None,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η (α_t g̃ + (1 − α_t) ĝ) with α_t = cos(πt/2K), where ĝ is a public gradient; K is all rounds unless told.

    **Guarantee** As `dp_sgd`: the measurement is the same, and what comes after it sees g̃ and public data only.
    """
    measurement = Measurement(sampling, [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    update = mirror_mix(learning_rate, horizon or rounds)
    return Recipe(rounds, always(measurement), update, release, regularizer, public_gradient(public))


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of plain descent."""
    assert problem.side is not None
    rounds = default_rounds(problem, descent=True)
    return {
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "public": problem.side.public,
        **default_steps("descent", problem, noise_multiplier, rounds),
    }


METHOD = Method(
    "pda-dpmd",
    pda_dpmd,
    defaults,
    paper="Amid et al.: Public Data-Assisted Mirror Descent for Private Model Training",
    summary="steps along a mixture of private and public gradients",
    options={"horizon": optional(COUNT), "release": SLOT},
    needs="public data",
    uses_public=True,
)
