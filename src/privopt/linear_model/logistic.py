"""Private logistic regression, binary and multinomial."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from privopt.datasets import Schema
from privopt.errors import InputError
from privopt.linear_model.base import PrivateLinearModel
from privopt.linear_model.keywords import without_refused
from privopt.methods import Method
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Logistic, Loss, Multinomial
from privopt.privacy.accountants import Accountant
from privopt.privacy.budget import Neighbours
from privopt.privacy.ledger import Ledger
from privopt.progress import Round
from privopt.training.linear import describe_classes
from privopt.training.settings import Bounds, Numeric, Penalty


class LogisticRegression(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]  # scikit-learn is untyped
    """Logistic regression under differential privacy, with scikit-learn's interface.

    Everything but `epsilon` may be left alone: the rest follows from public quantities by the rule in
    `privopt.methods.rules`.

    **Guarantee** The coefficients are (ε, δ)-DP for one example's contribution added or removed, or one example replaced, n being
    public. Query: the sum of per-example gradients, each clipped to l2 norm `clip_bound`; Gaussian noise; full batches unless
    `batch_size` asks for Poisson ones. Scales that `bounds` does not declare are estimated privately within the same budget. The
    class labels are taken as public: those of `classes`, or those that occur in y. `fit(X, y, groups=ids)` says "person" in the
    place of "example": the mean gradient of a person's rows is clipped, persons are drawn, and n is the number of persons.

    Parameters
    ----------
    epsilon, delta : the budget; `delta=None` is 1/(10 n), rounded down to a power of ten; 0 needs a method that can do so.
    bounds : what is publicly known of rows of numbers: their l2 norm (a number), or a pair (low, high) of column ranges.
    schema : what is publicly known of the columns of a frame: a `Schema`, what its JSON file holds, or the path of that file.
    classes : the labels, declared. A row of another label has no gradient, n stays, and no error tells that there is one.
    numeric : "linear" is a coefficient for each column; "hats" a piecewise-linear function of each column of a dense X, with
        knots from a private survey; "auto" decides by n, d and the budget. `get_feature_names_out()` names what `coef_` is about.
    alpha, penalty : strength and kind ("ridge" or "nonconvex") of a regulariser of the scaled coefficients, not the intercept.
    method, options : a name of `privopt.methods.METHODS`, or a `Method` of your own; and its own settings, by name.
    public : rows and targets (X, y) that are not private, for methods that use some.
    ledger : a `privopt.Ledger` that this fit, and every clone of this estimator, pays into.
    observer : a callback f(Round) after each round, for curves: `done`, `rounds` and `epsilon` so far.
    random_state : for tests only; whoever knows it can remove the noise, and the statement says so.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LogisticRegression(epsilon=3.0, bounds=(0, 5000), random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85), round(model.privacy_.statement.epsilon, 1)
    (True, 3.0)
    """

    @without_refused
    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        neighbours: Neighbours = "add-remove",
        method: str | Method = "dp-adam",
        clip_bound: float | None = None,
        rounds: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        bounds: Bounds = None,
        schema: Any = None,
        classes: Sequence[Any] | None = None,
        alpha: float = 0.0,
        penalty: Penalty = "ridge",
        numeric: Numeric = "auto",
        fit_intercept: bool = True,
        options: Mapping[str, Any] | None = None,
        public: tuple[Any, Any] | None = None,
        accountant: Accountant = "auto",
        ledger: Ledger | None = None,
        observer: Callable[[Round], None] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            epsilon,
            delta=delta,
            neighbours=neighbours,
            method=method,
            clip_bound=clip_bound,
            rounds=rounds,
            batch_size=batch_size,
            learning_rate=learning_rate,
            bounds=bounds,
            schema=schema,
            alpha=alpha,
            penalty=penalty,
            numeric=numeric,
            fit_intercept=fit_intercept,
            options=options,
            public=public,
            accountant=accountant,
            ledger=ledger,
            observer=observer,
            random_state=random_state,
        )
        self.classes = classes

    @without_refused
    def fit(self, X: Any, y: Any, groups: Any = None, *, rows_per_person: int | None = None) -> Self:
        """Train on the rows of X and their classes y.

        `groups` says whose row each is, by an id: then the guarantee is for one person, with all rows, of which at most
        `rows_per_person` count (32 unless given), drawn at random.
        """
        X, y = self._validated(X, _labels(y))
        listed: Any = self.classes
        if listed is None and (classes := Schema.of(self.schema).classes):
            listed = _as_labels(classes, like=y)
        declared = listed is not None
        if not declared:
            check_classification_targets(y)
        found, places = np.unique(y, return_inverse=True)
        self.classes_ = _distinct(listed, like=found) if declared else found
        if len(self.classes_) < 2:
            raise InputError(f"{'classes' if declared else 'y'} has one class only: a classifier needs at least two.")
        column = {label: float(place) for place, label in enumerate(self.classes_.tolist())}
        targets = np.array([column.get(label, np.nan) for label in found.tolist()])[places]
        public = describe_classes(self.classes_.tolist(), declared=declared)
        trained = self._train(
            X,
            targets,
            self._loss,
            regression=False,
            assumed_public=[public],
            groups=groups,
            rows_per_person=rows_per_person,
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


def _labels(y: Any) -> Any:
    """The labels, those of a nullable type of pandas' as the numbers they are: scikit-learn would make floats of them."""
    plain = getattr(getattr(y, "dtype", None), "numpy_dtype", None)
    if not isinstance(plain, np.dtype) or plain.kind not in "biuf" or y.isna().any():
        return y
    return y.to_numpy(plain)


def _as_labels(classes: Sequence[str], *, like: Vector) -> Vector:
    """The classes of a schema, which are text, as labels of the kind that y holds."""
    try:
        if like.dtype.kind == "b":
            return np.array([{"false": False, "true": True}[name.casefold()] for name in classes])
        return np.array(list(map(float, classes)) if like.dtype.kind in "iuf" else classes).astype(like.dtype)
    except (ValueError, KeyError):
        raise InputError("the schema's classes are text, but y holds numbers or truth values: no row would have one.") from None


def _distinct(classes: Any, *, like: Vector) -> Vector:
    """Declared labels in order, if they are of the kind that y holds: text, or numbers."""
    labels = np.asarray(classes)
    try:
        distinct = np.unique(labels)
    except TypeError:  # labels of several types, or None
        distinct = labels[:0]
    if labels.ndim != 1 or len(distinct) < len(labels):
        raise InputError("classes must be a list of the labels, each of them once, and all of them text or all of them numbers.")
    kinds = ["text" if kind in "OSU" else "numbers" for kind in (labels.dtype.kind, like.dtype.kind)]
    if kinds[0] != kinds[1]:
        raise InputError(f"classes are {kinds[0]}, but y holds {kinds[1]}: no row would have one of them.")
    return distinct
