"""Plans: how each method is set up for a linear model when the user leaves its settings to us. One file per family."""

from collections.abc import Callable

from privopt.linear_model.methods import bassily_sgd, descent, output_perturbation, recursive, rrpsgd
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem, Settings
from privopt.perexample.losses import Loss

PLANS: dict[str, Callable[[Problem], Planned]] = {
    "dp-adam": descent.plan,
    "dp-rmsprop": descent.plan,
    "dp-sgd": descent.plan,
    "dp-gd": descent.plan,
    "dp-srm": recursive.plan_srm,
    "spiderboost": recursive.plan_spiderboost,
    "output-perturbation": output_perturbation.plan,
    "rrpsgd": rrpsgd.plan,
    "bassily-sgd": bassily_sgd.plan,
}
CHECKS: dict[str, Callable[[Settings, Loss], None]] = {
    "output-perturbation": output_perturbation.check,
    "bassily-sgd": bassily_sgd.check,
}


def check(settings: Settings, loss: Loss) -> None:
    """Refuse settings and losses that the method cannot do with; no value of the data is known yet."""
    if settings.method in CHECKS:
        CHECKS[settings.method](settings, loss)


def plan(problem: Problem) -> Planned:
    """The plan of the problem's method."""
    return PLANS[problem.settings.method](problem)
