"""Private linear regression: ridge and Huber."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from privopt.errors import InputError
from privopt.linear_model.base import PrivateLinearModel, no_values_in_errors
from privopt.linear_model.keywords import without_refused
from privopt.methods import Method
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Huber, Loss, Squared
from privopt.privacy.accountants import Accountant
from privopt.privacy.budget import Neighbours
from privopt.privacy.ledger import Ledger
from privopt.progress import Round
from privopt.training.settings import Bounds, Numeric, Penalty, is_number


class _Regressor(RegressorMixin, PrivateLinearModel, ABC):  # type: ignore[misc]  # scikit-learn is untyped
    """Fit and predict for real targets, which are trained on as (y − centre)/scale of a public or surveyed range."""

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
        target_bounds: tuple[float, float] | None = None,
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
        self.target_bounds = target_bounds

    @without_refused
    def fit(self, X: Any, y: Any, groups: Any = None, *, rows_per_person: int | None = None) -> Self:
        """Train on the rows of X and their targets y. `groups` are ids of persons, as for `LogisticRegression`."""
        X, y = self._validated(X, y)
        with no_values_in_errors(y, "y"):
            y = np.asarray(y, dtype=float)
        trained = self._train(
            X, y, self._loss, regression=True, assumed_public=[], groups=groups, rows_per_person=rows_per_person
        )
        self.coef_, self.intercept_ = trained.slopes[0], float(trained.intercepts[0])
        return self

    @abstractmethod
    def _loss(self, unit: float) -> Loss:
        """The loss of targets on the scale that they are trained on, where `unit` of the data's is 1."""

    def predict(self, X: Any) -> Vector:
        """The expected target of each row."""
        return self._scores(X)


class Ridge(_Regressor):
    """Least squares with ridge regularisation under differential privacy, with scikit-learn's interface.

    **Guarantee** As `LogisticRegression`: per-example gradients are clipped, so an outlier's residual, however large, moves the
    model no further than any other example.

    Parameters are those of `LogisticRegression`, and:

    target_bounds : the public range (low, high) of y; without it the range is estimated privately.
    alpha : strength of the ridge (α/2)‖w‖² added to the mean loss, for scaled columns and target.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 3))
    >>> y = X @ [1.0, 2.0, 3.0] + 5
    >>> model = Ridge(epsilon=3.0, bounds=(-1, 1), target_bounds=(-1, 11), numeric="linear", random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    def _loss(self, unit: float) -> Loss:
        return Squared()


class HuberRegressor(_Regressor):
    """Linear regression with Huber's loss under differential privacy, with scikit-learn's interface.

    **Guarantee** As `Ridge`.

    Parameters are those of `Ridge`, and:

    threshold : the residual, in units of y, from which the loss grows linearly; `None` is a tenth of the range of y.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 3))
    >>> y = X @ [1.0, 2.0, 3.0] + 5
    >>> y[:40] = 1000.0
    >>> model = HuberRegressor(epsilon=3.0, bounds=(-1, 1), target_bounds=(-1, 11), numeric="linear", random_state=0).fit(X, y)
    >>> bool(model.score(X[40:], y[40:]) > 0.9)
    True
    """

    @without_refused
    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        threshold: float | None = None,
        delta: float | None = None,
        neighbours: Neighbours = "add-remove",
        method: str | Method = "dp-adam",
        clip_bound: float | None = None,
        rounds: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        bounds: Bounds = None,
        schema: Any = None,
        target_bounds: tuple[float, float] | None = None,
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
            target_bounds=target_bounds,
        )
        self.threshold = threshold

    def _loss(self, unit: float) -> Loss:
        if self.threshold is not None and not (is_number(self.threshold) and self.threshold > 0):
            raise InputError(f"threshold is {self.threshold!r}, but a residual from which the loss is linear is a number > 0.")
        return Huber(0.2 if self.threshold is None else self.threshold / unit)
