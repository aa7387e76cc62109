"""Training that diverges: an error after the fact, and a ledger that holds what was paid."""

import numpy as np
import pytest
import torch
from torch import nn

import privopt
from privopt import Budget, Ledger
from privopt.errors import Diverged, InputError
from privopt.linear_model import LogisticRegression, Ridge
from privopt.loop import check_finite
from tests.problems import sign_rows, tanh_network


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("estimator", [LogisticRegression, Ridge])
@pytest.mark.parametrize("method", ["dp-adam", "dp-sgd"])
def test_an_estimator_that_diverges_raises_and_is_charged(estimator: type, method: str) -> None:
    ledger = Ledger(Budget(3.0, 1e-5))
    model = estimator(
        epsilon=2.0, delta=1e-5, bounds=3.0, learning_rate=1e308, rounds=20, method=method, ledger=ledger, random_state=0
    )
    with pytest.raises(Diverged, match="training diverged: the released parameters are not finite"):
        model.fit(*sign_rows(400))
    assert 1.9 < ledger.epsilon() <= 2.0
    assert not hasattr(model, "coef_")


def test_a_network_that_diverges_raises_and_is_charged() -> None:
    X, y = sign_rows(400)
    ledger = Ledger(Budget(3.0, 1e-5))
    data = torch.from_numpy(X).float(), torch.from_numpy(y)
    model = tanh_network(3, 4)
    with pytest.raises(Diverged, match="stays in the ledger"):
        privopt.fit(
            model, nn.CrossEntropyLoss(), data, budget=Budget(2.0, 1e-5), rounds=5, batch_size=100, learning_rate=1e308,
            method="dp-sgd", ledger=ledger, seed=0, progress=False,
        )  # fmt: skip
    assert 1.9 < ledger.epsilon() <= 2.0


def test_so_many_rounds_are_refused_before_they_are_listed() -> None:
    X, y = sign_rows(400)
    data = torch.from_numpy(X).float(), torch.from_numpy(y)
    for length in ({"rounds": 10**12}, {"epochs": 1e300}):
        with pytest.raises(InputError, match="10000000 rounds"):
            privopt.fit(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, budget=Budget(2.0, 1e-5), batch_size=100, **length)


def test_what_is_finite_passes() -> None:
    check_finite(np.ones(3), torch.ones(3))
    for wrong in (np.array([1.0, np.nan]), torch.tensor([torch.inf])):
        with pytest.raises(Diverged):
            check_finite(np.ones(3), wrong)
