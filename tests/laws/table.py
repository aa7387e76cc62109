"""Every implementation of every slot, once. `test_table.py` fails when one is missing here."""

from collections.abc import Callable
from inspect import signature
from typing import Any, Literal

import numpy as np

from privopt.measure.clips import Clip, automatic, l1, l2, per_layer
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import Independent, gamma_norm, gaussian, laplace
from privopt.measure.queries import Query, gradient, gradient_difference, preconditioned_gradient
from privopt.measure.samplers import Sampler, disjoint_batches, fixed_size, full_batch, poisson
from privopt.methods import METHODS
from privopt.methods.bassily_sgd import bassily_sgd
from privopt.methods.output_perturbation import output_perturbation
from privopt.methods.rrpsgd import rrpsgd
from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial, Squared
from privopt.postprocess.estimates import Estimate, newest_answer, recursive_momentum
from privopt.postprocess.regularizers import Regularizer, nonconvex, ridge
from privopt.postprocess.release import ReleaseRule, average, last, moving_average, random_round, uniform_iterate
from privopt.postprocess.side_information import (
    SideInformation,
    delayed_preconditioner,
    fixed_scale,
    nothing,
    public_gradient,
    public_moments,
    public_rms,
    public_sum,
)
from privopt.postprocess.updates import (
    UpdateRule,
    adam,
    mirror_mix,
    momentum,
    projected,
    public_adam,
    public_rmsprop,
    rmsprop,
    sgd,
    warm_up,
)
from privopt.privacy.budget import Neighbours
from privopt.recipe import Recipe
from tests.problems import Public

SAMPLERS: dict[str, Callable[[int], Sampler]] = {  # for so many rows
    "poisson": lambda size: poisson(0.3),
    "fixed_size": lambda size: fixed_size(max(1, size // 3), size),
    "full_batch": lambda size: full_batch(),
    "disjoint_batches": lambda size: disjoint_batches(3, key=5),  # a key is secret; here, tests repeat themselves
}
NEIGHBOURS: dict[str, Neighbours] = {name: "replace-one" if name == "fixed_size" else "add-remove" for name in SAMPLERS}
QUERIES: dict[str, Query] = {
    "gradient": gradient(),
    "gradient_difference": gradient_difference(),
    "preconditioned_gradient": preconditioned_gradient(),
}
CLIPS: dict[str, Callable[[float], Clip]] = {
    "l1": l1,
    "l2": l2,
    "automatic": automatic,
    "per_layer": lambda bound: per_layer({"": bound}),
}
MECHANISMS: dict[str, Callable[[float], Independent]] = {"gaussian": gaussian, "laplace": laplace, "gamma_norm": gamma_norm}

UPDATES: dict[str, UpdateRule] = {
    "sgd": sgd(0.1),
    "momentum": momentum(0.1, 0.5),
    "rmsprop": rmsprop(0.1, ceiling=0.5),
    "adam": adam(0.1, ceiling=0.5, bias_correction=False),
    "public_rmsprop": public_rmsprop(0.1),
    "public_adam": public_adam(0.1),
    "mirror_mix": mirror_mix(0.1, horizon=5),
    "warm_up": warm_up(2, rmsprop(0.1), then=momentum(0.1)),
    "projected": projected(momentum(0.1, 0.5), 0.7),
}
ESTIMATES: dict[str, Estimate] = {"newest_answer": newest_answer(), "recursive_momentum": recursive_momentum(0.9)}
RELEASES: dict[str, ReleaseRule] = {
    "last": last(),
    "uniform_iterate": uniform_iterate(),
    "random_round": random_round(),
    "average": average(),
    "moving_average": moving_average(),
}
REGULARIZERS: dict[str, Regularizer] = {"ridge": ridge(0.3), "nonconvex": nonconvex(0.3)}
LOSSES: dict[str, Loss] = {
    "Logistic": Logistic(),
    "Multinomial": Multinomial(3),
    "Squared": Squared(),
    "Huber": Huber(0.7),
}


SIDES: dict[str, SideInformation] = {  # of three parameters
    "nothing": nothing(),
    "fixed_scale": fixed_scale(np.array([1.0, 0.1, 3.0])),
    "public_gradient": public_gradient(Public(1.0)),
    "public_rms": public_rms(Public(1.0)),
    "public_sum": public_sum(Public(1.0)),
    "public_moments": public_moments(Public(1.0)),
    "delayed_preconditioner": delayed_preconditioner(2),
}

FEDERATED_METHODS = [name for name, method in METHODS.items() if "federated" in method.models]  # tests/federated
ROW_METHODS = [name for name in METHODS if name not in FEDERATED_METHODS]

DESCENT = ["dp-adam", "dp-rmsprop", "dp-sgd", "dp-gd"]  # they share their arguments and differ in the update alone
METHODS_THAT_SAMPLE = [name for name in DESCENT if "sampling" in signature(METHODS[name].recipe).parameters]


def _descent(name: str) -> Callable[[int, float], Recipe]:
    return lambda rounds, noise: METHODS[name].recipe(rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.1)


LIMIT = 6.0  # of rows, for the methods whose guarantee rests on the constants of the logistic loss


def _output_perturbation(rounds: int, noise: float) -> Recipe:
    return output_perturbation(steps=1 + rounds // 10, noise_multiplier=noise, lipschitz=LIMIT, smoothness=LIMIT**2 / 4)


def _rrpsgd(rounds: int, noise: float) -> Recipe:
    return rrpsgd(max_rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.1)


def _bassily_sgd(rounds: int, noise: float) -> Recipe:
    return bassily_sgd(rounds=rounds, noise_multiplier=noise, clip_bound=1.0, radius=3.0, size=80, dimension=4)


def _dp_srm(rounds: int, noise: float) -> Recipe:
    return METHODS["dp-srm"].recipe(
        rounds=rounds, noise_multiplier=noise, clip_bound=1.0, change_bound=0.2, refresh=0.2, learning_rate=0.1
    )


def _dp_agd(rounds: int, noise: float) -> Recipe:
    """Its noise is that of a whole run, so that of a round is divided by √rounds."""
    return METHODS["dp-agd"].recipe(rounds=rounds, noise_multiplier=noise / rounds**0.5, clip_bound=1.0, loss_bound=3.0)


def _spiderboost(rounds: int, noise: float) -> Recipe:
    return METHODS["spiderboost"].recipe(
        rounds=rounds, noise_multiplier=noise, clip_bound=1.0, smoothness=2.0, period=4, learning_rate=0.1
    )


def _dp_adam_bc(rounds: int, noise: float) -> Recipe:
    return METHODS["dp-adam-bc"].recipe(
        rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.1, expected_batch_size=12
    )


def _dp2_rmsprop(rounds: int, noise: float) -> Recipe:
    return METHODS["dp2-rmsprop"].recipe(rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.1, phase=2)


def _sagd_minibatch(rounds: int, noise: float) -> Recipe:
    cut = disjoint_batches(3, key=5)
    return METHODS["sagd-minibatch"].recipe(
        rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.1, sampling=cut
    )


def _beside(name: str, **own: Any) -> Callable[[int, float], Recipe]:
    """A method with side information."""
    return lambda rounds, noise: METHODS[name].recipe(
        rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=0.1, **own
    )


def _adas(rounds: int, noise: float) -> Recipe:
    return METHODS["adas"].recipe(rounds=rounds, learning_rate=0.1, public=Public(1.0), without_privacy=True)


SAMPLES: dict[str, Callable[[int, float], Recipe]] = {  # (rounds, noise multiplier), for linear models of any size
    **{name: _descent(name) for name in DESCENT},
    "dp-agd": _dp_agd,
    "dp-srm": _dp_srm,
    "spiderboost": _spiderboost,
    "output-perturbation": _output_perturbation,
    "rrpsgd": _rrpsgd,
    "bassily-sgd": _bassily_sgd,
    "dp-adam-bc": _dp_adam_bc,
    "dp2-rmsprop": _dp2_rmsprop,
    "sagd-lap": _descent("sagd-lap"),
    "sagd-minibatch": _sagd_minibatch,
    "sagd-sparse": _beside("sagd-sparse", public=Public(), answers=3),
    "adadps": _beside("adadps", public=Public(1.0)),
    "dp-r-pub": _beside("dp-r-pub", public=Public(1.0)),
    "dp-adam-pub": _beside("dp-adam-pub", public=Public()),
    "pda-dpmd": _beside("pda-dpmd", public=Public()),
    "warm-start": _beside("warm-start", public=Public(), public_epochs=2),
    "ideal": _beside("ideal", without_privacy=True, stability=0.1),
    "adas": _adas,
}


def order_of(clip: str) -> Literal[1, 2]:
    """The norm that a clip of this name bounds."""
    return CLIPS[clip](1.0).order


FITTING = [(clip, mechanism) for clip in CLIPS for mechanism in MECHANISMS if order_of(clip) == MECHANISMS[mechanism](1.0).order]
COMPOSITIONS = [(sampler, query, clip, mechanism) for sampler in SAMPLERS for query in QUERIES for clip, mechanism in FITTING]
TURNS = [  # queries take turns: each meets every sampler, and every clip with its mechanism
    (sampler, list(QUERIES)[(place + turn) % len(QUERIES)], *fitting)
    for place, sampler in enumerate(SAMPLERS)
    for turn, fitting in enumerate(FITTING)
]
UNPRICED = [names for names in COMPOSITIONS if names[0] == "fixed_size" and names[3] != "gaussian"]  # by dp-accounting 0.6


def composed(names: tuple[str, str, str, str], size: int, *, bound: float, noise_multiplier: float) -> Measurement:
    """The measurement of these slots."""
    sampler, query, clip, mechanism = names
    return Measurement(SAMPLERS[sampler](size), [QUERIES[query] @ CLIPS[clip](bound)], MECHANISMS[mechanism](noise_multiplier))
