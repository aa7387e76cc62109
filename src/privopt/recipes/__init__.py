"""Algorithms: one file each, and one registry that the estimators, the command line and the docs list."""

from privopt.recipes.bassily_sgd import bassily_sgd
from privopt.recipes.dp_adam import dp_adam
from privopt.recipes.dp_rmsprop import dp_rmsprop
from privopt.recipes.dp_sgd import dp_gd, dp_sgd
from privopt.recipes.dp_srm import dp_srm
from privopt.recipes.output_perturbation import output_perturbation
from privopt.recipes.registry import METHODS, Method, method
from privopt.recipes.rrpsgd import rrpsgd
from privopt.recipes.spiderboost import spiderboost

__all__ = [
    "METHODS",
    "Method",
    "bassily_sgd",
    "dp_adam",
    "dp_gd",
    "dp_rmsprop",
    "dp_sgd",
    "dp_srm",
    "method",
    "output_perturbation",
    "rrpsgd",
    "spiderboost",
]
