"""DP-AGD: private gradient descent that chooses its steps, and measures gradients better where they do not help.

Lee, Kifer, Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy Budget (KDD 2018),
Algorithm 2. Symbols: C_grad -> clip_bound, C_obj -> loss_bound, ρ_ng -> first_share, γ -> growth, max Φ -> longest_step,
|Φ| − 1 -> candidates
"""

import math

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.line_search import LineSearch
from privopt.measure.mechanisms import gaussian_pool, noisy_min
from privopt.methods.method import ALL_EXAMPLES, CEILING, COUNT, PART, POSITIVE, SHARE, SLOT, Method, optional
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import sgd
from privopt.recipe import Recipe, always


def dp_agd(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    loss_bound: float,
    longest_step: float = 2.0,
    candidates: int = 20,
    gradient_share: float = 0.5,
    first_share: float | None = None,
    growth: float = 0.1,
    release: ReleaseRule = last(),  # noqa: B008  # frozen
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − α g̃/‖g̃‖, where g̃ is a noisy gradient of all rows and α the noisy minimum of the losses along it, 0 among them.

    Where 0 is best, the iterate stays and g̃ is averaged with another measurement. Gradients share a pool of noise, of which the
    first takes `first_share` (1/rounds, unless given); each round chooses once. Of ρ = 1/(2z²), in the measure of
    zero-concentrated privacy, the pool has the part s = `gradient_share`, and all choices together have the rest.

    **Guarantee** Query of a gradient: Σᵢ clip(gᵢ, C); of a choice: Σᵢ clip(lossᵢ, [0, B]) at each candidate. Event: one
    Gaussian(z/√s) for all gradients, and `rounds` × an ε-DP choice with ε = √((1 − s)/rounds)/z. It is paid before it is known
    how the pool will be divided: see `privopt.measure.mechanisms.gaussian_pool`.

    >>> from privopt.privacy.events import describe
    >>> describe(dp_agd(rounds=50, noise_multiplier=4.0, clip_bound=1.0, loss_bound=1.0).planned_event())
    'Gaussian mechanism, noise multiplier 5.657; 50 × pure DP mechanism, ε = 0.025'
    """
    if not 0 < gradient_share < 1:
        raise CompositionError(
            f"gradient_share is {gradient_share}, but gradients and choices both need noise: it lies in (0, 1)."
        )
    pool = gaussian_pool(noise_multiplier / math.sqrt(gradient_share))
    choice = noisy_min(noise_multiplier * math.sqrt(max(rounds, 1) / (1 - gradient_share)))
    first = 1 / max(rounds, 1) if first_share is None else first_share
    step = LineSearch(l2(clip_bound), loss_bound, pool, choice, first, growth, longest_step, candidates, regularizer)
    return Recipe(rounds, always(step), sgd(1.0), release)


ROUNDS = 60
REACH = 4.0  # of the longest step, in useful scores of a typical row
WORSE = 4.0  # times the largest loss before training: losses are clipped there


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """The clip bound of the rule for descent, and steps that reach across all useful scores of a typical row.

    Losses are clipped at four times the largest one before training: lower, and a step that is far too long for some rows would
    look good for all of them. Fewer rounds than for descent are enough, since each goes as far as it can.
    """
    return {
        "rounds": problem.chosen.rounds or ROUNDS,
        "regularizer": problem.regularizer,
        "clip_bound": default_steps("descent", problem.on_all_examples, noise_multiplier, 1)["clip_bound"],
        "loss_bound": WORSE * problem.loss.at_zero,
        "longest_step": REACH * problem.loss.reach / problem.row_norm,
    }


METHOD = Method(
    "dp-agd",
    dp_agd,
    defaults,
    paper="Lee, Kifer: Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy Budget",
    summary="steps chosen by noisy comparisons of losses, and gradients measured better where no step helps; all rows",
    options={
        "loss_bound": POSITIVE,
        "longest_step": CEILING,
        "candidates": COUNT,
        "gradient_share": PART,
        "first_share": optional(SHARE),
        "growth": POSITIVE,
        "release": SLOT,
    },
    refuses={
        "learning_rate": "dp-agd chooses its step sizes itself: leave learning_rate out, or say options={'longest_step': …}.",
        "batch_size": ALL_EXAMPLES.format(name="dp-agd", instead="dp-srm"),
    },
)
