"""A transformer that encodes tables by a schema, and learns nothing."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from privopt.datasets import Columns, Encoding, Schema, encode_quietly, is_unknown
from privopt.errors import InputError
from privopt.perexample.grads import Vector


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Encode the columns of a frame as `privopt train` does: numbers on [−1, 1], an indicator for each category.

    **Guarantee** It reads nothing off the rows that it is fitted on, so that a pipeline may hold it: every column has to be
    declared by the `schema` (a `Schema`, what its JSON file holds, or the path of that file), or ignored. A row's encoding is a
    function of that row. Values that the schema does not list become zeros, without a word: how many there are is private.

    The estimators encode frames by themselves, and estimate what the schema leaves out. This transformer is for whoever wants the
    numbers. An estimator behind it knows their range by `bounds=(-1, 1)`.

    >>> import pandas as pd
    >>> stays = pd.DataFrame({"age": [75, None], "ward": ["B", "A"]})
    >>> schema = {"columns": {"age": {"low": 0, "high": 100, "missing": "indicator"}, "ward": {"values": ["A", "B"]}}}
    >>> encoder = TableEncoder(schema)
    >>> encoder.transform(stays).tolist()
    [[0.5, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
    >>> encoder.get_feature_names_out().tolist()
    ['age', 'age=(missing)', 'ward=A', 'ward=B']
    """

    def __init__(self, schema: Any = None) -> None:
        self.schema = schema

    @property
    def encoding(self) -> Encoding:
        """The encoding that the schema says."""
        schema = Schema.of(self.schema)
        if unknown := [repr(name) for name, kind in schema.columns.items() if is_unknown(kind)]:
            raise InputError(
                f"the schema does not say all about {', '.join(unknown)}, and an encoder estimates nothing: declare their ranges "
                "and values."
            )
        if not schema.columns:
            raise InputError("a TableEncoder needs a schema: it learns nothing from the rows.")
        return Encoding.of(schema.columns)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Nothing is learnt; a frame with a column that the schema does not mention is refused."""
        self.transform(X)
        return self

    def transform(self, X: Any) -> Any:
        """Encode the rows of a frame, as an array, or as CSR where most features are indicators."""
        columns, encoding = Columns.of(X), self.encoding
        self._check(columns)
        return encode_quietly(encoding, columns)

    def get_feature_names_out(self, input_features: Any = None) -> Vector:
        """The names of the features: a column's name, column=value, or column.part of a date."""
        return np.array(self.encoding.names, dtype=object)

    def _check(self, columns: Columns) -> None:
        """Refuse columns that nothing is said of: they would be left out unnoticed."""
        schema = Schema.of(self.schema)
        if unsaid := [name for name in columns.names if name not in schema.columns]:
            few = ", ".join(map(repr, unsaid[:10]))
            raise InputError(f'the schema says nothing about {few}. Declare what they hold, or mark them {{"ignore": true}}.')

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        return tags
