"""DP-FedAdam: the noisy mean of users' changes through Adam on the server.

Reddi, Charles, Zaheer et al., Adaptive Federated Optimization (ICLR 2021), with private changes; a baseline of Li, Zaheer, Reddi,
Smith (AdaDPS).
Symbols: s -> local_steps, η_l -> local_rate, η -> learning_rate, β₁ -> first_decay, β₂ -> second_decay, τ -> stability
"""

from privopt.measure.clips import Clip
from privopt.measure.queries import client_update
from privopt.measure.samplers import Sampler, full_batch
from privopt.methods.dp_fedavg import LOCAL_OPTIONS, Clipping, Noise, federated_clip, federated_defaults, federated_round
from privopt.methods.method import DECAY, NOT_NEGATIVE, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments
from privopt.perexample.user_vectors import LocalSteps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, adam
from privopt.recipe import Recipe, always


def dp_fedadam(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | Clip,
    learning_rate: float | Schedule,
    local_steps: int,
    local_rate: float,
    local_batch: int = 32,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    first_decay: float = 0.9,
    second_decay: float = 0.999,
    stability: float = 1e-8,
    clipping: Clipping = "fixed",
    noise: Noise = "server",
    cohort: float | None = None,
    device_noise: float | None = None,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η m/(√v + τ), with m and v running means of ṽ and ṽ², where ṽ is the noisy mean of clipped changes.

    **Guarantee** As `dp_fedavg`: the same measurement, and m and v are computed from its answers.
    """
    term = client_update(LocalSteps(local_steps, local_rate, local_batch)) @ federated_clip(clip_bound, clipping)
    asked = federated_round(sampling, term, noise_multiplier, noise, cohort, device_noise)
    return Recipe(rounds, always(asked), adam(learning_rate, first_decay, second_decay, stability), release, regularizer)


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """For a server that divides its steps by the size of changes, as Adam does."""
    found, noise, allowed = federated_defaults(problem, noise_multiplier, 1.0)
    return {**found, "learning_rate": allowed, "stability": max(noise, found["clip_bound"] / problem.row_norm * 1e-3)}


METHOD = Method(
    "dp-fedadam",
    dp_fedadam,
    defaults,
    paper="Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization",
    summary="as dp-fedavg, with Adam on the server",
    options={**LOCAL_OPTIONS, "first_decay": DECAY, "second_decay": DECAY, "stability": NOT_NEGATIVE},
    needs="users of a federation",
    models=("federated",),
)
