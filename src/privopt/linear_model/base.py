"""What the estimators share: parameters that are only stored, checks, and the call of `train`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import (
    _check_feature_names_in,
    check_consistent_length,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from privopt.datasets import Columns, Encoding, Schema, encode_quietly
from privopt.errors import InputError, warn
from privopt.linear_model.frames import TablePlan, as_columns
from privopt.linear_model.keywords import check_keywords
from privopt.linear_model.surroundings import count_fit, warn_of_steps
from privopt.measure.units import each_person, each_row
from privopt.methods import Method
from privopt.methods.problem import LossFacts
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Loss
from privopt.perexample.persons import Persons
from privopt.privacy.accountants import Accountant
from privopt.privacy.budget import Budget, Neighbours, default_delta
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Privacy
from privopt.progress import Round, watching
from privopt.training.linear import Trained, check_linear, loss_facts, too_noisy, train_linear
from privopt.training.scaling import PublicTable, TrainingRows, draw_rows_of_persons
from privopt.training.session import Session
from privopt.training.settings import Bounds, Numeric, Penalty, Settings


class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """A linear model whose constructor stores its arguments and whose `fit` trains it privately."""

    _trainer = staticmethod(train_linear)  # a search has another

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
        self.epsilon = epsilon
        self.delta = delta
        self.neighbours = neighbours
        self.method = method
        self.clip_bound = clip_bound
        self.rounds = rounds
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.bounds = bounds
        self.schema = schema
        self.alpha = alpha
        self.penalty = penalty
        self.numeric = numeric
        self.fit_intercept = fit_intercept
        self.options = options
        self.public = public
        self.accountant = accountant
        self.ledger = ledger
        self.observer = observer
        self.random_state = random_state

    def _train(
        self,
        X: Any,
        targets: Vector,
        loss: Callable[[float], Loss],
        *,
        regression: bool,
        assumed_public: list[str],
        groups: Any,
        rows_per_person: int | None,
    ) -> Trained:
        table = X if isinstance(X, Columns) else None
        count, schema = (len(X) if table is not None else X.shape[0]), Schema.of(self.schema)
        persons = None if groups is None else Persons.of(groups, count)
        if persons is None and rows_per_person is not None:
            raise InputError("rows_per_person is for persons: say whose row each is, with groups=ids.")
        size: int = count if persons is None else persons.size
        delta = default_delta(size) if self.delta is None else self.delta
        budget = Budget(self.epsilon, delta, self.neighbours, unit="example" if persons is None else "person")
        settings = self._settings(schema)
        plan = None if table is None else TablePlan.of(table, schema, delta=delta, grouped=persons is not None)
        width: int = X.shape[1] if plan is None else plan.width
        if plan is not None:
            self._check_table_settings(settings, loss_facts(loss(1.0)), size, width, budget)
        if reason := too_noisy(size, loss(1.0).outputs * (width + bool(self.fit_intercept)), budget):
            warn(reason)
        public = self._public_table(plan)
        learnt = [
            f"what {name} learnt from these rows, earlier in the pipeline: it is NOT private" for name in warn_of_steps(self)
        ]
        with watching(observer=self.observer) as observers:
            session = Session(
                budget,
                size,
                ledger=self.ledger,
                seed=self.random_state,
                accountant=self.accountant,
                observer=observers,
                surveys=True,
            )
            rows = TrainingRows(
                X,
                targets,
                regression,
                bounds=settings.bounds,
                target_bounds=settings.target_bounds,
                public=public,
                persons=None if persons is None else draw_rows_of_persons(persons, rows_per_person, session),
                assumed_public=[*assumed_public, *learnt],
            )
            self.encoding_: Encoding | None = None
            if plan is not None:
                self.encoding_, rows = plan.encode(rows, session)
            trained = self._trainer(rows, loss, settings, session)
        self.n_iter_ = trained.rounds
        self.columns_ = trained.columns
        names = getattr(self, "feature_names_in_", None)
        others = None if self.ledger is not None else count_fit(width if names is None else names)
        beside = [*trained.statement.beside, *([] if others is None else [others])]
        self.privacy_ = Privacy(replace(trained.statement, beside=beside), session.ledger)
        return trained

    def _check_table_settings(self, settings: Settings, loss: LossFacts, size: int, width: int, budget: Budget) -> None:
        """Refuse what a model of a frame cannot be trained with, before its columns are surveyed."""
        if settings.bounds is not None:
            raise InputError("bounds is for rows of plain numbers. Declare the ranges of a frame's columns in schema=.")
        unit = each_row() if budget.unit == "example" else each_person()
        public = self.public is not None
        check_linear(settings, loss, size=size, columns=width, budget=budget, public=public, unit=unit)

    def _settings(self, schema: Schema) -> Settings:
        names = Settings.__dataclass_fields__
        if not isinstance(self.options, Mapping | None):
            raise InputError(f"options is {self.options!r}, but it is a dict of the method's own options, or None.")
        given = {name: value for name, value in self.get_params(deep=False).items() if name in names}
        if schema.target is not None and given.get("target_bounds", ...) is None:
            given["target_bounds"] = (schema.target.low, schema.target.high)
        return Settings(**{**given, "options": dict(self.options or {})})

    def _public_table(self, plan: TablePlan | None) -> PublicTable | None:
        """The public rows, checked like the private ones; those of a table are still to be encoded."""
        if self.public is None:
            return None
        try:
            X, y = self.public
        except (TypeError, ValueError):
            raise InputError("public must be a pair (X, y): rows of the same columns, and their targets.") from None
        if plan is not None:
            return PublicTable("the rows given as public", plan.check_public(X), self._public_targets(np.asarray(y)))
        with no_values_in_errors(X):
            X, y = check_X_y(X, y, accept_sparse="csr", dtype=np.float64, y_numeric=False)
        return PublicTable("the rows given as public", X, self._public_targets(y))

    def _public_targets(self, y: Vector) -> Vector:
        """The targets of public rows, as those of private ones are encoded."""
        return np.asarray(y, dtype=float)

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:
        """The rows and targets: a frame that has to be encoded as its columns, anything else as a matrix."""
        columns = as_columns(X, self.schema, bounded=self.bounds is not None)
        if columns is None:
            with no_values_in_errors(X):
                return validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=False)
        if not len(columns):
            raise InputError("the frame has columns but no rows.")
        with no_values_in_errors(y, "y"):
            y = validate_data(self, y=y)
        check_consistent_length(columns, y)
        self.feature_names_in_ = np.array(columns.names, dtype=object)
        self.n_features_in_ = len(columns.names)
        return columns, y

    def _scores(self, X: Any) -> Vector:
        check_is_fitted(self)
        if self.encoding_ is not None:
            columns = Columns.of(X)
            if not len(columns):
                raise InputError("the frame has columns but no rows.")
            X = encode_quietly(self.encoding_, columns)
        else:
            with no_values_in_errors(X):
                X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        features = X if self.columns_ is None else self.columns_.transform(X)
        return features @ self.coef_.T + self.intercept_

    def get_feature_names_out(self, input_features: Any = None) -> Vector:
        """The names of the features that `coef_` is about: of the columns, or of the hats of each.

        `input_features` are names for the columns; without them those of the frame that `fit` was given, or x0, x1, ….
        """
        check_is_fitted(self)
        names = _check_feature_names_in(self, input_features)
        if self.encoding_ is not None:
            return np.asarray(self.encoding_.features(self.columns_), dtype=object)
        return np.asarray(names if self.columns_ is None else self.columns_.names(names.tolist()), dtype=object)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as scikit-learn does."""
        check_keywords(params)
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


_X_NOT_FINITE = (
    "X contains NaN or infinity. Give a data frame, and say in schema= what a missing number counts as, such as "
    '{"columns": {"age": {"missing": "indicator"}}}. What an imputer learns from these rows is not private.'
)
_Y_NOT_FINITE = "y contains NaN or infinity. Leave such rows out."


@contextmanager
def no_values_in_errors(X: Any, name: str = "X") -> Iterator[None]:
    """Replace errors of scikit-learn and NumPy that quote values, which may be private, or advise what is not private."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        if "contains NaN" in message or "contains infinity" in message:
            raise InputError(_Y_NOT_FINITE if name == "y" or "Input y" in message else _X_NOT_FINITE) from None
        if "Expected 2D array" in message:
            shape = f"{getattr(X, 'ndim', 'no')} dimensions"
            raise InputError(
                f"Expected 2D array: {name} has {shape}. Reshape your data: reshape(-1, 1) makes a column."
            ) from None
        if "Complex data" in message:
            raise InputError(f"Complex data not supported: {name} holds complex numbers.") from None
        if "could not convert" not in message:
            raise
        if name == "y":
            raise InputError("y holds text, but a regression needs numbers. LogisticRegression learns classes.") from None
        named = [str(column) for column, kind in getattr(X, "dtypes", {}).items() if kind.kind not in "biuf"]
        where = f"columns {', '.join(named)} of {name} hold" if named else f"{name} holds"
        raise InputError(f"{where} text, but a linear model needs numbers. Give a data frame, whose text is encoded.") from None
