"""The estimators: scikit-learn's contract, what they claim, and what they refuse."""

import math
import re
import warnings
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression as PlainLogistic
from sklearn.linear_model import Ridge as PlainRidge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from privopt import Budget, Ledger, epsilon
from privopt.errors import BudgetExceeded, InputError, LedgerError, PrivoptWarning
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge
from privopt.methods import METHODS
from privopt.privacy.budget import default_delta
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, atoms, compose
from privopt.training.linear import describe_classes, too_noisy
from tests.laws.table import ROW_METHODS
from tests.problems import binary_rows, regression_rows

ESTIMATORS: list[Any] = [LogisticRegression, Ridge, HuberRegressor]


@pytest.mark.filterwarnings("ignore::privopt.errors.PrivoptWarning")  # their data sets are tiny, and some are drowned in noise
@parametrize_with_checks([kind(random_state=0) for kind in ESTIMATORS])  # type: ignore[untyped-decorator]
def test_every_check_of_scikit_learn_passes(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_fit_claims_what_it_was_given_and_no_more() -> None:
    X, y = binary_rows()
    model = LogisticRegression(epsilon=0.7, delta=1e-6, random_state=0).fit(X, y)
    statement = model.privacy_.statement
    assert 0.99 * 0.7 <= statement.epsilon <= 0.7
    assert statement.event == model.privacy_.ledger.event
    assert "0.6" in str(model.privacy_) or "0.7" in str(model.privacy_)


def test_default_delta_is_a_power_of_ten_below_a_tenth_of_one_in_n() -> None:
    X, y = binary_rows(2000)
    assert LogisticRegression(random_state=0).fit(X, y).privacy_.statement.budget.delta == 1e-5


def beside(method: str, public: tuple[Any, Any]) -> dict[str, Any]:
    """What a method cannot do without."""
    needs = {} if method == "ideal" or "public" not in signature(METHODS[method].recipe).parameters else {"public": public}
    return needs if METHODS[method].private else {**needs, "options": {"without_privacy": True}}


@pytest.mark.parametrize("method", ROW_METHODS)
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_method_learns_with_its_defaults(kind: Any, method: str) -> None:
    X, y = binary_rows(4000) if kind is LogisticRegression else regression_rows(4000)
    if (kind, method) == (Ridge, "output-perturbation"):
        pytest.skip("squared loss has no bounded gradients: tests/linear_model/test_smooth_erm.py")
    public = binary_rows(300, seed=9) if kind is LogisticRegression else regression_rows(300, seed=9)
    model = kind(epsilon=3.0, method=method, random_state=0, **beside(method, public)).fit(X, y)
    assert model.score(X, y) > (0.75 if kind is LogisticRegression else 0.85)


WITHOUT_POISSON = (
    "dp-gd",
    "dp-agd",
    "spiderboost",
    "output-perturbation",
    "sagd-lap",
    "sagd-minibatch",
    "sagd-sparse",
    "ideal",
    "adas",
)


@pytest.mark.parametrize("method", [name for name in ROW_METHODS if name not in WITHOUT_POISSON])
def test_batches_are_poisson_and_paid_as_such(method: str) -> None:
    X, y = binary_rows(3000)
    settings: dict[str, Any] = {"batch_size": 300, "rounds": 100, "bounds": (-1, 1), **beside(method, binary_rows(300, seed=9))}
    model = LogisticRegression(epsilon=2.0, method=method, random_state=0, **settings).fit(X, y)
    sampled = [(part, count) for part, count in atoms(model.privacy_.statement.event) if isinstance(part, PoissonSampledDpEvent)]
    public_rounds = 10 * (300 // 64) if method == "warm-start" else 0
    assert [(part.sampling_probability, count) for part, count in sampled] == [(0.1, model.n_iter_ - public_rounds)]
    assert model.n_iter_ == 100 + public_rounds or (method == "rrpsgd" and model.n_iter_ < 100)
    assert model.score(X, y) > 0.75


def test_much_budget_gives_the_model_without_privacy() -> None:
    X, y = binary_rows(5000)
    private = LogisticRegression(epsilon=1e4, bounds=(-1, 1), rounds=1000, numeric="linear", random_state=0).fit(X, y)
    plain = PlainLogistic(C=np.inf).fit(X, y)
    np.testing.assert_allclose(private.coef_, plain.coef_, atol=0.25)
    np.testing.assert_allclose(private.predict_proba(X), plain.predict_proba(X), atol=0.03)
    X, y = regression_rows(5000)
    ridge = Ridge(epsilon=1e4, bounds=2.0, target_bounds=(0, 20), rounds=1000, random_state=0).fit(X, y)
    np.testing.assert_allclose(ridge.coef_, PlainRidge(alpha=0).fit(X, y).coef_, atol=0.1)
    assert ridge.intercept_ == pytest.approx(10, abs=0.1)


def test_three_classes_have_probabilities_that_add_up_and_learn() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 4))
    y = np.array(["a", "b", "c"])[(X @ rng.standard_normal((4, 3)) * 4 + rng.gumbel(size=(4000, 3))).argmax(axis=1)]
    model = LogisticRegression(epsilon=5.0, random_state=0).fit(X, y)
    assert model.coef_.shape == (3, len(model.get_feature_names_out()))
    assert LogisticRegression(epsilon=5.0, numeric="linear", random_state=0).fit(X, y).coef_.shape == (3, 4)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert model.score(X, y) > 0.65


def test_dense_sparse_and_frames_give_the_same_model_when_scales_are_declared() -> None:
    X, y = binary_rows()
    settings: dict[str, Any] = {"epsilon": 1.0, "bounds": 2.0, "random_state": 3}
    dense = LogisticRegression(**settings).fit(X, y)
    sparse = LogisticRegression(**settings).fit(sp.csr_matrix(X), y)
    frame = LogisticRegression(**settings).fit(pd.DataFrame(X, columns=list("abcde")), y)
    np.testing.assert_allclose(dense.coef_, sparse.coef_, rtol=1e-9)
    np.testing.assert_allclose(dense.coef_, frame.coef_, rtol=1e-9)
    assert frame.feature_names_in_.tolist() == list("abcde")


def test_wildly_scaled_columns_do_not_matter_although_nobody_declared_them() -> None:
    X, y = binary_rows(8000)
    model = LogisticRegression(epsilon=2.0, random_state=0)
    plain = model.fit(X, y).score(X, y)
    scaled = X * np.array([1e-4, 1.0, 50.0, 1e3, 1e6]) + np.array([0.0, 0.0, 500.0, 0.0, -3e6])
    assert model.fit(scaled, y).score(scaled, y) > plain - 0.05


def test_estimated_scales_are_paid_for_and_declared_ones_are_not() -> None:
    X, y = binary_rows()
    asked = LogisticRegression(epsilon=1.0, random_state=0, numeric="hats").fit(X, y).privacy_.statement
    told = LogisticRegression(epsilon=1.0, bounds=math.sqrt(5), random_state=0).fit(X, y).privacy_.statement
    assert len(list(atoms(told.event))) == 2  # the shares of the classes, training
    assert [count for _, count in atoms(asked.event)] == [2, 1, 1, 1, 200]  # and ranges twice, knots, the length of rows
    assert len(asked.paid_for) == 4
    assert told.paid_for == ["the shares of the classes, at which the intercept starts"]
    assert any("declared" in line for line in told.assumed_public)


def test_cross_validation_is_composed_in_the_ledger_that_it_is_given() -> None:
    X, y = binary_rows(3000)
    ledger = Ledger(Budget(10.0, 1e-5))
    model = LogisticRegression(epsilon=1.0, delta=1e-5, ledger=ledger, random_state=0)
    scores = cross_val_score(model, X, y, cv=3)
    assert len(scores) == 3
    single = epsilon(model.fit(X, y).privacy_.statement.event, 1e-5)
    assert ledger.epsilon() > 1.5 * single
    assert len({entry.run for entry in ledger.entries}) == 4


def test_a_copy_of_a_ledger_in_another_process_cannot_spend_unseen() -> None:
    X, y = binary_rows(500)
    model = LogisticRegression(epsilon=1.0, ledger=Ledger(), random_state=0)
    with pytest.raises(LedgerError, match="n_jobs=1"):
        cross_val_score(model, X, y, cv=2, n_jobs=2, error_score="raise")


def test_a_ledger_that_runs_dry_stops_training_with_the_model_so_far() -> None:
    X, y = binary_rows(3000)
    ledger = Ledger(Budget(1.2, 1e-5))
    model = LogisticRegression(epsilon=1.0, delta=1e-5, bounds=(-1, 1), ledger=ledger, random_state=0)
    model.fit(X, y)
    with pytest.warns(PrivoptWarning, match="stopped after") as caught:
        model.fit(X, y)
    assert caught[0].filename == __file__
    assert 0 < model.n_iter_ < 200
    assert ledger.epsilon() <= 1.2
    with pytest.raises(BudgetExceeded):
        model.fit(X, y)
    assert ledger.epsilon() <= 1.2


def test_clones_pay_into_the_same_ledger() -> None:
    ledger = Ledger()
    assert clone(LogisticRegression(ledger=ledger)).ledger is ledger


def test_pipelines_work() -> None:
    X, y = binary_rows()
    pipeline = make_pipeline(MaxAbsScaler(), LogisticRegression(epsilon=3.0, random_state=0))
    with pytest.warns(PrivoptWarning, match="MaxAbsScaler of the pipeline learnt"):
        pipeline.fit(X, y)
    assert pipeline.score(X, y) > 0.75


def test_without_a_seed_two_fits_differ_and_with_one_the_statement_warns() -> None:
    X, y = binary_rows()
    free = [LogisticRegression().fit(X, y) for _ in range(2)]
    assert not np.allclose(free[0].coef_, free[1].coef_)
    assert not free[0].privacy_.statement.seeded
    seeds: list[Any] = [0, np.random.default_rng(0), np.random.RandomState(0)]
    for seed in seeds:
        assert "fixed seed" in str(LogisticRegression(random_state=seed).fit(X, y).privacy_)


def test_replacing_one_row_costs_twice_the_noise_of_adding_one() -> None:
    X, y = binary_rows()
    noise = {}
    for neighbours in ("add-remove", "replace-one"):
        statement = LogisticRegression(bounds=2.0, neighbours=neighbours, random_state=0).fit(X, y).privacy_.statement
        noise[neighbours] = statement.settings["noise multiplier"]
        assert statement.epsilon <= 1.0
    assert noise["replace-one"] == pytest.approx(2 * noise["add-remove"], rel=1e-2)


def test_an_outlier_moves_a_regression_no_further_than_any_row() -> None:
    X, y = regression_rows(3000)
    spoiled = y.copy()
    spoiled[0] = 1e12
    settings: dict[str, Any] = {"epsilon": 2.0, "bounds": (-1, 1), "target_bounds": (0, 20), "random_state": 0}
    for kind in (Ridge, HuberRegressor):
        np.testing.assert_allclose(kind(**settings).fit(X, y).coef_, kind(**settings).fit(X, spoiled).coef_, atol=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": 0.0}, "needs delta > 0"),
        ({"neighbours": "siblings"}, "neighbours is 'siblings'"),
        ({"method": "sgd"}, "the methods are"),
        ({"clip_bound": -1.0}, "clip_bound is -1.0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 2.5}, r"rounds is 2\.5, but it is a whole number"),
        ({"batch_size": 9.5}, r"batch_size is 9\.5, but it is a whole number"),
        ({"learning_rate": "0.1"}, r"learning_rate is '0\.1'"),
        ({"epsilon": "1"}, "epsilon is '1'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": math.inf}, "learning_rate is inf"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"penalty": "lasso"}, "penalty is 'lasso'"),
        ({"bounds": 0.0}, "row norm"),
        ({"bounds": (0, 1, 2)}, "pair"),
        ({"bounds": ([0.0] * 5, [1.0, 1.0, -1.0, 1.0, 1.0])}, "column 2"),
        ({"accountant": "moments"}, "accountant is 'moments'"),
        ({"method": "dp-gd", "batch_size": 10}, "dp-gd uses every row"),
    ],
)
def test_settings_that_cannot_hold_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    X, y = binary_rows(300)
    with pytest.raises(InputError, match=message):
        LogisticRegression(**settings).fit(X, y)


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="one class"):
        LogisticRegression().fit(np.eye(5), np.ones(5))


def test_a_delta_that_permits_publishing_a_row_is_warned_about() -> None:
    X, y = binary_rows(1000)
    with pytest.warns(PrivoptWarning, match="not below 1/n") as caught:
        model = LogisticRegression(delta=1e-3).fit(X, y)
    assert "CAUTION: delta" in model.privacy_.statement.text()
    assert caught[0].filename == __file__


def test_too_few_rows_for_the_budget_are_warned_about_with_a_budget_that_would_do() -> None:
    X, y = binary_rows(50)
    with pytest.warns(PrivoptWarning, match="too few") as caught:
        LogisticRegression(epsilon=0.05, bounds=(-3, 3)).fit(X, y)
    assert caught[0].filename == __file__
    enough = float(str(caught[0].message).split("epsilon ≥ ")[1].split(",")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LogisticRegression(epsilon=1.1 * enough, bounds=(-3, 3)).fit(X, y)


def test_columns_whose_ranges_cannot_be_seen_are_warned_about() -> None:
    X, y = binary_rows(200)
    with pytest.warns(PrivoptWarning, match=r"where the values of \d of \d columns lie: .* declare bounds"):
        LogisticRegression(epsilon=0.2).fit(X, y)


def test_a_constant_column_and_a_column_of_zeros_are_harmless() -> None:
    X, y = binary_rows()
    X = np.hstack([X, np.ones((len(X), 1)), np.zeros((len(X), 1)), np.full((len(X), 1), 1e6)])
    assert LogisticRegression(epsilon=3.0, random_state=0).fit(X, y).score(X, y) > 0.75


def test_the_noise_of_a_fit_is_that_of_its_statement() -> None:
    """Two neighbouring data sets, one round: the answers differ by at most the clip bound, and carry the stated noise.

    400 seeded fits; each of 3 standard deviations is within 15 %, four standard errors, of z·C/n: false alarm below 1e-3.
    """
    X, y = binary_rows(200, columns=2)
    settings: dict[str, Any] = {
        "epsilon": 5.0,
        "bounds": 2.0,
        "rounds": 1,
        "method": "dp-gd",
        "learning_rate": 1.0,
        "clip_bound": 1.0,
    }
    fits = [LogisticRegression(**settings, random_state=seed).fit(X, y) for seed in range(400)]
    noise = fits[0].privacy_.statement.settings["noise multiplier"]
    spread = np.std([np.append(fit.coef_[0], fit.intercept_ / 1.0) for fit in fits], axis=0)
    np.testing.assert_allclose(spread, noise / 200, rtol=0.15)  # the constant feature is bounds/2 = 1
    assert fits[0].privacy_.statement.event == compose([GaussianDpEvent(noise)])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("scale", ["frequency", [1.0, 1.0, 1.0]], ids=["frequency", "given"])
def test_a_huge_entry_warns_nobody_when_columns_are_scaled(sparse: bool, scale: Any) -> None:
    """pytest makes every warning an error: one that only these data raise would tell of them."""
    X = np.random.default_rng(0).normal(size=(2000, 3))
    y = (X[:, 0] > 0).astype(int)
    X[7, 1] = 1e200
    LogisticRegression(method="adadps", options={"scale": scale}, bounds=3.0).fit(sp.csr_array(X) if sparse else X, y)


def test_a_huge_target_warns_nobody() -> None:
    X = np.random.default_rng(0).normal(size=(2000, 3))
    y = X[:, 0].copy()
    y[7] = 1.7e308
    Ridge(bounds=3.0, target_bounds=(-0.1, 0.1)).fit(X, y)


def test_a_target_whose_range_cannot_be_learnt_is_warned_about_and_said() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (100, 2))
    with pytest.warns(PrivoptWarning, match="in which range the target lies") as caught:
        model = Ridge(0.3, bounds=(-1, 1), random_state=0).fit(X, 2e5 + X[:, 0])
    assert [warning.filename for warning in caught if "range" in str(warning.message)] == [__file__]
    assert "the range of almost all targets (too few rows to tell)" in model.privacy_.statement.text()


def test_text_in_an_array_is_refused_without_quoting_it() -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0], "status": ["HIV+", "HIV-", "HIV-"]})
    with pytest.raises(InputError, match=r"holds text.*Give a data frame") as refusal:
        LogisticRegression().fit(frame.to_numpy(), [0, 1, 1])
    assert "HIV" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ledger": "ledger.jsonl"}, "it is a Ledger"),
        ({"options": "x"}, "it is a dict"),
        ({"alpha": "a"}, "alpha is 'a'"),
        ({"random_state": -1}, "the seed is -1"),
    ],
)
def test_settings_of_another_kind_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LogisticRegression(**settings).fit(*binary_rows(100))


# ---------------------------------------------------------------- declared classes


def with_others(y: Any) -> Any:
    """The first fifty rows have a label that nobody declared."""
    labels = y.copy()
    labels[:50] = 7
    return labels


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2]], ids=["two", "three"])
@pytest.mark.parametrize("method", ["dp-adam", "dp-srm", "dp-agd", "output-perturbation", "sagd-lap"])
def test_a_row_of_a_class_that_is_not_declared_contributes_nothing_while_n_stays(method: str, classes: list[int]) -> None:
    """It is worth a row of zeros, whose gradient is 0 without an intercept."""
    X, y = binary_rows(500)
    zeroed = X.copy()
    zeroed[:50] = 0.0
    settings: Any = {
        "method": method,
        "bounds": 2.0,
        "fit_intercept": False,
        "classes": classes,
        "random_state": 0,
        "epsilon": 9.0,
    }
    found = LogisticRegression(**settings).fit(X, with_others(y))
    wanted = LogisticRegression(**settings).fit(zeroed, y)
    np.testing.assert_allclose(found.coef_, wanted.coef_, rtol=1e-7, atol=1e-9)
    assert found.privacy_.statement.examples == 500
    assert found.privacy_.statement.event == wanted.privacy_.statement.event


@pytest.mark.parametrize("storage", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("method", ROW_METHODS)
def test_every_method_trains_with_rows_of_other_classes(method: str, storage: Any) -> None:
    X, y = binary_rows(400)
    options = {} if METHODS[method].private else {"without_privacy": True}
    public = (X[:100], y[:100]) if "public" in signature(METHODS[method].recipe).parameters else None
    model = LogisticRegression(
        epsilon=9.0, method=method, classes=[0, 1], rounds=None if method == "output-perturbation" else 5,
        bounds=2.0, options=options, public=public, random_state=0,
    ).fit(storage(X), with_others(y))  # fmt: skip
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["no", "yes"], ["yes", "no"]),
        (["no", "yes"], ["yes", "no", "perhaps"]),
        (["yes", "yes"], ["no", "yes"]),
        (["never", "never"], ["no", "yes"]),
        ([0.5, 1.0], [0, 1]),
        ([False, True], [0, 1]),
    ],
    ids=str,
)
def test_no_label_in_y_is_an_error_when_classes_are_declared(y: list[Any], classes: list[Any]) -> None:
    X, _ = binary_rows(200)
    model = LogisticRegression(classes=classes, bounds=2.0, rounds=3, random_state=0, epsilon=9.0).fit(X, np.array(y * 100))
    assert model.classes_.tolist() == sorted(classes)
    assert model.predict_proba(X).shape == (200, len(classes))
    assert set(model.predict(X)) <= set(classes)
    assert clone(model).classes is not model.classes_


def test_a_statement_says_whether_the_classes_are_declared_or_read_off_the_data() -> None:
    X, y = binary_rows(500)
    declared = LogisticRegression(classes=[0, 1, 2], bounds=2.0, random_state=0).fit(X, y).privacy_.statement
    said = "the 3 classes, as declared: 0, 1, 2. Rows of any other class were left out: compare the spelling"
    assert said in declared.assumed_public
    assert "as declared" in declared.text().partition("Taken as public:")[2].partition("Not covered:")[0]
    found = LogisticRegression(bounds=2.0, random_state=0).fit(X, y).privacy_.statement
    assert "the 2 classes, read off the data" in found.assumed_public
    assert not any("classes" in line for line in Ridge(bounds=2.0, random_state=0).fit(X, y).privacy_.statement.assumed_public)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0], "one class only"),
        ([], "one class only"),
        ([0, 1, 1], "each of them once"),
        ([[0], [1]], "each of them once"),
        (["0", "1"], "classes are text, but y holds numbers"),
        (1, "a list of the labels"),
    ],
    ids=str,
)
def test_classes_that_cannot_be_are_refused_before_anything_is_paid(classes: Any, message: str) -> None:
    X, y = binary_rows(100)
    ledger = Ledger()
    with pytest.raises(InputError, match=message):
        LogisticRegression(classes=classes, ledger=ledger, epsilon=9.0).fit(X, y)
    assert ledger.entries == ()


def test_a_statement_names_few_classes_and_short_ones() -> None:
    named = describe_classes(["\x1b[2J", "x" * 999, *map(str, range(90))], declared=True)
    assert len(named) < 300
    assert "92 classes" in named
    assert "\x1b" not in named
    assert "…" in named


@pytest.mark.parametrize("size", [1, 2, 7, 12])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("delta", [None, 1e-9, 0.0])
def test_following_the_advice_for_too_few_rows_helps(size: int, epsilon: float, delta: float | None) -> None:
    def advice(rows: int, given: float) -> str | None:
        return too_noisy(rows, 9, Budget(given, default_delta(rows) if delta is None else delta))

    message = advice(size, epsilon)
    assert message is not None
    assert message.startswith("1 row is" if size == 1 else f"{size} rows are")
    enough, rows = re.findall(r"epsilon ≥ ([\d.]+), or (\d+) rows", message)[0]
    assert advice(int(rows), epsilon) is None
    assert advice(size, float(enough)) is None
    assert delta is None or advice(int(0.9 * int(rows)), epsilon) is not None


@pytest.mark.parametrize(("kind", "plain"), [("Int64", "int64"), ("UInt8", "uint8"), ("boolean", "bool"), ("Float64", "float64")])
def test_labels_of_pandas_own_types_keep_their_kind(kind: Any, plain: str) -> None:
    X, y = binary_rows(300)
    labels = pd.Series(pd.array(y.astype(plain), dtype=kind))
    model = LogisticRegression(bounds=2.0, rounds=3, random_state=0, epsilon=9.0).fit(X, labels)
    assert model.classes_.dtype == model.predict(X).dtype == np.dtype(plain)
