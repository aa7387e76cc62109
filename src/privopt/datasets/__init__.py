"""Data sets: tables from files, what is publicly known about their columns, and their encoding as numbers.

`read` gives a `Table`; a `Schema` says what is public; `kinds` says what has to be estimated; an `Encoding` turns a frame into
a matrix whose entries lie in [−1, 1]. pandas is imported when a file or frame is read, not before.
"""

from privopt.datasets.encode import Encoding, Known, check_columns, encode_quietly, years
from privopt.datasets.readers import read
from privopt.datasets.schema import (
    Categorical,
    Date,
    Ignored,
    Kind,
    Numeric,
    Schema,
    UnknownCategorical,
    UnknownNumeric,
    blank_form,
    is_unknown,
    kinds,
    load,
    looks_like_identifier,
    text_columns,
)
from privopt.datasets.table import MISSING, Columns, Table, as_written, codes, dates, numbers, target_numbers, texts

__all__ = [
    "MISSING",
    "Categorical",
    "Columns",
    "Date",
    "Encoding",
    "Ignored",
    "Kind",
    "Known",
    "Numeric",
    "Schema",
    "Table",
    "UnknownCategorical",
    "UnknownNumeric",
    "as_written",
    "blank_form",
    "check_columns",
    "codes",
    "dates",
    "encode_quietly",
    "is_unknown",
    "kinds",
    "load",
    "looks_like_identifier",
    "numbers",
    "read",
    "target_numbers",
    "text_columns",
    "texts",
    "years",
]
