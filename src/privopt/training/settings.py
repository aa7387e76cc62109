"""Settings of a training run on a table, and their validation before anything is measured or paid."""

import math
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from privopt.errors import InputError
from privopt.limits import MOST_ROUNDS
from privopt.methods import Method, check_delta, find_method
from privopt.methods.problem import Choices, LossFacts, ModelKind

Penalty = Literal["ridge", "nonconvex"]
Numeric = Literal["auto", "linear", "hats"]  # one feature for each numeric column, or a piecewise-linear function of it
Bounds = float | tuple[Any, Any] | None  # the length of a row, or the ranges (low, high) of the columns


@dataclass(frozen=True)
class Settings:
    """The settings of a training run; `None` is left to the method's defaults."""

    method: str | Method = "dp-adam"
    clip_bound: float | None = None
    rounds: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    bounds: Bounds = None
    target_bounds: tuple[float, float] | None = None
    numeric: Numeric = "auto"
    fit_intercept: bool = True
    alpha: float = 0.0
    penalty: Penalty = "ridge"
    accountant: Literal["auto", "pld", "rdp"] = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own

    @property
    def chosen(self) -> Choices:
        """The settings that are the method's."""
        return Choices(self.clip_bound, self.rounds, self.batch_size, self.learning_rate, self.options)


def check_settings(settings: Settings, loss: LossFacts, model: ModelKind, *, delta: float, public: bool) -> Method:
    """Validate the settings, and return the method that they name; nothing here depends on a value of the data."""
    method = find_method(settings.method)
    check_model(method, model)
    check_delta(method, delta)
    penalty = settings.penalty if settings.alpha else None
    names = ("clip_bound", "rounds", "batch_size", "learning_rate", "options")
    method.check({name: getattr(settings, name) for name in names} | {"penalty": penalty}, loss, public=public)
    for name, kind in {"clip_bound": Real, "learning_rate": Real, "rounds": Integral, "batch_size": Integral}.items():
        value = getattr(settings, name)
        if value is not None and not (is_number(value, kind) and _positive(value)):
            number = "whole number" if kind is Integral else "finite number"
            raise InputError(f"{name} is {reprlib.repr(value)}, but it is a {number} > 0, or None for the default rule.")
    if settings.rounds is not None and settings.rounds > MOST_ROUNDS:
        raise InputError(f"rounds is {reprlib.repr(settings.rounds)}, but a run has at most {MOST_ROUNDS}.")
    if isinstance(settings.bounds, bool):
        raise InputError(f"bounds is {settings.bounds}, but it is a row norm or a pair of ranges; None estimates the ranges.")
    if not isinstance(settings.fit_intercept, bool | np.bool_):
        raise InputError(f"fit_intercept is {reprlib.repr(settings.fit_intercept)}, but it is True or False.")
    if not (is_number(settings.alpha) and 0 <= settings.alpha < math.inf):
        raise InputError(f"alpha is {settings.alpha!r}, but the strength of a regulariser is a finite number ≥ 0.")
    if settings.numeric not in get_args(Numeric):
        raise InputError(f"numeric is {reprlib.repr(settings.numeric)}; it is 'auto', 'linear' or 'hats'.")
    if settings.numeric == "hats" and (public or "scale" in settings.options):
        raise InputError("numeric='hats' makes other columns, for which there are no public rows or scales: use 'linear'.")
    if settings.penalty not in ("ridge", "nonconvex"):
        raise InputError(f"penalty is {settings.penalty!r}; it is 'ridge' or 'nonconvex'.")
    return method


def check_model(method: Method, model: ModelKind) -> None:
    """Refuse a method that is not defined for this kind of model."""
    if model not in method.models:
        others: dict[ModelKind, str] = {
            "linear": "linear models. dp-adam and dp-sgd are",
            "network": "networks. dp-adam, dp-sgd and rrpsgd are",
            "federated": "federations. dp-fedavg, dp-fedadam and fed-adadps are",
        }
        needs = "" if method.needs == "nothing" else f" needs {method.needs}, so it"
        raise InputError(f"{method.name}{needs} is not for {others[model]}.")


ROWS_OF_A_PERSON = 32  # at most: the mean of more is hardly another, and takes longer


def check_rows_per_person(most: Any) -> int:
    """Validate how many rows of a person count; None is the default."""
    if most is None:
        return ROWS_OF_A_PERSON
    if not isinstance(most, Integral) or isinstance(most, bool) or most < 1:
        raise InputError(f"rows_per_person is {most!r}, but it is a whole number, at least 1.")
    return int(most)


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether a value is a number; True and False are none.

    >>> is_number(1), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, kind) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return bool(0 < value <= sys.float_info.max)
