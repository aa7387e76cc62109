"""Private logistic regression, binary and multinomial."""

from typing import Any, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from privopt.errors import InputError
from privopt.linear_model.base import PrivateLinearModel
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Logistic, Loss, Multinomial


class LogisticRegression(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]  # scikit-learn is untyped
    """Logistic regression under differential privacy, with scikit-learn's interface.

    Everything but `epsilon` may be left alone: the rest follows from public quantities by the rule in
    `privopt.linear_model.defaults`.

    **Guarantee** The coefficients are (ε, δ)-DP for one example added or removed (or replaced). Query: the sum of per-example
    gradients, each clipped to l2 norm `clip_bound`; Gaussian noise; full batches unless `batch_size` asks for Poisson ones.
    Scales that `bounds` does not declare are estimated privately within the same budget. The class labels and the number of
    rows are taken as public.

    Parameters
    ----------
    epsilon, delta : the budget; `delta=None` is 1/(10 n), rounded down to a power of ten; 0 needs a method that can do so.
    bounds : what is publicly known of the rows: a number (their l2 norm), or a pair (low, high) of column ranges.
    alpha, penalty : strength and kind ("ridge" or "nonconvex") of a regulariser of the scaled coefficients, not the intercept.
    method, options : how to train (`privopt.recipes.METHODS`), and the method's own settings, by name.
    public : rows and targets (X, y) that are not private, for methods that use some.
    ledger : a `privopt.Ledger` that this fit, and every clone of this estimator, pays into.
    random_state : for tests only; whoever knows it can remove the noise, and the statement says so.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LogisticRegression(epsilon=3.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85), round(model.privacy_.statement.epsilon, 1)
    (True, 3.0)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the rows of X and their classes y."""
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, targets = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("y has one class only: a classifier needs at least two.")
        trained = self._train(
            X, targets.astype(X.dtype), self._loss, regression=False, assumed_public=[f"the {len(self.classes_)} class labels"]
        )
        self.coef_, self.intercept_ = trained.slopes, trained.intercepts
        return self

    def _public_targets(self, y: Vector) -> Vector:
        places = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if (self.classes_[places] != y).any():
            raise InputError(
                f"the public rows have classes that the private ones do not have: {', '.join(map(str, self.classes_))}."
            )
        return places.astype(float)

    def _loss(self, unit: float) -> Loss:
        return Logistic() if len(self.classes_) == 2 else Multinomial(len(self.classes_))

    def decision_function(self, X: Any) -> Vector:
        """Scores: positive for the second of two classes; one column per class otherwise."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Vector:
        """The probability of each class."""
        scores = self._scores(X)
        if scores.shape[1] > 1:
            return softmax(scores, axis=1)
        return np.hstack([expit(-scores), expit(scores)])

    def predict_log_proba(self, X: Any) -> Vector:
        """The logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> Vector:
        """The most probable class of each row."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]
