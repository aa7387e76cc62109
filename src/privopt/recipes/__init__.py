"""Algorithms: one file each, and one registry that the estimators, the command line and the docs list."""

from privopt.recipes.dp_adam import dp_adam
from privopt.recipes.dp_rmsprop import dp_rmsprop
from privopt.recipes.dp_sgd import dp_gd, dp_sgd
from privopt.recipes.registry import METHODS, Method, method

__all__ = ["METHODS", "Method", "dp_adam", "dp_gd", "dp_rmsprop", "dp_sgd", "method"]
