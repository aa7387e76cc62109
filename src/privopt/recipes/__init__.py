"""Algorithms: one file each, and one registry that the estimators, the command line and the docs list."""

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
from privopt.recipes.ideal import ideal
from privopt.recipes.options import check_options
from privopt.recipes.output_perturbation import output_perturbation
from privopt.recipes.pda_dpmd import pda_dpmd
from privopt.recipes.registry import METHODS, Method, check_side, method
from privopt.recipes.rrpsgd import rrpsgd
from privopt.recipes.sagd_lap import sagd_lap
from privopt.recipes.sagd_minibatch import sagd_minibatch
from privopt.recipes.sagd_sparse import sagd_sparse
from privopt.recipes.spiderboost import spiderboost
from privopt.recipes.warm_start import warm_start

__all__ = [
    "METHODS",
    "Method",
    "adadps",
    "adas",
    "bassily_sgd",
    "check_options",
    "check_side",
    "dp2_rmsprop",
    "dp_adam",
    "dp_adam_bc",
    "dp_adam_pub",
    "dp_agd",
    "dp_gd",
    "dp_r_pub",
    "dp_rmsprop",
    "dp_sgd",
    "dp_srm",
    "ideal",
    "method",
    "output_perturbation",
    "pda_dpmd",
    "rrpsgd",
    "sagd_lap",
    "sagd_minibatch",
    "sagd_sparse",
    "spiderboost",
    "warm_start",
]
