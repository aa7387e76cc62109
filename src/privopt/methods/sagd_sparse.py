"""SAGD with the oracle DPG-Sparse: RMSProp on public gradients, corrected by private ones where they are found to be wrong.

Zhou, Karimi, Yu, Xu, Li, Towards Better Generalization of Adaptive Gradient Methods (NeurIPS 2020), Algorithm 1 with DPG-Sparse.
Symbols: S₁ -> the private data, S₂ -> public, C_s -> answers, G₁ -> clip_bound, σ -> noise_multiplier × clip_bound / n,
β₂ -> decay, ν -> stability, η -> learning_rate, T -> rounds

The paper cuts one data set in two. Here S₂ is public data: its gradient is used without noise, so nothing protects it. The paper
draws the threshold's noise in every step; here it lasts until an answer is paid, or the steps in between would not be free.
"""

from typing import Literal

from privopt.measure.clips import l1
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, full_batch
from privopt.measure.sparse_vector import SparseVector
from privopt.methods.method import ALL_EXAMPLES, COUNT, DECAY, FINITE, NOT_NEGATIVE, SLOT, Method, one_of
from privopt.methods.problem import Problem
from privopt.methods.rules import LAPLACE_ROUNDS, PURE_ROUNDS, Arguments, laplace_steps
from privopt.postprocess.regularizers import Regularizer
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.side_information import PublicGradient, public_gradient
from privopt.postprocess.updates import Schedule, rmsprop
from privopt.recipe import Recipe, always


def sagd_sparse(
    *,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float,
    learning_rate: float | Schedule,
    public: PublicGradient,
    answers: int,
    threshold: float = 1.0,
    afterwards: Literal["public", "stop"] = "public",
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen; no other is accepted
    decay: float = 0.99,
    stability: float = 1e-8,
    release: ReleaseRule = last(),  # noqa: B008
    regularizer: Regularizer | None = None,
) -> Recipe:
    """θ ← θ − η g̃/(√v + ν), where g̃ is the public gradient or, at most `answers` times, the private one with Laplace noise.

    The private one is answered when it differs from the public one by more than `threshold` × the length of the noise that is
    left in the mean of all answers, as far as a noisy comparison can tell; a threshold of 0 is the paper's. When no answers are
    left, `afterwards` says whether public gradients are used alone or training stops (the answer is 0).

    **Guarantee** That of `SparseVector`, for the private data only: `answers` × 1/z-DP comparisons and `answers` × Laplace(z),
    all paid before the first round. At δ = 0: ε = 2 · answers/z. The number of rounds costs nothing.

    >>> class Origin:  # a public gradient that pulls towards 0
    ...     epoch = 1
    ...     def __call__(self, parameters, round_):
    ...         return parameters
    >>> recipe = sagd_sparse(rounds=500, noise_multiplier=8.0, clip_bound=1.0, learning_rate=0.1, public=Origin(), answers=1)
    >>> recipe.planned_event()
    ComposedDpEvent(events=[PureDpEvent(epsilon=0.125), LaplaceDpEvent(noise_multiplier=8.0)])
    """
    measurement = SparseVector(
        sampling, gradient() @ l1(clip_bound), noise_multiplier, min(answers, rounds), threshold, afterwards
    )
    side = public_gradient(public)
    return Recipe(rounds, always(measurement), rmsprop(learning_rate, decay, stability), release, regularizer, side)


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """Those of RMSProp for Laplace noise; public gradients are corrected in half of the rounds at most."""
    assert problem.side is not None
    rounds = problem.chosen.rounds or (2 * PURE_ROUNDS if problem.pure else LAPLACE_ROUNDS)
    answers = problem.chosen.options.get("answers", max(1, rounds // 2))
    return {
        "rounds": rounds,
        "regularizer": problem.regularizer,
        "public": problem.side.public,
        "answers": answers,
        **laplace_steps(problem, noise_multiplier, rounds, float(problem.size), noisy=answers),
    }


METHOD = Method(
    "sagd-sparse",
    sagd_sparse,
    defaults,
    paper="Zhou, Karimi, Yu, Xu, Li: Towards Better Generalization of Adaptive Gradient Methods",
    summary="RMSProp on public gradients, corrected by private ones with Laplace noise where they are found to be wrong",
    options={
        "answers": COUNT,
        "threshold": FINITE,
        "afterwards": one_of("public", "stop"),
        "decay": DECAY,
        "stability": NOT_NEGATIVE,
        "release": SLOT,
    },
    needs="public data, and few columns",
    guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
    models=("linear",),
    pure=True,
    uses_public=True,
    public_batch=None,
    refuses={"batch_size": ALL_EXAMPLES.format(name="sagd-sparse", instead="sagd-minibatch")},
)
