"""Options that a recipe cannot take are refused in words, before anything is planned or paid."""

import math
from inspect import signature
from typing import Any

import pytest

from privopt.errors import InputError
from privopt.methods import METHODS
from privopt.methods.problem import logistic_facts
from privopt.postprocess.release import last

DECIDED = {  # by the method's defaults, or by the user in words of its own
    *("rounds", "max_rounds", "steps", "noise_multiplier", "clip_bound", "learning_rate", "sampling", "regularizer", "public"),
    *("size", "dimension", "batch_size", "expected_batch_size", "lipschitz", "pure", "cohort"),
}
PUBLIC = {"sagd-sparse", "adadps", "fed-adadps", "dp-r-pub", "dp-adam-pub", "pda-dpmd", "warm-start", "adas"}


def check(method: str, options: dict[str, Any]) -> None:
    agreed = {} if METHODS[method].private else {"without_privacy": True}
    public = method in PUBLIC and "scale" not in options
    METHODS[method].check({"options": agreed | options}, logistic_facts(), public=public)


WRONG: list[tuple[str, str, Any, str]] = [
    ("dp-adam", "first_decay", "high", "a number"),
    ("dp-adam", "first_decay", True, "a number"),
    ("dp-adam", "bias_correction", 1, "true or false"),
    ("dp-adam", "release", "last", "an object of Python"),
    ("spiderboost", "period", 2.5, "a whole number"),
    ("dp-agd", "first_share", "all", "a number in .*, or None"),
    ("output-perturbation", "sensitivity", "exact", "'tight' or 'paper'"),
    ("adadps", "rule", ["adam"], "'rmsprop' or 'adagrad' or 'adam'"),
    ("warm-start", "public_learning_rate", "slow", "a finite number > 0, or a function of the round"),
]


OUTSIDE: list[tuple[str, str, list[float], list[float]]] = [
    ("dp-adam", "first_decay", [0, 0.5], [1, -0.1, 2]),
    ("dp-srm", "refresh", [0.1, 1], [0, 1.1]),
    ("adadps", "weight", [0, 1], [-0.1, 1.1]),
    ("dp-agd", "gradient_share", [0.5], [0, 1]),
    ("dp-adam", "stability", [0, 2], [-1, math.inf]),
    ("dp-srm", "anchor_noise", [0.1, 2], [0, -1, math.inf]),
    ("dp-adam", "ceiling", [0.1, math.inf], [0, -1]),
    ("sagd-sparse", "threshold", [-1, 0, 1], [math.inf, -math.inf]),
    ("dp2-rmsprop", "phase", [1, 20], [0, -1]),
]


@pytest.mark.parametrize(("method", "name", "inside", "outside"), OUTSIDE)
def test_a_number_that_cannot_be_is_refused(method: str, name: str, inside: list[float], outside: list[float]) -> None:
    for value in inside:
        check(method, {name: value})
    whole = all(isinstance(value, int) for value in (*inside, *outside))
    for value in outside if whole else [*outside, math.nan]:
        with pytest.raises(InputError, match=f"option {name} of {method} is {value}, but it is"):
            check(method, {name: value})


@pytest.mark.parametrize("method", METHODS)
def test_the_options_are_the_arguments_that_nobody_else_decides(method: str) -> None:
    smoothness = {"smoothness"} if method == "output-perturbation" else set()  # of the loss, which is known
    assert set(METHODS[method].options) == set(signature(METHODS[method].recipe).parameters) - DECIDED - smoothness


@pytest.mark.parametrize(("method", "name", "value", "words"), WRONG)
def test_a_value_of_another_kind_is_refused(method: str, name: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"option {name} of {method} is .*, but it is {words}"):
        check(method, {name: value})


def test_what_fits_is_accepted() -> None:
    check("dp-adam", {"first_decay": 0, "release": last(), "bias_correction": False})
    check("dp-agd", {"first_share": None, "candidates": 3})
    check("warm-start", {"public_learning_rate": lambda round_: 0.1})
    check("adadps", {"scale": [1.0, 2.0], "rule": "adam"})


def test_what_somebody_else_decides_is_no_option() -> None:
    with pytest.raises(InputError, match="dp-gd has no option rounds; its options are"):
        check("dp-gd", {"rounds": 3})
