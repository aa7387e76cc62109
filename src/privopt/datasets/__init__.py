"""Data sets: tables from files, what is publicly known about their columns, and their encoding as numbers.

`read` gives a `Table`; a `Schema` says what is public; `kinds` says what has to be estimated; an `Encoding` turns a frame into
a matrix whose entries lie in [−1, 1]. pandas is imported when a file is read, not before.
"""

from privopt.datasets.encode import Encoding
from privopt.datasets.readers import read
from privopt.datasets.schema import (
    Categorical,
    Ignored,
    Kind,
    Numeric,
    Schema,
    UnknownCategorical,
    UnknownNumeric,
    kinds,
    listed_values,
    load,
    looks_like_identifier,
)
from privopt.datasets.table import MISSING, Table, as_written, codes, numbers, target_numbers, texts

__all__ = [
    "MISSING",
    "Categorical",
    "Encoding",
    "Ignored",
    "Kind",
    "Numeric",
    "Schema",
    "Table",
    "UnknownCategorical",
    "UnknownNumeric",
    "as_written",
    "codes",
    "kinds",
    "listed_values",
    "load",
    "looks_like_identifier",
    "numbers",
    "read",
    "target_numbers",
    "texts",
]
