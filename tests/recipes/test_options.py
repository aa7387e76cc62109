"""Options that a recipe cannot take are refused in words, before anything is planned or paid."""

from typing import Any

import pytest

from privopt.errors import InputError
from privopt.postprocess.release import last
from privopt.recipes import METHODS, check_options

WRONG: list[tuple[str, str, Any, str]] = [
    ("dp-adam", "first_decay", "high", "a number"),
    ("dp-adam", "first_decay", True, "a number"),
    ("dp-adam", "bias_correction", 1, "true or false"),
    ("dp-adam", "release", "last", "a ReleaseRule, an object of Python"),
    ("spiderboost", "period", 2.5, "a whole number"),
    ("dp-agd", "first_share", "all", "a number or none"),
    ("output-perturbation", "sensitivity", "exact", "'tight' or 'paper'"),
    ("adadps", "rule", ["adam"], "'rmsprop' or 'adagrad' or 'adam'"),
    ("warm-start", "public_learning_rate", "slow", "a number or a function of the round"),
]


@pytest.mark.parametrize(("method", "name", "value", "words"), WRONG)
def test_a_value_of_another_kind_is_refused(method: str, name: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"option {name} of {method} is .*, but it is {words}"):
        check_options(METHODS[method], {name: value}, ())


def test_what_fits_is_accepted() -> None:
    check_options(METHODS["dp-adam"], {"first_decay": 0, "release": last(), "bias_correction": False}, ())
    check_options(METHODS["dp-agd"], {"first_share": None, "candidates": 3}, ())
    check_options(METHODS["warm-start"], {"public_learning_rate": lambda round_: 0.1}, ())
    check_options(METHODS["adadps"], {"scale": [1.0, 2.0], "rule": "adam"}, ())


def test_what_somebody_else_decides_is_no_option() -> None:
    with pytest.raises(InputError, match="dp-gd has no option rounds; its options are"):
        check_options(METHODS["dp-gd"], {"rounds": 3}, {"rounds"})
