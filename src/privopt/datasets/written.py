"""Columns that have to be read as they are written, because a reader of numbers would make something else of their values."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from privopt.datasets.columns import spelled


def as_written(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns of whose known values any would be read as another, or as nothing.

    >>> as_written({"zip": ["01067", "80331"], "size": ["S", "M"], "stage": ["1", "2"], "pain": ["None", "Some"]})
    ['zip', 'pain']
    """
    return [name for name, values in columns.items() if _numbers_differ(values) or _is_nothing(values)]


def _numbers_differ(values: Iterable[str]) -> bool:
    for value in values:
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isnan(number) or spelled(number) != value:
            return True
    return False


def _is_nothing(values: Sequence[str]) -> bool:
    import pandas as pd

    file: Any = io.StringIO()
    csv.writer(file).writerows([("value",), *((value,) for value in values)])
    file.seek(0)
    return bool(pd.read_csv(file, skip_blank_lines=False).isna().to_numpy().any())
