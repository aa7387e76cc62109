"""DP-SGD: private (stochastic) gradient descent.

Zhou, Chen, Hong, Wu, Banerjee, Private Stochastic Non-Convex Optimization, Algorithm 1 with φ = g and ψ = 1.
Symbols: G -> clip_bound, σ -> noise_multiplier × clip_bound / n, η -> learning_rate, T -> rounds
"""

from privopt.measure.clips import Clip, as_clip
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.method import DECAY, SLOT, Method
from privopt.methods.rules import momentum_defaults
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, descent
from privopt.recipe import Recipe, always


def dp_sgd(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | Clip,
    learning_rate: float | Schedule,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    momentum_decay: float = 0.0,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η g̃, where g̃ is the noisy mean of clipped gradients (or its running sum, with momentum).

    **Guarantee** Query: the sum of per-example gradients, each clipped to l2 norm C (`clip_bound`: a number, or a clip with this
    bound), so one example moves it by at most C. Noise N(0, (zC)² I). Event: `rounds` × sampling(Gaussian(z)). The update sees
    only g̃.

    >>> dp_sgd(rounds=3, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1).planned_event()
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    measurement = Measurement(sampling, [gradient() @ as_clip(clip_bound)], gaussian(noise_multiplier))
    update = descent(learning_rate, momentum_decay)
    return Recipe(rounds, always(measurement), update, release, regularizer)


METHOD = Method(
    "dp-sgd",
    dp_sgd,
    momentum_defaults,
    paper="Zhou, Chen, Hong, Wu, Banerjee: Private Stochastic Non-Convex Optimization",
    summary="gradient descent with momentum on private gradients, full batches or sampled ones",
    options={"momentum_decay": DECAY, "release": SLOT},
)
