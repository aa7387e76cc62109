"""SAGD with the oracle DPG-Lap: RMSProp on full gradients that Laplace noise hides.

Zhou, Karimi, Yu, Xu, Li, Towards Better Generalization of Adaptive Gradient Methods (NeurIPS 2020), Algorithm 1 with DPG-Lap.
Symbols: G₁ -> clip_bound, σ -> noise_multiplier × clip_bound / n, β₂ -> decay, ν -> stability, η -> learning_rate, T -> rounds
"""

from privopt.measure.clips import l1
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import laplace
from privopt.measure.queries import gradient
from privopt.measure.samplers import full_batch
from privopt.methods.method import ALL_EXAMPLES, DECAY, NOT_NEGATIVE, SLOT, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import LAPLACE_ROUNDS, PURE_ROUNDS, Arguments, laplace_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, rmsprop
from privopt.recipe import Recipe, always


def sagd_lap(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    decay: float = 0.99,
    stability: float = 1e-8,
    release: ReleaseRule = last(),  # noqa: B008  # frozen
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η g̃/(√v + ν), with v the running mean of g̃² and g̃ the mean of all gradients, hidden by Laplace noise.

    **Guarantee** Query: the sum of per-example gradients, each clipped to l1 norm C, so one example moves it by at most C in l1.
    Noise: Laplace(zC) on each coordinate, so one answer is 1/z-DP. Event: `rounds` × Laplace(z), which also has a price at δ = 0:
    ε = rounds/z. The paper composes by √(T ln(1/δ)), without that theorem's constants; here the accountant does it.

    >>> sagd_lap(rounds=3, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1).planned_event()
    SelfComposedDpEvent(event=LaplaceDpEvent(noise_multiplier=2.0), count=3)
    """
    measurement = Measurement(full_batch(), [gradient() @ l1(clip_bound)], laplace(noise_multiplier))
    return Recipe(rounds, always(measurement), rmsprop(learning_rate, decay, stability), release, regularizer)


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of RMSProp for Laplace noise; few rounds without δ."""
    rounds = problem.chosen.rounds or (PURE_ROUNDS if problem.pure else LAPLACE_ROUNDS)
    steps = laplace_steps(problem, noise_multiplier, rounds, float(problem.size))
    return {"rounds": rounds, "regularizer": problem.regularizer, **steps}


METHOD = Method(
    "sagd-lap",
    sagd_lap,
    defaults,
    paper="Zhou, Karimi, Yu, Xu, Li: Towards Better Generalization of Adaptive Gradient Methods",
    summary="RMSProp on all rows with Laplace noise, also without δ; for few columns",
    options={"decay": DECAY, "stability": NOT_NEGATIVE, "release": SLOT},
    guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
    pure=True,
    refuses={"batch_size": ALL_EXAMPLES.format(name="sagd-lap", instead="sagd-minibatch")},
)
