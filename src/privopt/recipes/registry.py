"""The registry: every method that can be asked for by name, for the estimators, the command line and the docs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from privopt.errors import InputError
from privopt.recipe import Recipe
from privopt.recipes.adadps import adadps
from privopt.recipes.adas import adas
from privopt.recipes.bassily_sgd import bassily_sgd
from privopt.recipes.dp2_rmsprop import dp2_rmsprop
from privopt.recipes.dp_adam import dp_adam
from privopt.recipes.dp_adam_bc import dp_adam_bc
from privopt.recipes.dp_adam_pub import dp_adam_pub
from privopt.recipes.dp_agd import dp_agd
from privopt.recipes.dp_r_pub import dp_r_pub
from privopt.recipes.dp_rmsprop import dp_rmsprop
from privopt.recipes.dp_sgd import dp_gd, dp_sgd
from privopt.recipes.dp_srm import dp_srm
from privopt.recipes.ideal import agreed, ideal
from privopt.recipes.output_perturbation import output_perturbation
from privopt.recipes.pda_dpmd import pda_dpmd
from privopt.recipes.rrpsgd import rrpsgd
from privopt.recipes.sagd_lap import sagd_lap
from privopt.recipes.sagd_minibatch import sagd_minibatch
from privopt.recipes.sagd_sparse import sagd_sparse
from privopt.recipes.spiderboost import spiderboost
from privopt.recipes.warm_start import warm_start


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
_ADADPS = "Li, Zaheer, Reddi, Smith: Private Adaptive Optimization with Side Information"
_PUBLIC = "public data"
_AGREED = "the option without_privacy"
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
        Method(
            "sagd-sparse",
            sagd_sparse,
            "RMSProp on public gradients, corrected by private ones with Laplace noise where they are found to be wrong",
            _SAGD,
            needs="public data, and few columns",
            guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
            networks=False,
            pure=True,
        ),
        Method(
            "adadps",
            adadps,
            "gradients divided by what public data, or common knowledge, say of their size, then clipped and hidden",
            _ADADPS,
            needs="public data, or a scale of the columns",
        ),
        Method("dp-r-pub", dp_r_pub, "private gradients, then divided by the size of public ones", _ADADPS, needs=_PUBLIC),
        Method("dp-adam-pub", dp_adam_pub, "Adam on private gradients with moments of public ones", _ADADPS, needs=_PUBLIC),
        Method(
            "pda-dpmd",
            pda_dpmd,
            "steps along a mixture of private and public gradients",
            "Amid et al.: Public Data-Assisted Mirror Descent for Private Model Training",
            needs=_PUBLIC,
        ),
        Method("warm-start", warm_start, "RMSProp on public data, then DP-SGD from there", _ADADPS, needs=_PUBLIC),
        Method(
            "ideal",
            ideal,
            "NOT PRIVATE: AdaDPS that divides by the size of clean private gradients, for comparison",
            _ADADPS,
            needs=_AGREED,
            guarantee="none",
            private=False,
        ),
        Method(
            "adas",
            adas,
            "NOT PRIVATE: AdaDPS without clipping and noise, for comparison",
            _ADADPS,
            needs=f"public data, or a scale of the columns; {_AGREED}",
            guarantee="none",
            private=False,
        ),
    )
}


def check_side(method: Method, options: Mapping[str, Any], *, public: bool) -> None:
    """Refuse the lack of side information that a method needs, more than it can use, and a method without a guarantee."""
    if not method.private:
        agreed(method.name, options.get("without_privacy"))
    takes, scale = signature(method.recipe).parameters, options.get("scale")
    if not public and "public" in takes and scale is None:
        other = ", or a scale among its options: the typical size of each coordinate's gradient" if "scale" in takes else ""
        raise InputError(f"{method.name} needs public data, rows and targets like the private ones{other}.")
    if public and scale is not None:
        raise InputError("both public data and a scale are given, but gradients are divided by one or the other: leave one out.")


def method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise InputError(f"method is {name!r}; the methods are {', '.join(METHODS)}.")
    return METHODS[name]
