"""Output perturbation, RRPSGD and Bassily SGD from the estimators: what they claim, also without δ, and what they refuse."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privopt import Ledger
from privopt.errors import InputError
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge
from privopt.methods import METHODS
from privopt.privacy.events import GaussianDpEvent, PureDpEvent, SelfComposedDpEvent, atoms
from tests.laws.table import ROW_METHODS
from tests.problems import binary_rows, regression_rows

binary, linear = partial(binary_rows, columns=4), partial(regression_rows, columns=4)
PURE: dict[str, Any] = {"method": "output-perturbation", "delta": 0, "random_state": 0}

# ---------------------------------------------------------------- δ = 0


@pytest.mark.parametrize("bounds", [1.6, (-1, 1)], ids=["row norm", "ranges"])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_without_delta_a_classifier_learns_and_claims_pure_privacy(bounds: Any, neighbours: Any) -> None:
    X, y = binary(3000)
    model = LogisticRegression(epsilon=1.0, bounds=bounds, neighbours=neighbours, **PURE).fit(X, y)
    statement = model.privacy_.statement
    assert model.score(X, y) > 0.8
    assert statement.budget.delta == 0
    assert 0.99 <= statement.epsilon <= 1.0
    [(event, count)] = atoms(statement.event)
    assert isinstance(event, PureDpEvent)
    assert event.epsilon == pytest.approx(1.0 if neighbours == "add-remove" else 0.5, rel=0.01)
    assert count == 1
    assert "δ = 0" in str(statement)


def test_without_delta_a_regression_learns_and_its_row_bound_follows_from_the_ranges() -> None:
    X, y = linear(3000)
    model = HuberRegressor(epsilon=1.0, bounds=(-1, 1), target_bounds=(0, 20), **PURE).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.privacy_.statement.settings["typical row norm"] == 2.0  # √4
    assert not model.privacy_.statement.paid_for


@pytest.mark.parametrize(
    ("kind", "settings", "missing"),
    [
        (LogisticRegression, {}, "declare bounds"),
        (HuberRegressor, {}, "declare bounds and target_bounds"),
        (HuberRegressor, {"bounds": 1.6}, "declare target_bounds"),
    ],
)
@pytest.mark.parametrize("store", [np.asarray, sp.csr_matrix], ids=["dense", "csr"])
def test_without_delta_what_is_not_declared_is_asked_for_and_nothing_is_spent(
    kind: Any, settings: dict[str, Any], missing: str, store: Any
) -> None:
    X, y = binary(300)
    ledger = Ledger()
    with pytest.raises(InputError, match=rf"delta is 0.*: {missing}\.$"):
        kind(**settings, **PURE, ledger=ledger).fit(store(X), y)
    assert not ledger.entries


@pytest.mark.parametrize("method", [name for name in ROW_METHODS if not METHODS[name].pure])
def test_methods_that_need_delta_say_so_and_name_those_that_do_not(method: str) -> None:
    X, y = binary(300)
    with pytest.raises(InputError, match=rf"delta is 0, but {method} .* Without delta: .*output-perturbation"):
        LogisticRegression(delta=0, method=method, bounds=2.0).fit(X, y)


# ---------------------------------------------------------------- the guarantee, end to end


@pytest.mark.parametrize(("delta", "alpha"), [(0, 0.0), (0, 0.05), (1e-5, 0.0)])
def test_the_noise_of_a_fit_is_that_of_its_statement_and_rows_are_as_long_as_it_says(delta: float, alpha: float) -> None:
    """100 seeded fits; standard deviations within 35 %, five standard errors, of what the statement implies."""
    X, y = binary(100, columns=2)
    X = X * 100  # rows far longer than is declared: they are cut, not believed
    settings: dict[str, Any] = {"epsilon": 5.0, "bounds": 2.0, "alpha": alpha, "rounds": 20, "method": "output-perturbation"}
    fits = [LogisticRegression(**settings, delta=delta, random_state=seed).fit(X, y) for seed in range(100)]
    shown = fits[0].privacy_.statement.settings
    limit = math.hypot(2.0, 1.0)
    step = shown["learning rate"]
    moved = limit / 100 * (20 * step if not alpha else (1 - (1 - step * alpha) ** 20) / alpha)
    assert shown["one example moves the solution by"] == pytest.approx(moved, rel=1e-6)
    assert shown["longest row"] == limit
    spread = np.std([np.append(fit.coef_[0], fit.intercept_ / 1.0) for fit in fits], axis=0)  # the constant feature is 1
    unit = shown["noise multiplier"] * moved
    np.testing.assert_allclose(spread, unit * (1.0 if delta else math.sqrt(4)), rtol=0.35)  # E z zᵀ = (d + 1)(Δ/ε)² I
    if delta:
        assert fits[0].privacy_.statement.event == GaussianDpEvent(shown["noise multiplier"])


def test_dense_and_sparse_rows_give_the_same_model() -> None:
    """Rows longer than 0.7 are cut."""
    X, y = binary(3000)
    settings: dict[str, Any] = {"epsilon": 2.0, "method": "output-perturbation", "bounds": 0.7, "random_state": 3}
    dense = LogisticRegression(**settings).fit(X, y)
    sparse = LogisticRegression(**settings).fit(sp.csr_matrix(X), y)
    np.testing.assert_allclose(dense.coef_, sparse.coef_, rtol=1e-9)
    assert dense.score(X, y) > 0.75


def test_one_outlier_moves_the_model_no_further_than_the_statement_says() -> None:
    X, y = binary(2000)
    spoiled, flipped = X.copy(), y.copy()
    spoiled[0], flipped[0] = 1e12, 1 - y[0]
    settings: dict[str, Any] = {"epsilon": 2.0, "bounds": 2.0, "method": "output-perturbation", "random_state": 0}
    one, other = LogisticRegression(**settings).fit(X, y), LogisticRegression(**settings).fit(spoiled, flipped)
    moved = np.linalg.norm(np.append(one.coef_ - other.coef_, one.intercept_ - other.intercept_))  # the constant feature is 1
    assert 0 < moved <= 2 * one.privacy_.statement.settings["one example moves the solution by"]


def test_the_ridge_is_on_the_intercept_too_and_the_statement_says_so() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (3000, 2)), (rng.random(3000) < 0.95).astype(int)
    settings: dict[str, Any] = {"epsilon": 50.0, "bounds": 1.5, "rounds": 100, "random_state": 0}
    for method, batch in (("output-perturbation", None), ("bassily-sgd", 3000)):
        strong = LogisticRegression(method=method, alpha=100.0, batch_size=batch, **settings).fit(X, y)
        assert abs(strong.intercept_[0]) < 0.1
        assert strong.privacy_.statement.settings["ridge"] == "on the intercept, too"
    assert abs(LogisticRegression(method="dp-adam", alpha=100.0, **settings).fit(X, y).intercept_[0]) > 1


def test_the_paper_s_sensitivity_has_more_noise_for_as_many_steps() -> None:
    X, y = binary(3000)
    settings: dict[str, Any] = {
        "epsilon": 1.0,
        "bounds": 1.6,
        "method": "output-perturbation",
        "rounds": 50,
        "learning_rate": 1.0,
    }
    moved = {}
    for kind in ("tight", "paper"):
        shown = LogisticRegression(**settings, options={"sensitivity": kind}).fit(X, y).privacy_.statement.settings
        moved[kind] = shown["one example moves the solution by"]
    assert moved["paper"] == pytest.approx(1.5 * moved["tight"])


def test_steps_grow_with_rows_and_budget_and_never_beyond_the_most() -> None:
    steps = {}
    for size, eps in ((500, 0.5), (500, 5.0), (4000, 0.5)):
        X, y = binary(size)
        model = LogisticRegression(epsilon=eps, bounds=1.6, method="output-perturbation", random_state=0).fit(X, y)
        steps[size, eps] = model.privacy_.statement.settings["gradient steps, without noise"]
    assert 1 <= steps[500, 0.5] < steps[500, 5.0] <= 400
    assert steps[500, 0.5] < steps[4000, 0.5] <= 400


# ---------------------------------------------------------------- RRPSGD


def test_rrpsgd_pays_for_the_rounds_that_were_drawn_and_for_no_other() -> None:
    X, y = binary(3000)
    drawn = set()
    for seed in range(4):
        model = LogisticRegression(epsilon=1.0, bounds=1.6, method="rrpsgd", rounds=60, random_state=seed).fit(X, y)
        statement = model.privacy_.statement
        [(event, count)] = atoms(statement.event)
        assert isinstance(event, GaussianDpEvent)
        assert count == model.n_iter_ <= 60
        assert 0.99 <= statement.epsilon <= 1.0
        assert statement.settings["most rounds"] == 60
        assert statement.event == SelfComposedDpEvent(GaussianDpEvent(statement.settings["noise multiplier"]), count)
        drawn.add(model.n_iter_)
    assert len(drawn) > 1


def test_rrpsgd_draws_its_rounds_from_the_generator_of_the_run() -> None:
    X, y = binary(500)
    drawn = [
        LogisticRegression(bounds=1.6, method="rrpsgd", rounds=60, random_state=seed).fit(X, y).n_iter_ for seed in (7, 7, 8)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_rrpsgd_takes_a_penalty_that_is_not_convex() -> None:
    X, y = binary(500)
    model = LogisticRegression(epsilon=3.0, bounds=1.6, method="rrpsgd", alpha=0.01, penalty="nonconvex", random_state=0)
    assert model.fit(X, y).score(X, y) > 0.7


# ---------------------------------------------------------------- refused at the start


@pytest.mark.parametrize("method", ["output-perturbation", "bassily-sgd"])
def test_a_penalty_that_is_not_convex_is_refused_before_data_are_read(method: str) -> None:
    X, y = binary(300)
    ledger = Ledger()
    with pytest.raises(InputError, match="Use 'ridge'"):
        LogisticRegression(method=method, alpha=0.1, penalty="nonconvex", ledger=ledger).fit(X, y)
    assert not ledger.entries


def test_squared_loss_is_refused_with_the_remedy_before_data_are_read() -> None:
    X, y = linear(300)
    ledger = Ledger()
    with pytest.raises(InputError, match="squared loss has not"):
        Ridge(method="output-perturbation", ledger=ledger).fit(X, y)
    assert not ledger.entries


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "output-perturbation", "batch_size": 10}, "uses every row in every round"),
        ({"method": "output-perturbation", "clip_bound": 1.0}, "cuts rows, not gradients"),
        (
            {"method": "output-perturbation", "options": {"senitivity": "paper"}},
            "no option senitivity",
        ),
        ({"method": "bassily-sgd", "learning_rate": 0.1}, "steps of its own"),
    ],
)
def test_settings_that_have_no_meaning_for_a_method_are_refused(settings: dict[str, Any], message: str) -> None:
    X, y = binary(300)
    ledger = Ledger()
    with pytest.raises(InputError, match=message):
        LogisticRegression(ledger=ledger, **settings).fit(X, y)
    assert not ledger.entries


def test_a_step_that_is_not_stable_is_refused_with_the_longest_that_is() -> None:
    X, y = binary(300)
    with pytest.raises(ValueError, match=r"known to be stable up to 2\.5 only"):
        LogisticRegression(method="output-perturbation", bounds=1.6, learning_rate=2.6, random_state=0).fit(X, y)
