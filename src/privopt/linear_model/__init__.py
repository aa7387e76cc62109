"""Private linear models with scikit-learn's interface."""

from privopt.linear_model.logistic import LogisticRegression
from privopt.linear_model.private_search import PrivateSearchCV
from privopt.linear_model.regression import HuberRegressor, Ridge
from privopt.linear_model.table_encoder import TableEncoder

__all__ = ["HuberRegressor", "LogisticRegression", "PrivateSearchCV", "Ridge", "TableEncoder"]
