"""What cannot be trained is refused before anything is measured: nothing is paid for it."""

from typing import Any

import numpy as np
import pytest

from privopt.errors import InputError, PrivoptError
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge
from privopt.privacy.ledger import Ledger
from tests.problems import sign_rows

X, Y = sign_rows(300)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "dp-srm", "options": {"refresh": 2.0}}, "refresh"),
        ({"method": "spiderboost", "options": {"period": 0}}, "period"),
        ({"method": "dp-agd", "options": {"growth": 0.0}}, "growth"),
        ({"method": "dp2-rmsprop", "options": {"phase": 0}}, "phase"),
        ({"method": "dp-adam", "options": {"second_decay": np.nan}}, "second_decay"),
        ({"method": "bassily-sgd", "options": {"size": 5}}, "no option size"),
        ({"method": "bassily-sgd", "options": {"batch_size": 5}}, "no option batch_size"),
        ({"method": "dp-adam-bc", "options": {"expected_batch_size": 7}}, "no option expected_batch_size"),
        ({"method": "output-perturbation", "options": {"pure": True}}, "no option pure"),
        ({"method": "dp-gd", "batch_size": 10}, "every row in every round"),
        ({"method": "ideal"}, "without_privacy"),
        ({"method": "sagd-sparse", "public": (X, Y), "options": {"answers": 0}}, "answers"),
        ({"method": "adadps", "public": (X[:, :2], Y)}, "the public rows have 2 columns"),
        ({"method": "adadps", "options": {"scale": [1.0, 2.0]}}, "scale must be 3"),
        ({"method": "adadps", "options": {"scale": [1.0, 2.0, 0.0]}}, "scale must be 3"),
    ],
)
def test_nothing_is_paid_for_what_is_refused(settings: dict[str, Any], message: str) -> None:
    ledger = Ledger()
    with pytest.raises(PrivoptError, match=message):
        LogisticRegression(**settings, ledger=ledger).fit(X, Y)
    assert ledger.entries == ()


def test_a_loss_without_constants_is_refused_before_its_target_is_measured() -> None:
    ledger = Ledger()
    with pytest.raises(PrivoptError, match="HuberRegressor"):
        Ridge(method="output-perturbation", ledger=ledger).fit(X, X[:, 0])
    assert ledger.entries == ()


@pytest.mark.parametrize("length", [1e-4, 1.0, 1e4])
def test_steps_that_suit_the_rows_are_not_refused(length: float) -> None:
    longest = 2 / (length**2 / 4)  # for rows of this length
    settings: dict[str, Any] = {"bounds": length, "fit_intercept": False, "method": "output-perturbation"}
    LogisticRegression(**settings, learning_rate=0.9 * longest).fit(length * X / 10, Y)
    with pytest.raises(PrivoptError, match="learning_rate"):
        LogisticRegression(**settings, learning_rate=1.1 * longest).fit(length * X / 10, Y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {1: 2}}, "no option 1"),
        ({"classes": [None, 1]}, "classes must be a list"),
        ({"epsilon": True}, "epsilon is True"),
        ({"delta": False}, "delta is False"),
        ({"clip_bound": True}, "clip_bound is True"),
        ({"rounds": True}, "rounds is True"),
        ({"alpha": True}, "alpha is True"),
        ({"bounds": True}, "bounds is True"),
        ({"fit_intercept": "no"}, "fit_intercept is 'no'"),
        ({"random_state": True}, "the seed is True"),
    ],
)
def test_values_of_the_wrong_type_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LogisticRegression(**settings).fit(X, Y)


@pytest.mark.parametrize("threshold", ["a", True, np.nan, -1.0])
def test_a_threshold_is_a_number(threshold: Any) -> None:
    with pytest.raises(InputError, match="threshold is"):
        HuberRegressor(threshold=threshold).fit(X, X[:, 0])
