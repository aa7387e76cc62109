"""Mini-batch SAGD: RMSProp on gradients of disjoint parts of the data, each hidden by Laplace noise.

Zhou, Karimi, Yu, Xu, Li, Towards Better Generalization of Adaptive Gradient Methods (NeurIPS 2020), mini-batch SAGD with DPG-Lap.
Symbols: n/m -> sampling.batches, G₁ -> clip_bound, σ -> noise_multiplier × clip_bound / m, T -> rounds / sampling.batches
"""

from privopt.measure.clips import l1
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import laplace
from privopt.measure.queries import gradient
from privopt.measure.samplers import disjoint_batches
from privopt.methods.method import DECAY, NOT_NEGATIVE, SLOT, Method
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, laplace_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.updates import Schedule, rmsprop
from privopt.recipe import Recipe, always


def sagd_minibatch(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    sampling: disjoint_batches,
    decay: float = 0.99,
    stability: float = 1e-8,
    release: ReleaseRule = last(),  # noqa: B008  # frozen
    regularizer: Regularizer | None = None,
) -> Recipe:
    """As `sagd_lap`, but each round sees one part of the data; an epoch of as many rounds as there are parts visits each once.

    **Guarantee** As `sagd_lap` within a part. One example is in one part only, so it takes part once in each epoch (parallel
    composition): the event is ⌈rounds/parts⌉ × Laplace(z). Noise is relative to a mean over n/parts examples.

    >>> cut = disjoint_batches(10, key=5)  # for this page; a key is secret
    >>> sagd_minibatch(rounds=30, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, sampling=cut).planned_event()
    SelfComposedDpEvent(event=LaplaceDpEvent(noise_multiplier=2.0), count=3)
    """
    measurement = Measurement(sampling, [gradient() @ l1(clip_bound)], laplace(noise_multiplier))
    return Recipe(rounds, always(measurement), rmsprop(learning_rate, decay, stability), release, regularizer)


EPOCHS, PURE_EPOCHS = 50, 5
BATCHES = 4


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Fewer passes over the rows than SAGD on all of them, for √batches times the noise."""
    size, wanted = problem.size, problem.chosen.batch_size
    batches = max(1, round(size / wanted)) if wanted else min(BATCHES, size)
    rounds = problem.chosen.rounds or batches * (PURE_EPOCHS if problem.pure else EPOCHS)
    return {
        "rounds": rounds,
        "sampling": disjoint_batches(batches, problem.key),
        "regularizer": problem.regularizer,
        **laplace_steps(problem, noise_multiplier, rounds, size / batches),
    }


METHOD = Method(
    "sagd-minibatch",
    sagd_minibatch,
    defaults,
    paper="Zhou, Karimi, Yu, Xu, Li: Towards Better Generalization of Adaptive Gradient Methods",
    summary="RMSProp with Laplace noise on disjoint batches: fewer passes over the rows, more noise",
    options={"decay": DECAY, "stability": NOT_NEGATIVE, "release": SLOT},
    needs="a secret cut of the rows, which the estimators draw",
    guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
    models=("linear",),
    pure=True,
)
