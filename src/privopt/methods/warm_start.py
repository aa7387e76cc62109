"""Warm start: RMSProp on public data, then DP-SGD from there.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), appendix C.1, table 7.
"""

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.measure.without_mechanism import unasked
from privopt.methods.method import COUNT, DECAY, NOT_NEGATIVE, RATE, SLOT, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_rounds, default_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import PublicGradient, public_gradient
from privopt.postprocess.updates import Schedule, descent, rmsprop, warm_up
from privopt.recipe import Recipe, after


def warm_start(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    public: PublicGradient,
    public_epochs: int = 10,
    public_learning_rate: float | Schedule = 1e-2,
    decay: float = 0.99,
    stability: float = 1e-8,
    momentum_decay: float = 0.0,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """`public_epochs` passes of RMSProp over public data, then `rounds` rounds of DP-SGD; the recipe has the rounds of both.

    **Guarantee** In the first rounds the examples are not asked, so they cost nothing. The others are DP-SGD from a public start.
    Event: `rounds` × sampling(Gaussian(z)).
    """
    measurement = Measurement(sampling, [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    before = public_epochs * public.epoch
    private = descent(learning_rate, momentum_decay)
    update = warm_up(before, rmsprop(public_learning_rate, decay, stability), then=private)
    return Recipe(
        before + rounds,
        after(before, measurement, before=unasked()),
        update,
        release,
        regularizer,
        public_gradient(public),
    )


PUBLIC_EPOCHS = 10


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of DP-SGD, after RMSProp steps on public rows that add up to the useful reach of a typical row's score."""
    assert problem.side is not None
    assert problem.side.public is not None
    rounds = default_rounds(problem, descent=True)
    epochs = problem.chosen.options.get("public_epochs", PUBLIC_EPOCHS)
    public_steps = max(1, epochs * problem.side.public.epoch)
    return {
        "rounds": rounds,
        "sampling": problem.sampler,
        "regularizer": problem.regularizer,
        "public": problem.side.public,
        "public_learning_rate": problem.loss.reach / (problem.row_norm * public_steps),
        **({"stability": problem.side.stability} if problem.model == "network" else {}),  # unseen parameters stay where they are
        **default_steps("momentum", problem, noise_multiplier, rounds),
    }


METHOD = Method(
    "warm-start",
    warm_start,
    defaults,
    paper="Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information",
    summary="RMSProp on public data, then DP-SGD from there",
    options={
        "public_epochs": COUNT,
        "public_learning_rate": RATE,
        "decay": DECAY,
        "stability": NOT_NEGATIVE,
        "momentum_decay": DECAY,
        "release": SLOT,
    },
    needs="public data",
    uses_public=True,
)
