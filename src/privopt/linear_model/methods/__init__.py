"""Plans: how each method is set up for a linear model when the user leaves its settings to us. One file per family."""

from collections.abc import Callable

from privopt.linear_model.methods import (
    adaptive,
    bassily_sgd,
    descent,
    line_search,
    output_perturbation,
    public,
    recursive,
    rrpsgd,
    sagd,
)
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Settings
from privopt.perexample.losses import Loss

PLANS: dict[str, Callable[[Problem], Planned]] = {
    "dp-adam": descent.plan,
    "dp-rmsprop": descent.plan,
    "dp-sgd": descent.plan,
    "dp-gd": descent.plan,
    "dp-agd": line_search.plan,
    "dp-srm": recursive.plan_srm,
    "spiderboost": recursive.plan_spiderboost,
    "output-perturbation": output_perturbation.plan,
    "rrpsgd": rrpsgd.plan,
    "bassily-sgd": bassily_sgd.plan,
    "dp-adam-bc": adaptive.plan_adam_bc,
    "dp2-rmsprop": adaptive.plan_dp2,
    "sagd-lap": sagd.plan_lap,
    "sagd-minibatch": sagd.plan_minibatch,
    "sagd-sparse": sagd.plan_sparse,
    "adadps": public.plan,
    "dp-r-pub": public.plan,
    "dp-adam-pub": public.plan,
    "pda-dpmd": public.plan,
    "warm-start": public.plan,
    "ideal": public.plan,
    "adas": public.plan,
}
CHECKS: dict[str, Callable[[Settings, Loss], None]] = {
    "dp-gd": descent.check,
    "dp-agd": line_search.check,
    "output-perturbation": output_perturbation.check,
    "bassily-sgd": bassily_sgd.check,
    "sagd-lap": sagd.check,
    "sagd-sparse": sagd.check,
}


def check(settings: Settings, loss: Loss) -> None:
    """Refuse settings and losses that the method cannot do with; no value of the data is known yet."""
    if settings.method in CHECKS:
        CHECKS[settings.method](settings, loss)


def plan(problem: Problem) -> Planned:
    """The plan of the problem's method."""
    return PLANS[problem.settings.method](problem)
