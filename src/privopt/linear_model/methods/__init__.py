"""Plans: how each method is set up for a linear model when the user leaves its settings to us. One file per family."""

from collections.abc import Callable

from privopt.linear_model.methods import descent
from privopt.linear_model.methods.planned import Planned
from privopt.linear_model.problem import Problem

PLANS: dict[str, Callable[[Problem], Planned]] = {
    "dp-adam": descent.plan,
    "dp-rmsprop": descent.plan,
    "dp-sgd": descent.plan,
    "dp-gd": descent.plan,
}


def plan(problem: Problem) -> Planned:
    """The plan of the problem's method."""
    return PLANS[problem.settings.method](problem)
