"""Public rows and scales through the estimators: what is used, what is paid, what is stated, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from privopt.errors import BudgetExceeded, CompositionError, InputError
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge
from privopt.postprocess.side_information import token_frequency
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent, NonPrivateDpEvent, atoms
from privopt.privacy.ledger import Ledger
from privopt.training.scaling import PublicTable
from tests.problems import binary_rows, regression_rows

X, Y = binary_rows(2000)
PUBLIC = binary_rows(200, seed=9)
USES_PUBLIC = ["adadps", "dp-r-pub", "dp-adam-pub", "pda-dpmd", "warm-start"]
SETTINGS: dict[str, Any] = {"epsilon": 2.0, "random_state": 3, "rounds": 60}


def fitted(method: str = "adadps", rows: Any = X, targets: Any = Y, **settings: Any) -> Any:
    return LogisticRegression(method=method, **{**SETTINGS, **settings}).fit(rows, targets)


@pytest.mark.parametrize("method", USES_PUBLIC)
def test_the_statement_names_the_public_rows_by_number_and_hash(method: str) -> None:
    statement = fitted(method, public=PUBLIC).privacy_.statement
    named = f"the rows given as public: 200 rows, sha256 {PublicTable('', *PUBLIC).digest[:16]}"
    assert statement.public_data == [named]
    assert named in statement.text()
    assert 0.99 * 2.0 <= statement.epsilon <= 2.0


def test_the_hash_is_of_what_the_rows_hold_and_not_of_how() -> None:
    table = PublicTable("", *PUBLIC)
    assert table.digest == PublicTable("other", sp.csr_matrix(PUBLIC[0]), PUBLIC[1].astype(float)).digest
    for other in ((PUBLIC[0] + 1e-12, PUBLIC[1]), (PUBLIC[0], 1 - PUBLIC[1]), (PUBLIC[0][:-1], PUBLIC[1][:-1])):
        assert table.digest != PublicTable("", *other).digest


@pytest.mark.parametrize("method", USES_PUBLIC)
def test_dense_and_sparse_rows_private_and_public_give_the_same_model(method: str) -> None:
    settings: dict[str, Any] = {"bounds": math.sqrt(5)}
    dense = fitted(method, public=PUBLIC, **settings)
    for rows, public in ((sp.csr_matrix(X), PUBLIC), (X, (sp.csr_matrix(PUBLIC[0]), PUBLIC[1]))):
        np.testing.assert_allclose(dense.coef_, fitted(method, rows, public=public, **settings).coef_, rtol=1e-8)


@pytest.mark.parametrize("method", USES_PUBLIC)
def test_public_rows_are_seen_in_the_frame_of_the_private_ones(method: str) -> None:
    """Columns, and targets of a regression, in other units give the same model in those units: centres and scales are shared.

    The units are powers of two, for which surveys of ranges give the same bins.
    """
    units = np.array([1.0, 128.0, 2.0**-10, 4.0, 1.0])
    one = fitted(method, public=PUBLIC, bounds=(-1, 1))
    moved = fitted(method, X * units, public=(PUBLIC[0] * units, PUBLIC[1]), bounds=(-units, units))
    np.testing.assert_allclose(moved.coef_ * units, one.coef_, rtol=1e-5, atol=1e-7)
    (rows, targets), (known, answers) = regression_rows(2000), regression_rows(200, seed=9)
    settings: dict[str, Any] = {**SETTINGS, "method": method, "bounds": (-1, 1)}
    plain = Ridge(**settings, target_bounds=(0, 20), public=(known, answers)).fit(rows, targets)
    scaled = Ridge(**settings, target_bounds=(0, 80), public=(known, answers * 4)).fit(rows, targets * 4)
    np.testing.assert_allclose(plain.coef_ * 4, scaled.coef_, rtol=1e-6)
    assert plain.intercept_ * 4 == pytest.approx(scaled.intercept_)


def test_sparse_public_rows_serve_a_dense_model_with_a_centre() -> None:
    rows = X + 5.0  # 0 lies outside the columns' ranges, so they are centred
    one = fitted(rows=rows, public=(PUBLIC[0] + 5.0, PUBLIC[1]), bounds=(4, 6))
    other = fitted(rows=rows, public=(sp.csr_matrix(PUBLIC[0] + 5.0), PUBLIC[1]), bounds=(4, 6))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-9)


@pytest.mark.parametrize("rule", ["rmsprop", "adagrad", "adam"])
def test_a_rule_is_an_option_that_the_statement_shows(rule: str) -> None:
    model = fitted(public=PUBLIC, options={"rule": rule})
    assert model.privacy_.statement.settings["rule"] == rule
    assert model.score(X, Y) > 0.75


def test_three_classes_and_huber_s_loss_learn_from_public_rows() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.uniform(-1, 1, (4000, 4)), rng.standard_normal((4, 3)) * 4
    targets = np.array(["a", "b", "c"])[(rows @ weights + rng.gumbel(size=(4000, 3))).argmax(axis=1)]
    for method in USES_PUBLIC:
        model = LogisticRegression(5.0, method=method, public=(rows[:300], targets[:300]), random_state=0)
        assert model.fit(rows[300:], targets[300:]).score(rows, targets) > 0.6
    (rows, amounts), public = regression_rows(2000), regression_rows(200, seed=9)
    assert HuberRegressor(3.0, method="adadps", public=public, random_state=0).fit(rows, amounts).score(rows, amounts) > 0.9


def test_the_constructor_only_stores_and_a_clone_has_the_public_rows() -> None:
    model = LogisticRegression(method="adadps", public=PUBLIC)
    assert model.public is PUBLIC
    np.testing.assert_array_equal(clone(model).public[0], PUBLIC[0])


# ---------------------------------------------------------------- scales


def test_a_declared_scale_is_taken_as_public_and_costs_one_survey() -> None:
    statement = fitted(options={"scale": np.ones(5)}, bounds=2.0).privacy_.statement
    assert "the declared scale of the columns" in statement.assumed_public
    assert statement.paid_for == ["the length of a typical row divided by the scale"]
    assert [count for _, count in atoms(statement.event)] == [1, 60]
    assert "scale" in statement.settings
    assert not statement.public_data


def test_a_scale_is_a_matter_of_proportion() -> None:
    """All of A times a constant: the same clipping, noise and steps, in another unit."""
    one, other = (fitted(options={"scale": factor * np.arange(1.0, 6.0)}, bounds=2.0) for factor in (1.0, 1024.0))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6)


def test_a_measured_scale_is_paid_for_before_training() -> None:
    model = fitted(options={"scale": "frequency"}, bounds=2.0)
    statement = model.privacy_.statement
    assert statement.event == model.privacy_.ledger.event
    parts = list(atoms(statement.event))
    assert [type(part) for part, _ in parts] == [GaussianDpEvent] * 3
    assert [count for _, count in parts] == [1, 1, 60]
    assert len(statement.paid_for) == 2
    assert 0.99 * 2.0 <= statement.epsilon <= 2.0
    assert statement.settings["scale"] == "frequency"


def test_with_rare_and_telling_columns_a_scale_of_frequencies_helps() -> None:
    """The paper's toy problem: 50 columns that say nothing are almost always there, 450 that tell are rare."""
    rng = np.random.default_rng(0)
    rates = np.where(np.arange(500) < 50, 0.9, 0.01)
    rows = (rng.random((4000, 500)) < rates).astype(float)
    targets = rows @ np.where(np.arange(500) < 50, 0.01, 1.0)
    settings: dict[str, Any] = {"epsilon": 4.0, "bounds": (0.0, 1.0), "target_bounds": (0.0, 12.0), "random_state": 0}
    scores = {
        name: Ridge(**settings, method=method, options=options).fit(sp.csr_matrix(rows), targets).score(rows, targets)
        for name, method, options in (
            ("sgd", "dp-sgd", None),
            ("public", "adadps", {"scale": token_frequency(rows[:1000])}),
            ("measured", "adadps", {"scale": "frequency"}),
        )
    }
    assert scores["public"] > scores["sgd"] + 0.1
    assert scores["measured"] > scores["sgd"] + 0.1


# ---------------------------------------------------------------- refused, before anything is spent

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"method": "adadps"}, "adadps needs public data.* or a scale"),
    ({"method": "dp-r-pub"}, "dp-r-pub needs public data"),
    ({"method": "dp-adam", "public": PUBLIC}, "does not use public data.*adadps"),
    ({"method": "adadps", "public": PUBLIC, "options": {"scale": np.ones(5)}}, "leave one out"),
    ({"method": "adadps", "public": PUBLIC, "options": {"rule": "nadam"}}, "'rmsprop' or 'adagrad' or 'adam'"),
    ({"method": "adadps", "public": PUBLIC, "options": {"rules": "adam"}}, "has no option rules; its options are .*rule"),
    ({"method": "adadps", "options": {"scale": "idf"}}, "frequency"),
    ({"method": "adadps", "public": PUBLIC[0]}, "pair"),
    ({"method": "adadps", "public": (PUBLIC[0], PUBLIC[1] + 1)}, "classes that the private ones do not have: 0, 1"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_used_is_refused_before_anything_is_spent(settings: dict[str, Any], message: str) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match=message):
        LogisticRegression(**settings, ledger=ledger).fit(X, Y)
    assert ledger.entries == ()


@pytest.mark.parametrize("scale", [np.ones(4), np.array([1.0, 1.0, 0.0, 1.0, 1.0]), np.full(5, np.nan), [["a"]]], ids=str)
def test_a_scale_that_does_not_fit_the_columns_is_refused(scale: Any) -> None:
    with pytest.raises(InputError, match="5 finite numbers > 0"):
        fitted(options={"scale": scale}, bounds=2.0)


def test_public_rows_of_other_columns_are_refused() -> None:
    with pytest.raises(InputError, match="4 columns, but the private ones have 5"):
        fitted(public=(PUBLIC[0][:, :4], PUBLIC[1]), bounds=2.0)


# ---------------------------------------------------------------- without privacy


@pytest.mark.parametrize("method", ["ideal", "adas"])
def test_without_privacy_a_model_claims_nothing(method: str) -> None:
    settings: dict[str, Any] = {"public": PUBLIC} if method == "adas" else {}
    with pytest.raises(CompositionError, match="option without_privacy"):
        fitted(method, **settings)
    model = fitted(method, **settings, options={"without_privacy": True})
    statement = model.privacy_.statement
    assert statement.epsilon == math.inf
    assert not statement.private
    assert "NO GUARANTEE" in str(model.privacy_)
    assert "differentially private" not in str(model.privacy_)
    assert any(part == NonPrivateDpEvent() for part, _ in atoms(statement.event))
    assert model.score(X, Y) > 0.75
    ledger = Ledger(Budget(1e6, 1e-3))
    with pytest.raises(BudgetExceeded):
        fitted(method, **settings, options={"without_privacy": True}, ledger=ledger)
    assert ledger.epsilon() < math.inf
