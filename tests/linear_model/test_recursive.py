"""DP-SRM, Private SpiderBoost and DP-AGD behind the estimators: dense and sparse rows, batches, regularisers, refusals."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.linear_model import HuberRegressor, LogisticRegression
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, PureDpEvent, atoms
from tests.problems import binary_rows

METHODS = ["dp-srm", "spiderboost", "dp-agd"]
X, Y = binary_rows(3000)


@pytest.mark.parametrize("method", METHODS)
def test_dense_and_sparse_rows_give_the_same_model(method: str) -> None:
    settings: dict[str, Any] = {"epsilon": 1.0, "bounds": 2.0, "method": method, "rounds": 20, "random_state": 3}
    dense, sparse = (LogisticRegression(**settings).fit(rows, Y) for rows in (X, sp.csr_matrix(X)))
    np.testing.assert_allclose(dense.coef_, sparse.coef_, rtol=1e-8)
    assert dense.privacy_.statement.event == sparse.privacy_.statement.event


@pytest.mark.parametrize("method", METHODS)
def test_several_classes_are_learnt(method: str) -> None:
    classes = np.digitize(X @ [2.0, -1.0, 0.0, 1.0, 0.0], [-1.0, 1.0])
    model = LogisticRegression(epsilon=5.0, method=method, bounds=2.0, random_state=0).fit(X, classes)
    assert model.score(X, classes) > 0.65


@pytest.mark.parametrize(("method", "penalty"), [("dp-srm", "ridge"), ("spiderboost", "nonconvex"), ("dp-agd", "nonconvex")])
def test_a_regulariser_makes_coefficients_smaller(method: str, penalty: Any) -> None:
    settings: dict[str, Any] = {"epsilon": 5.0, "method": method, "bounds": 2.0, "penalty": penalty, "random_state": 0}
    free, held = (LogisticRegression(**settings, alpha=alpha).fit(X, Y) for alpha in (0.0, 0.1))
    assert np.linalg.norm(held.coef_) < 0.7 * np.linalg.norm(free.coef_)
    assert held.score(X, Y) > 0.75


def kinds(model: Any) -> list[tuple[type, int]]:
    return [(type(part), count) for part, count in atoms(model.privacy_.statement.event)]


def test_spiderboost_on_batches_has_anchors_on_all_rows() -> None:
    model = LogisticRegression(epsilon=2.0, method="spiderboost", bounds=2.0, batch_size=300, rounds=25, random_state=0).fit(X, Y)
    anchor, change = GaussianDpEvent, PoissonSampledDpEvent
    assert kinds(model) == [(anchor, 1), (change, 9), (anchor, 1), (change, 9), (anchor, 1), (change, 4)]
    assert model.score(X, Y) > 0.75


def test_dp_agd_pays_for_one_gaussian_and_for_each_choice() -> None:
    model = LogisticRegression(epsilon=2.0, method="dp-agd", bounds=2.0, rounds=25, random_state=0).fit(X, Y)
    assert kinds(model) == [(GaussianDpEvent, 1), (PureDpEvent, 25)]
    assert 0.985 * 2.0 <= model.privacy_.statement.epsilon <= 2.0


def test_a_method_s_own_settings_are_options_and_the_statement_shows_them() -> None:
    options = {"change_bound": 0.05, "refresh": 0.3}
    model = LogisticRegression(epsilon=2.0, method="dp-srm", bounds=2.0, rounds=20, options=options, random_state=0).fit(X, Y)
    shown = model.privacy_.statement.settings
    assert (shown["change bound"], shown["refresh"]) == (0.05, 0.3)
    model = HuberRegressor(epsilon=2.0, method="dp-agd", bounds=2.0, options={"candidates": 5}, random_state=0).fit(X, X[:, 0])
    assert model.privacy_.statement.settings["candidates"] == 5


@pytest.mark.parametrize(
    ("settings", "message"), [({"learning_rate": 0.1}, "step sizes itself"), ({"batch_size": 100}, "every row in every round")]
)
def test_dp_agd_refuses_what_it_decides_itself(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LogisticRegression(epsilon=1.0, method="dp-agd", **settings).fit(X, Y)
