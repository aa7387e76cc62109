"""DP-GD: private gradient descent on every row.

Zhou, Chen, Hong, Wu, Banerjee, Private Stochastic Non-Convex Optimization, Algorithm 1 with φ = g and ψ = 1.
Symbols: G -> clip_bound, σ -> noise_multiplier × clip_bound / n, η -> learning_rate, T -> rounds
"""

from privopt.measure.clips import Clip
from privopt.methods.dp_sgd import dp_sgd
from privopt.methods.method import ALL_EXAMPLES, SLOT, Method
from privopt.methods.rules import descent_defaults
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule
from privopt.recipe import Recipe


def dp_gd(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | Clip,
    learning_rate: float | Schedule,
    release: ReleaseRule = last(),  # noqa: B008  # frozen
    regularizer: Regularizer | None = None,
) -> Recipe:
    """DP-SGD on every row in every round, without momentum. **Guarantee** as `dp_sgd`: `rounds` × Gaussian(z)."""
    return dp_sgd(
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        clip_bound=clip_bound,
        learning_rate=learning_rate,
        release=release,
        regularizer=regularizer,
    )


METHOD = Method(
    "dp-gd",
    dp_gd,
    descent_defaults,
    paper="Zhou, Chen, Hong, Wu, Banerjee: Private Stochastic Non-Convex Optimization",
    summary="plain gradient descent on private gradients of all rows",
    options={"release": SLOT},
    refuses={"batch_size": ALL_EXAMPLES.format(name="dp-gd", instead="dp-sgd")},
)
