"""The registry: every method that can be asked for by name, for the estimators, the command line and the docs."""

from collections.abc import Callable
from dataclasses import dataclass

from privopt.errors import InputError
from privopt.recipe import Recipe
from privopt.recipes.bassily_sgd import bassily_sgd
from privopt.recipes.dp2_rmsprop import dp2_rmsprop
from privopt.recipes.dp_adam import dp_adam
from privopt.recipes.dp_adam_bc import dp_adam_bc
from privopt.recipes.dp_agd import dp_agd
from privopt.recipes.dp_rmsprop import dp_rmsprop
from privopt.recipes.dp_sgd import dp_gd, dp_sgd
from privopt.recipes.dp_srm import dp_srm
from privopt.recipes.output_perturbation import output_perturbation
from privopt.recipes.rrpsgd import rrpsgd
from privopt.recipes.sagd_lap import sagd_lap
from privopt.recipes.sagd_minibatch import sagd_minibatch
from privopt.recipes.spiderboost import spiderboost


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
    pure: bool = False  # whether it can do without δ


_DPAGD = "Zhou, Chen, Hong, Wu, Banerjee: Private Stochastic Non-Convex Optimization"
_SMOOTH = "Zhang, Zheng, Mou, Wang: Efficient Private ERM for Smooth Objectives"
_SAGD = "Zhou, Karimi, Yu, Xu, Li: Towards Better Generalization of Adaptive Gradient Methods"
_CONVEX = "a convex loss with bounded gradients: logistic, multinomial or Huber"

METHODS = {
    method.name: method
    for method in (
        Method("dp-adam", dp_adam, "Adam on private gradients: the default, self-scaling", _DPAGD),
        Method("dp-rmsprop", dp_rmsprop, "private gradients scaled by their running root mean square", _DPAGD),
        Method("dp-sgd", dp_sgd, "gradient descent with momentum on private gradients, full batches or sampled ones", _DPAGD),
        Method("dp-gd", dp_gd, "plain gradient descent on private gradients of all rows", _DPAGD),
        Method(
            "dp-srm",
            dp_srm,
            "a running estimate of the gradient, mostly from how it changes: little noise for short steps",
            "Wang, Jayaraman, Evans, Gu: Efficient Privacy-Preserving Stochastic Nonconvex Optimization",
        ),
        Method(
            "dp-agd",
            dp_agd,
            "steps chosen by noisy comparisons of losses, and gradients measured better where no step helps; all rows",
            "Lee, Kifer: Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy Budget",
        ),
        Method(
            "spiderboost",
            spiderboost,
            "an accurate gradient now and then, and in between how it changes, with noise by the distance moved",
            "Arora, Bassily, González, Guzmán, Menart, Ullah: Faster Rates of Convergence to Stationary Points in Differentially "
            "Private Optimization",
        ),
        Method(
            "output-perturbation",
            output_perturbation,
            "gradient descent without noise, whose end is hidden once",
            _SMOOTH,
            needs=_CONVEX,
            guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
            networks=False,
            pure=True,
        ),
        Method("rrpsgd", rrpsgd, "private gradient descent that stops after a random number of rounds", _SMOOTH),
        Method(
            "bassily-sgd",
            bassily_sgd,
            "small batches, decreasing steps, inside a ball: the baseline of convex theory",
            "Bassily, Smith, Thakurta: Private Empirical Risk Minimization",
            needs="a convex loss",
            networks=False,
        ),
        Method(
            "dp-adam-bc",
            dp_adam_bc,
            "DP-Adam that takes the variance of the noise out of what it divides by",
            "Tang, Shpilevskiy, Lécuyer: DP-AdamBC: Your DP-Adam Is Actually DP-SGD",
        ),
        Method(
            "dp2-rmsprop",
            dp2_rmsprop,
            "gradients preconditioned before they are clipped, by averages of earlier private answers",
            "Li, Zaheer, Liu, Reddi, McMahan, Smith: Differentially Private Adaptive Optimization with Delayed Preconditioners",
        ),
        Method(
            "sagd-lap",
            sagd_lap,
            "RMSProp on all rows with Laplace noise, also without δ; for few columns",
            _SAGD,
            guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
            pure=True,
        ),
        Method(
            "sagd-minibatch",
            sagd_minibatch,
            "RMSProp with Laplace noise on disjoint batches: fewer passes over the rows, more noise",
            _SAGD,
            needs="a secret cut of the rows, which the estimators draw",
            guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
            networks=False,
            pure=True,
        ),
    )
}


def method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise InputError(f"method is {name!r}; the methods are {', '.join(METHODS)}.")
    return METHODS[name]
