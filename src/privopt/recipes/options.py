"""Options: a method's own settings, by name, as users give them to estimators, to `fit` and on the command line."""

import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from inspect import signature
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from privopt.errors import InputError
from privopt.recipes.registry import Method

ANYTHING: tuple[str, Callable[[Any], bool]] = ("anything", lambda value: True)
KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    float: ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    type(None): ("none", lambda value: value is None),
    Any: ANYTHING,
}

RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {  # what a number of this name may be, whichever method has it
    **dict.fromkeys(("first_decay", "second_decay", "momentum_decay", "decay"), ("in [0, 1)", lambda value: 0 <= value < 1)),
    **dict.fromkeys(("refresh", "first_share"), ("in (0, 1]", lambda value: 0 < value <= 1)),
    "weight": ("in [0, 1]", lambda value: 0 <= value <= 1),
    "gradient_share": ("in (0, 1)", lambda value: 0 < value < 1),
    **dict.fromkeys(("stability", "smoothness"), ("finite and ≥ 0", lambda value: 0 <= value < math.inf)),
    **dict.fromkeys(
        (
            *("change_bound", "anchor_noise", "loss_bound", "growth", "radius", "floor"),
            *("preconditioned_clip_bound", "preconditioned_learning_rate", "public_learning_rate"),
        ),
        ("finite and > 0", lambda value: 0 < value < math.inf),
    ),
    **dict.fromkeys(("longest_step", "ceiling"), ("> 0", lambda value: value > 0)),
    "threshold": ("finite", math.isfinite),
    **dict.fromkeys(
        ("candidates", "period", "phase", "answers", "horizon", "public_epochs"), ("at least 1", lambda value: value >= 1)
    ),
}


def check_options(method: Method, options: Mapping[str, Any], decided: Collection[str]) -> None:
    """Refuse options that the method's recipe has not, that are `decided` elsewhere, or whose value cannot be.

    >>> from privopt.recipes.registry import METHODS
    >>> check_options(METHODS["dp-adam"], {"first_decay": "high"}, ())
    Traceback (most recent call last):
    privopt.errors.InputError: option first_decay of dp-adam is 'high', but it is a number.
    >>> check_options(METHODS["dp-adam"], {"first_decay": 2.0}, ())
    Traceback (most recent call last):
    privopt.errors.InputError: option first_decay of dp-adam is 2.0, but it is in [0, 1).
    """
    parameters = signature(method.recipe).parameters
    own = [name for name in parameters if name not in decided]
    if unknown := [name for name in options if name not in own]:
        raise InputError(f"{method.name} has no option {', '.join(unknown)}; its options are {', '.join(own) or 'none'}.")
    for name, value in options.items():
        kinds = _kinds(parameters[name].annotation)
        if not any(fits(value) for _, fits in kinds):
            words = " or ".join(words for words, _ in kinds)
            raise InputError(f"option {name} of {method.name} is {reprlib.repr(value)}, but it is {words}.")
        words, holds = RANGES.get(name, ANYTHING)
        if isinstance(value, Real) and not holds(value):
            raise InputError(f"option {name} of {method.name} is {reprlib.repr(value)}, but it is {words}.")


def _kinds(hint: Any) -> list[tuple[str, Callable[[Any], bool]]]:
    """What a value may be, in words, and whether one is that."""
    if get_origin(hint) in (Union, UnionType):
        return [kind for part in get_args(hint) for kind in _kinds(part)]
    if get_origin(hint) is Literal:
        return [(" or ".join(map(repr, get_args(hint))), lambda value: value in get_args(hint))]
    if hint in KINDS:
        return [KINDS[hint]]
    if get_origin(hint) is Callable:
        return [("a function of the round", callable)]
    return [(f"a {hint.__name__}, an object of Python", lambda value: not isinstance(value, str | Real | list | dict | None))]
