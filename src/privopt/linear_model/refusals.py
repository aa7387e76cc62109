"""Refusals: settings that cannot hold are found before anything is measured, for what is measured is paid for."""

import math
import reprlib
import sys
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from privopt.errors import InputError
from privopt.limits import MOST_ROUNDS
from privopt.linear_model import methods, side
from privopt.linear_model.problem import Problem, Settings, Side
from privopt.perexample.design import Design, Frame
from privopt.perexample.losses import Loss
from privopt.perexample.public_rows import PublicRows
from privopt.privacy.budget import Budget
from privopt.recipes import METHODS, check_options
from privopt.recipes import method as method_of

DECIDED = {  # what a plan decides, or a setting says
    *("rounds", "max_rounds", "steps", "noise_multiplier", "clip_bound", "learning_rate", "sampling", "regularizer", "public"),
    *("size", "dimension", "batch_size", "expected_batch_size", "lipschitz", "pure"),
}


def check(settings: Settings, budget: Budget, loss: Loss, *, size: int, columns: int, public: bool) -> None:
    """Refuse what a linear model cannot be trained with; nothing here depends on a value of the data."""
    check_settings(settings, budget)
    methods.check(settings, loss)
    side.check(settings, public)
    _try(settings, budget, loss, size, columns + bool(settings.fit_intercept), public)


def check_settings(settings: Settings, budget: Budget) -> None:
    """Refuse settings that cannot hold, for whatever model."""
    method = method_of(settings.method)
    if budget.delta == 0 and not method.pure:
        able = ", ".join(name for name, other in METHODS.items() if other.pure)
        raise InputError(
            f"delta is 0, but {method.name} adds Gaussian noise, which needs delta > 0, such as 1e-6. Without delta: {able}."
        )
    check_options(method, settings.options, DECIDED)
    for name, kind in {"clip_bound": Real, "learning_rate": Real, "rounds": Integral, "batch_size": Integral}.items():
        value = getattr(settings, name)
        if value is not None and not (isinstance(value, kind) and _positive(value)):
            number = "whole number" if kind is Integral else "finite number"
            raise InputError(f"{name} is {reprlib.repr(value)}, but it is a {number} > 0, or None for the default rule.")
    if settings.rounds is not None and settings.rounds > MOST_ROUNDS:
        raise InputError(f"rounds is {reprlib.repr(settings.rounds)}, but a run has at most {MOST_ROUNDS}.")
    if not (isinstance(settings.alpha, Real) and 0 <= settings.alpha < math.inf):
        raise InputError(f"alpha is {settings.alpha!r}, but the strength of a regulariser is a finite number ≥ 0.")
    if settings.penalty not in ("ridge", "nonconvex"):
        raise InputError(f"penalty is {settings.penalty!r}; it is 'ridge' or 'nonconvex'.")


def _positive(value: Any) -> bool:
    return bool(0 < value <= sys.float_info.max)


def _try(settings: Settings, budget: Budget, loss: Loss, size: int, width: int, public: bool) -> None:
    """Plan for rows of length 1, without what may suit other rows only: what is refused then is refused for all data."""
    options = {name: value for name, value in settings.options.items() if name != "smoothness"}
    settings = replace(settings, learning_rate=None, clip_bound=None, options=options)
    problem = Problem(settings, loss, size, width, row_norm=1.0, alone=1.0, pure=budget.delta == 0)
    methods.plan(replace(problem, side=_supposed(problem, public))).recipe(1.0)


def _supposed(problem: Problem, public: bool) -> Side:
    """Side information of the right kind."""
    one = np.zeros((1, problem.width))
    rows = PublicRows(Design(one, Frame(intercept=0.0)), np.zeros(1), problem.loss, 1) if public else None
    scale = np.ones(problem.loss.outputs * problem.width) if "scale" in problem.settings.options else None
    return Side(rows, scale, scaled_norm=1.0, stability=1.0)
