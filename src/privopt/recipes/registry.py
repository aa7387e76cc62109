"""The registry: every method that can be asked for by name, for the estimators, the command line and the docs."""

from collections.abc import Callable
from dataclasses import dataclass

from privopt.errors import InputError
from privopt.recipe import Recipe
from privopt.recipes.dp_adam import dp_adam
from privopt.recipes.dp_rmsprop import dp_rmsprop
from privopt.recipes.dp_sgd import dp_gd, dp_sgd


@dataclass(frozen=True)
class Method:
    """A recipe by name, and what one should know before choosing it."""

    name: str
    recipe: Callable[..., Recipe]
    summary: str
    paper: str
    needs: str = "nothing"
    guarantee: str = "(ε, δ)-DP"
    networks: bool = True  # whether it is defined for them, too
    private: bool = True


_DPAGD = "Zhou, Chen, Hong, Wu, Banerjee: Private Stochastic Non-Convex Optimization"

METHODS = {
    method.name: method
    for method in (
        Method("dp-adam", dp_adam, "Adam on private gradients: the default, self-scaling", _DPAGD),
        Method("dp-rmsprop", dp_rmsprop, "private gradients scaled by their running root mean square", _DPAGD),
        Method("dp-sgd", dp_sgd, "gradient descent with momentum on private gradients, full batches or sampled ones", _DPAGD),
        Method("dp-gd", dp_gd, "plain gradient descent on private gradients of all rows", _DPAGD),
    )
}


def method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise InputError(f"method is {name!r}; the methods are {', '.join(METHODS)}.")
    return METHODS[name]
