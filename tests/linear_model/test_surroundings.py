"""Steps before a fit, other fits of the process, and scikit-learn's keywords that have no place here."""

import inspect
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from privopt.errors import InputError, PrivoptWarning
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge, surroundings
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement
from tests.problems import binary_rows

X, Y = binary_rows(600)
QUICK: dict[str, Any] = {"bounds": (-1, 1), "rounds": 3, "random_state": 0}


class Guessed(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of the user's own."""

    def fit(self, X: Any, y: Any = None) -> "Guessed":
        self.fitted_ = True
        return self

    def transform(self, X: Any) -> Any:
        return X


def quick() -> Any:
    return LogisticRegression(5.0, **QUICK)


LEARNING = {
    "StandardScaler": make_pipeline(StandardScaler(), quick()),
    "MinMaxScaler, SelectKBest": make_pipeline(MinMaxScaler(), SelectKBest(k=2), quick()),
    "OneHotEncoder": make_pipeline(FunctionTransformer(np.round), OneHotEncoder(handle_unknown="ignore"), quick()),
    "SimpleImputer": make_pipeline(ColumnTransformer([("fill", SimpleImputer(), [0, 1]), ("rest", "passthrough", [2])]), quick()),
    "Guessed": make_pipeline(FeatureUnion([("a", Guessed()), ("b", Normalizer())]), quick()),
    "StandardScaler, in a search": make_pipeline(StandardScaler(), GridSearchCV(quick(), {"alpha": [0.0, 0.1]}, cv=2)),
    "StandardScaler, nested": make_pipeline(StandardScaler(), make_pipeline(Normalizer(), OneVsRestClassifier(quick()))),
    "StandardScaler, searched": GridSearchCV(
        make_pipeline(StandardScaler(), quick()), {"logisticregression__alpha": [0.0]}, cv=2
    ),
}
LEARNS_NOTHING = [
    make_pipeline(FunctionTransformer(np.tanh), PolynomialFeatures(2), Normalizer(), quick()),
    make_pipeline("passthrough", OneHotEncoder(categories=[[-1, 0, 1]] * 5, handle_unknown="ignore"), quick()),
    make_pipeline(SimpleImputer(strategy="constant", fill_value=0), quick()),
    make_pipeline(FrozenEstimator(StandardScaler().fit(X)), quick()),
    make_pipeline(StandardScaler(with_mean=False, with_std=False), quick()),
]


@pytest.mark.parametrize("name", LEARNING)
def test_steps_that_learn_from_the_rows_are_warned_about_and_stated(name: str) -> None:
    columns = 3 if "Imputer" in name else X.shape[1]
    model = clone(LEARNING[name])
    with pytest.warns(PrivoptWarning, match="learnt from the rows before this fit"):
        model.fit(X[:, :columns], Y)
    inner = getattr(model, "best_estimator_", model)[-1]
    if name.endswith("nested"):
        inner = inner[-1].estimators_[0]
    inner = getattr(inner, "best_estimator_", inner)
    for step in name.split(", in ")[0].removesuffix(", nested").removesuffix(", searched").split(", "):
        assert (
            f"what {step} learnt from these rows, earlier in the pipeline: it is NOT private" in inner.privacy_.statement.text()
        )


@pytest.mark.parametrize("pipeline", LEARNS_NOTHING, ids=lambda pipeline: pipeline.steps[-2][0])
def test_steps_that_learn_nothing_are_not(pipeline: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivoptWarning)
        model = clone(pipeline).fit(X, Y)
    assert "earlier in the pipeline" not in model[-1].privacy_.statement.text()


def test_a_pipeline_that_calls_this_one_in_a_transform_is_no_step_of_it() -> None:
    def score(rows: Any) -> Any:
        return quick().fit(X, Y).decision_function(rows)[:, None]

    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivoptWarning)
        make_pipeline(FunctionTransformer(score), StandardScaler()).fit(X)


# ---------------------------------------------------------------- many fits


def test_a_statement_says_how_many_fits_there_were_without_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_fits", type(surroundings._fits)())
    first = quick().fit(X, Y)
    assert "of this process" not in first.privacy_.statement.text()
    search = GridSearchCV(quick(), {"alpha": [0.0, 0.1]}, cv=2).fit(X, Y)
    text = search.best_estimator_.privacy_.statement.text()
    assert "5 earlier fits of this process on rows of the same columns (this is number 6)" in text  # 1 + 2 × 2, and the last one
    statement: Any = search.best_estimator_.privacy_.statement
    assert Statement.from_json(statement.to_json()).text() == text
    assert "of this process" not in quick().fit(X[:, :2], Y).privacy_.statement.text()  # other columns


def test_fits_with_a_ledger_are_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_fits", type(surroundings._fits)())
    ledger = Ledger()
    cross_val_score(LogisticRegression(5.0, ledger=ledger, **QUICK), X, Y, cv=3)
    last = LogisticRegression(5.0, ledger=ledger, **QUICK).fit(X, Y)
    assert "of this process" not in last.privacy_.statement.text()
    assert len(ledger.entries) >= 4


# ---------------------------------------------------------------- keywords


@pytest.mark.parametrize("kind", [LogisticRegression, Ridge, HuberRegressor])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("C", "alpha"),
        ("class_weight", "predict_proba"),
        ("max_iter", "rounds"),
        ("tol", "rounds"),
        ("l1_ratio", "alpha"),
        ("multi_class", "one model"),
        ("verbose", "observer="),
    ],
)
def test_scikit_learns_keywords_are_refused_with_an_alternative(kind: Any, name: str, says: str) -> None:
    for ask in (kind, kind(1.0).set_params):
        with pytest.raises(InputError, match=f"there is no {name}: .*{says}"):
            ask(**{name: 1})


@pytest.mark.parametrize("kind", [LogisticRegression, Ridge, HuberRegressor])
def test_weights_of_rows_are_refused_before_anything_is_paid(kind: Any) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match="there is no sample_weight: a weight multiplies one row's influence"):
        kind(1.0, ledger=ledger, **QUICK).fit(X, Y, sample_weight=np.ones(len(Y)))
    assert not ledger.entries


def test_persons_are_groups() -> None:
    with pytest.raises(InputError, match=r"there is no persons: .*groups=ids"):
        LogisticRegression(1.0, **QUICK).fit(X, Y, persons=np.arange(len(Y)))  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [LogisticRegression, Ridge, HuberRegressor])
def test_scikit_learn_and_python_see_the_signatures_as_they_are(kind: Any) -> None:
    assert set(kind().get_params()) == set(inspect.signature(kind).parameters)
    assert "sample_weight" not in inspect.signature(kind.fit).parameters
    with pytest.raises(TypeError, match="no_such"):
        kind(no_such=1)
