"""A private search over settings, with scikit-learn's interface."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from privopt.errors import InputError
from privopt.linear_model.base import PrivateLinearModel
from privopt.linear_model.keywords import without_refused
from privopt.perexample.grads import Vector
from privopt.privacy.budget import Budget, default_delta
from privopt.training.search import HELD_OUT, Search, search_linear


def _can(name: str) -> Any:
    return available_if(lambda self: hasattr(self.estimator, name))


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """The best of several settings, chosen privately: the budget of the estimator pays for the whole search.

    Settings are drawn from `param_grid` at random and with repetition, a secret number of times, each trained on most of the rows
    and scored with noise on the others; the model with the best score is kept. Nothing is trained again at the end.

    **Guarantee** That of one fit of `estimator`, with its ε, δ, neighbours, unit and ledger, for all of it: see
    `privopt.training.search`. The score of the best trial, `best_score_`, is released with it. It is minus a mean loss, so it is
    too good rather than too bad: it was the best of several.

    Parameters
    ----------
    estimator : an estimator of `privopt.linear_model`.
    param_grid : as for scikit-learn's `GridSearchCV`: lists of values by name, or a list of such dicts. Candidates may differ in
        method, clip_bound, rounds, learning_rate, alpha, penalty, fit_intercept and options.
    trials : how many trials there are on average; `None` is two for each candidate.
    holdout : the share of the rows (of the persons) that is for scores only.

    >>> import numpy as np
    >>> from privopt.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 3))
    >>> y = X[:, 0] + X[:, 1] > 0
    >>> estimator = LogisticRegression(3.0, bounds=(-1, 1), random_state=0)
    >>> search = PrivateSearchCV(estimator, {"alpha": [0.0, 1000.0]}, trials=10).fit(X, y)
    >>> search.best_params_, bool(search.privacy_.statement.epsilon <= 3)
    ({'alpha': 0.0}, True)
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
        *,
        trials: float | None = None,
        holdout: float = HELD_OUT,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.trials = trials
        self.holdout = holdout

    @without_refused
    def fit(self, X: Any, y: Any, groups: Any = None, *, rows_per_person: int | None = None) -> Self:
        """Search and train, with one budget. `groups` are ids of persons, as for the estimator."""
        search = self._search()
        best = clone(self.estimator)
        best._trainer = partial(search_linear, search=search)
        try:
            best.fit(X, y, groups, rows_per_person=rows_per_person)
        finally:
            del best._trainer
        settings = best.privacy_.statement.settings
        self.best_score_: float = settings["score"]
        self.best_index_: int = settings["candidate"] - 1
        self.best_params_ = dict(search.candidates[self.best_index_])
        self.best_estimator_ = best.set_params(**self.best_params_)
        self.privacy_ = best.privacy_
        for name in ("classes_", "n_features_in_", "feature_names_in_"):
            if hasattr(best, name):
                setattr(self, name, getattr(best, name))
        return self

    def price(self, size: int) -> str:
        """What the search costs for so many rows, or persons: how much noisier each trial is than a single training."""
        given = self.estimator
        delta = default_delta(size) if given.delta is None else given.delta
        return self._search().describe_price(Budget(given.epsilon, delta, given.neighbours))

    def predict(self, X: Any) -> Vector:
        """That of the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @_can("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Vector:
        """That of the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)

    @_can("decision_function")  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Vector:
        """That of the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X)

    def score(self, X: Any, y: Any) -> float:
        """That of the best estimator: exact, and so a release about private rows."""
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))

    def _search(self) -> Search:
        if not isinstance(self.estimator, PrivateLinearModel):
            raise InputError(
                f"estimator is {type(self.estimator).__name__}, but a private search is for the estimators of "
                "privopt.linear_model. Leave steps of a pipeline out: the estimators scale columns and encode data frames."
            )
        return Search(tuple(ParameterGrid(self.param_grid)), self.trials, self.holdout)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
            inner.estimator_type,
            inner.classifier_tags,
            inner.regressor_tags,
        )
        tags.input_tags, tags.non_deterministic = inner.input_tags, inner.non_deterministic
        return tags
