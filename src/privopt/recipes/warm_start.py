"""Warm start: RMSProp on public data, then DP-SGD from there.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), appendix C.1, table 7.
"""

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.measure.without_mechanism import unasked
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.schedules import Schedule
from privopt.postprocess.side_information import PublicGradient, public_gradient
from privopt.postprocess.updates import descent, rmsprop, warm_up
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
