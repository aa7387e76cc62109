"""The plans of SAGD: the rule of `privopt.linear_model.defaults`, for Laplace noise after a clip in l1.

Laplace noise of multiplier z after a clip to l1 norm C₁ has the variance of Gaussian noise of multiplier √2 z C₁/C₂ after a
clip to l2 norm C₂: the rule is asked for that. Of the l1 and l2 norms of a row it is publicly known only that their ratio lies
between 1 and √f, for f columns: f^¼, the middle of it, is C₁/C₂; times √2 for several classes, whose residuals are vectors too.

Without δ the noise of a round grows with the number T of rounds, and not with its root: what all rounds together displace grows
with √T, and few rounds are better.

The running mean v starts from 0, so it is too small until it has forgotten that: it is one over ten rounds or so.
"""

import math
from collections.abc import Callable
from typing import Any

from privopt.errors import InputError
from privopt.linear_model.defaults import Steps, default_steps
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Settings
from privopt.measure.samplers import disjoint_batches
from privopt.perexample.losses import Loss
from privopt.recipe import Recipe
from privopt.recipes import sagd_lap, sagd_minibatch, sagd_sparse

ROUNDS, PURE_ROUNDS = 200, 20
EPOCHS, PURE_EPOCHS = 50, 5  # of disjoint batches
BATCHES = 4
DECAY = 0.9


def check(settings: Settings, loss: Loss) -> None:
    """Refuse batches where there are none."""
    if settings.batch_size is not None:
        raise InputError(f"{settings.method} uses every row in every round: leave batch_size out, or use sagd-minibatch.")


def plan_lap(problem: Problem) -> Planned:
    """SAGD on all rows."""
    rounds = problem.settings.rounds or (PURE_ROUNDS if problem.pure else ROUNDS)
    return _planned(problem, sagd_lap, rounds, problem.size, "all rows")


def plan_sparse(problem: Problem) -> Planned:
    """SAGD with public rows, whose gradients are corrected in half of the rounds at most."""
    assert problem.side is not None
    rounds = problem.settings.rounds or (2 * PURE_ROUNDS if problem.pure else ROUNDS)
    answers = problem.settings.options.get("answers", max(1, rounds // 2))
    own = {"public": problem.side.public, "answers": answers}
    planned = _planned(problem, sagd_sparse, rounds, problem.size, "all rows", noisy=answers, **own)
    return Planned(planned.recipe, lambda noise_multiplier: {"answers": answers, **planned.settings(noise_multiplier)})


def plan_minibatch(problem: Problem) -> Planned:
    """SAGD on disjoint batches; fewer passes over the rows than SAGD on all of them, for √batches times the noise."""
    size, wanted = problem.size, problem.settings.batch_size
    batches = max(1, round(size / wanted)) if wanted else min(BATCHES, size)
    rounds = problem.settings.rounds or batches * (PURE_EPOCHS if problem.pure else EPOCHS)
    phrase = f"{size / batches:.6g} on average, in {batches} disjoint parts"
    return _planned(problem, sagd_minibatch, rounds, size / batches, phrase, sampling=disjoint_batches(batches, problem.key))


def _planned(
    problem: Problem,
    build: Callable[..., Recipe],
    rounds: int,
    batch: float,
    phrase: str,
    noisy: int | None = None,
    **own: Any,
) -> Planned:
    """A plan of so many rounds, of which `noisy` have noise, if not all."""
    settings = problem.settings

    def recipe(noise_multiplier: float) -> Recipe:
        steps = _steps(problem, noise_multiplier, rounds, noisy or rounds, batch)
        return build(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            clip_bound=steps.clip_bound,
            learning_rate=steps.learning_rate,
            regularizer=problem.regularizer,
            **{**own, **steps.options, **settings.options},
        )

    def shown(noise_multiplier: float) -> dict[str, Any]:
        steps = _steps(problem, noise_multiplier, rounds, noisy or rounds, batch)
        bound = f"{steps.clip_bound:.6g} (l1)"
        return {"batch size": phrase, "clip bound": bound, "learning rate": steps.learning_rate, **settings.options}

    return Planned(recipe, shown)


def _steps(problem: Problem, noise_multiplier: float, rounds: int, noisy: int, batch: float) -> Steps:
    settings = problem.settings
    wider = problem.width**0.25 * (math.sqrt(2) if problem.loss.outputs > 1 else 1.0)
    found = default_steps(
        "dp-rmsprop",
        problem.loss,
        size=problem.size,
        batch=batch,
        width=problem.width,
        row_norm=problem.row_norm,
        rounds=noisy,
        noise_multiplier=math.sqrt(2) * wider * noise_multiplier,
        clip_bound=settings.clip_bound and settings.clip_bound / wider,
    )
    rate = settings.learning_rate or found.learning_rate * math.sqrt(noisy / rounds)  # the rule shares it out among √rounds
    return Steps(wider * found.clip_bound, rate, {"decay": DECAY, **found.options})
