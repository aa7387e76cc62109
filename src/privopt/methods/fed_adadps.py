"""Federated AdaDPS: users divide their steps by side information, then clip and hide the change.

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), Algorithm 3.
Symbols: s -> local_steps, η -> local_rate, A -> scale, C -> clip_bound, σ -> noise_multiplier, b -> cohort
"""

from typing import Any

from privopt.measure.clips import Clip
from privopt.measure.queries import client_update
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.adadps import Rule, known_scale
from privopt.methods.dp_fedavg import LOCAL_OPTIONS, Clipping, Noise, averaging_defaults, federated_clip, federated_round
from privopt.methods.method import DECAY, NOT_NEGATIVE, SCALE, Method, one_of
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments
from privopt.perexample.user_vectors import LocalSteps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import PublicGradient
from privopt.postprocess.updates import Schedule, descent
from privopt.recipe import Recipe, always


def fed_adadps(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | Clip,
    learning_rate: float | Schedule,
    local_steps: int,
    local_rate: float,
    local_batch: int = 32,
    public: PublicGradient | None = None,
    scale: Any = None,
    rule: Rule = "rmsprop",
    decay: float = 0.9,
    stability: float = 1e-5,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    momentum_decay: float = 0.9,
    clipping: Clipping = "fixed",
    noise: Noise = "server",
    cohort: float | None = None,
    device_noise: float | None = None,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """As `dp_fedavg`, with local steps w ← w − η ∇f(w)/A, where A is a fixed `scale`, or a statistic of `public` gradients.

    **Guarantee** As `dp_fedavg`: A depends on public data and on iterates that are private already, so a user's change is a
    function of that user's rows, and its clip bounds it whatever A is. Nothing is divided by A after the noise.
    """
    side, _ = known_scale(
        public, scale, rule=rule, decay=decay, first_decay=0.0, weight=1.0, stability=stability, method="fed-adadps"
    )
    term = client_update(LocalSteps(local_steps, local_rate, local_batch), scaled=True) @ federated_clip(clip_bound, clipping)
    asked = federated_round(sampling, term, noise_multiplier, noise, cohort, device_noise)
    return Recipe(rounds, always(asked), descent(learning_rate, momentum_decay), release, regularizer, side)


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of DP-FedAvg for changes whose steps are divided by A: as in the rule of AdaDPS, they are `longer` times as long."""
    assert problem.side is not None
    side = problem.side
    found = averaging_defaults(problem, noise_multiplier, longer=side.scaled_norm / problem.row_norm)
    return {**found, "public": side.public, "scale": side.scale, **({"stability": side.stability} if side.scale is None else {})}


METHOD = Method(
    "fed-adadps",
    fed_adadps,
    defaults,
    paper="Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information",
    summary="as dp-fedavg, with local steps divided by what is publicly known of the size of gradients",
    options={
        **LOCAL_OPTIONS,
        "scale": SCALE,
        "rule": one_of("rmsprop", "adagrad"),
        "decay": DECAY,
        "stability": NOT_NEGATIVE,
        "momentum_decay": DECAY,
    },
    needs="users of a federation, and public data or a scale of the columns",
    models=("federated",),
    uses_public=True,
    uses_scale=True,
)
