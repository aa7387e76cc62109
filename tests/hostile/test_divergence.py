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


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("estimator", [LogisticRegression, Ridge])
@pytest.mark.parametrize("method", ["dp-adam", "dp-sgd"])
def test_an_estimator_that_diverges_raises_and_is_charged(estimator: type, method: str) -> None:
    ledger = Ledger(Budget(3.0, 1e-5))
    model = estimator(
        epsilon=2.0, delta=1e-5, bounds=3.0, learning_rate=1e308, rounds=20, method=method, ledger=ledger, random_state=0
    )
    with pytest.raises(Diverged, match="training diverged: the released parameters are not finite"):
        model.fit(*rows())
    assert 1.9 < ledger.epsilon() <= 2.0
    assert not hasattr(model, "coef_")


def test_a_network_that_diverges_raises_and_is_charged() -> None:
    X, y = rows()
    ledger = Ledger(Budget(3.0, 1e-5))
    data = torch.from_numpy(X).float(), torch.from_numpy(y)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(Diverged, match="stays in the ledger"):
        privopt.fit(
            model, nn.CrossEntropyLoss(), data, budget=Budget(2.0, 1e-5), rounds=5, batch_size=100, learning_rate=1e308,
            method="dp-sgd", ledger=ledger, seed=0, progress=False,
        )  # fmt: skip
    assert 1.9 < ledger.epsilon() <= 2.0


def test_so_many_rounds_are_refused_before_they_are_listed() -> None:
    X, y = rows()
    data = torch.from_numpy(X).float(), torch.from_numpy(y)
    for length in ({"rounds": 10**12}, {"epochs": 1e300}):
        with pytest.raises(InputError, match="10000000 rounds"):
            privopt.fit(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, budget=Budget(2.0, 1e-5), batch_size=100, **length)


def test_what_is_finite_passes() -> None:
    check_finite(np.ones(3), torch.ones(3))
    for wrong in (np.array([1.0, np.nan]), torch.tensor([torch.inf])):
        with pytest.raises(Diverged):
            check_finite(np.ones(3), wrong)
