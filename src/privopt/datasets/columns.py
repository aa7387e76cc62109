"""Columns: the values of one column as finite numbers, or as text.

Errors name the column and never a value: the column's name is public, what it holds is not.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privopt.errors import InputError
from privopt.limits import MOST_NAME_CHARACTERS, MOST_NAMED_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

IGNORE = 'or mark the column {"ignore": true} in the schema.'
MISSING = "(missing)"  # how a category that is not there is spelled
MOST_COMPARED = 1000  # names that an error message looks among for the one that was meant, and their characters


def numbers(column: "pd.Series[Any]", *, trained: bool = False) -> NDArray[np.float64]:
    """The column as finite floats; errors advise a schema, unless a model was `trained` with one already."""
    import pandas as pd

    kind = pd.api.types
    if kind.is_datetime64_any_dtype(column) or kind.is_timedelta64_dtype(column) or kind.is_complex_dtype(column):
        raise InputError(
            f"column {column.name!r} is {column.dtype}, but a number is needed. Convert it "
            + ("as for training." if trained else f"(for example to days since a public date), {IGNORE}")
        )
    try:
        values = pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError, OverflowError):  # its message quotes a value
        raise InputError(
            f"column {column.name!r} is to be numeric, but holds text. Clean it"
            + ("." if trained else ', list its categories as {"values": [...]} in the schema, or mark it {"ignore": true}.')
        ) from None
    if not np.isfinite(values).all():
        raise InputError(
            f"column {column.name!r} holds missing or infinite numbers. Fill them in "
            + ("as for training, or leave these rows out." if trained else f"(with a public constant), {IGNORE}")
        )
    return values


def texts(values: "pd.Series[Any] | NDArray[Any]") -> NDArray[np.object_]:
    """The values as text: whole numbers without a fraction, so that 1 and 1.0 are one category; nothing is `MISSING`.

    >>> texts(np.array([1.0, 2.5, np.nan])).tolist()
    ['1', '2.5', '(missing)']
    """
    places, distinct = _distinct(values)
    return np.array([*distinct, MISSING], dtype=object)[places]  # place −1, a missing value, is the last


def codes(values: "pd.Series[Any] | NDArray[Any]", known: Sequence[str]) -> NDArray[np.int64]:
    """The position of each value in `known`, −1 where it is not there. Truth values match in any case: True is "true".

    >>> codes(np.array(["yes", "no", "perhaps"]), ["no", "yes"]).tolist()
    [1, 0, -1]
    """
    places, distinct = _distinct(values)
    if str(values.dtype) in ("bool", "boolean"):
        distinct, known = [value.casefold() for value in distinct], [value.casefold() for value in known]
    position = {value: place for place, value in enumerate(known)}
    lookup = np.array([position.get(value, -1) for value in [*distinct, MISSING]], dtype=np.int64)
    return lookup[places]


def spelled(value: object) -> str:
    """A category as text."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def closest(name: str, known: Iterable[str]) -> str:
    """The names that were perhaps meant, as the end of an error message."""
    known = list(known)
    compared = [other for other in known[:MOST_COMPARED] if max(len(name), len(other)) < MOST_COMPARED]
    near = difflib.get_close_matches(name, compared, n=3, cutoff=0.5)
    if near and not any(map(_is_number, known)):
        return f"Closest: {', '.join(near)}."
    return f"There are: {list_names(known)}."


def list_names(names: Sequence[str]) -> str:
    """The first twenty, for an error message."""
    if any(map(_is_number, names)):
        return "(not shown, for numbers are among them, as if the first row stood in the place of the names)"
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def check_names(path: Path, names: Iterable[str]) -> None:
    """Refuse columns that are too many, names that are too long, and names that occur twice."""
    counts = Counter(names)
    if counts.total() > MOST_NAMED_COLUMNS:
        raise InputError(
            f"{path} has {counts.total()} columns, but at most {MOST_NAMED_COLUMNS} can have names. Use an npz or LIBSVM file."
        )
    if any(len(name) > MOST_NAME_CHARACTERS for name in counts):
        raise InputError(
            f"{path} has a column whose name is longer than {MOST_NAME_CHARACTERS} characters. Give it a shorter one."
        )
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"{path} names these columns more than once: {list_names(repeated)}. Give each its own name.")


def _distinct(values: "pd.Series[Any] | NDArray[Any]") -> tuple[NDArray[np.intp], list[str]]:
    """Each value's place among the distinct ones, and those as text: millions of rows have few categories."""
    import pandas as pd

    try:
        places, distinct = pd.factorize(values)
    except TypeError:
        name = getattr(values, "name", "the target")
        raise InputError(f"column {name!r} holds lists or other objects, which are no categories. Ignore it.") from None
    return places, [spelled(value) for value in distinct.tolist()]
