"""Schemas: what is publicly known about a table's columns, so that no budget is spent on estimating it.

A schema is a JSON file. Columns that it does not mention are unknown, and estimated privately:

    {"target":  {"classes": ["no", "yes"]},                  or {"low": 0, "high": 100}
     "columns": {"age":    {"low": 18, "high": 90},
                 "region": {"values": ["north", "south"]},
                 "notes":  {"ignore": true}}}

It must not be derived from the private data: a range from their minimum to their maximum reveals both.
"""

import re
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from privopt.datasets.readers import read_json
from privopt.datasets.table import category_text, list_names, suggest_names
from privopt.errors import InputError
from privopt.limits import MOST_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
shortened = reprlib.repr  # a schema is public, so errors may quote it, in short


@dataclass(frozen=True)
class Numeric:
    """A column of numbers; values outside the range are clipped to it."""

    low: float
    high: float

    def __post_init__(self) -> None:
        for key, value in (("low", self.low), ("high", self.high)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
                raise InputError(f"{key!r} is {shortened(value)}; it is a finite number.")
        if self.low > self.high:
            raise InputError(f"'low' is {self.low} and 'high' is {self.high}, but low lies below high.")

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        return {"low": self.low, "high": self.high}


@dataclass(frozen=True)
class Categorical:
    """A column of categories; other values count as no category."""

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_distinct("values", self.values)

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        return {"values": list(self.values)}


@dataclass(frozen=True)
class Ignored:
    """A column that is not used."""

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        return {"ignore": True}


@dataclass(frozen=True)
class UnknownNumeric:
    """A column of numbers without a declared range."""


@dataclass(frozen=True)
class UnknownCategorical:
    """A column of categories without a declared list."""


Column = Numeric | Categorical | Ignored
Kind = Column | UnknownNumeric | UnknownCategorical


@dataclass(frozen=True)
class Schema:
    """What is public about the columns, and about the classes or the range of the target."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    target: Numeric | None = None

    def __post_init__(self) -> None:
        if self.classes is not None and self.target is not None:
            raise InputError("a target has classes or a range, not both.")
        if self.classes is not None:
            _check_distinct("classes", self.classes)
            if len(self.classes) < 2:
                raise InputError(f"'classes' lists only {self.classes[0]!r}; there are two or more to distinguish.")

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `from_json` reads back."""
        value: dict[str, Any] = {"columns": {name: column.to_json() for name, column in self.columns.items()}}
        if self.classes is not None:
            value["target"] = {"classes": list(self.classes)}
        if self.target is not None:
            value["target"] = self.target.to_json()
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Schema":
        """Make a schema from a JSON object; errors name the column and the key."""
        _check_keys("the schema", value, ("target", "columns"))
        described = value.get("columns", {})
        if not isinstance(described, Mapping):
            raise InputError("'columns' is an object: column names, and what is known of each.")
        columns = {name: _parse_column(f"column {name!r}", entry) for name, entry in described.items()}
        match value.get("target", {}):
            case {"classes": classes, **others}:
                _check_keys("the target", others, (), beside="classes")
                return _add_location("the target", lambda: cls(columns, classes=_parse_list("classes", classes)))
            case {"low": _} | {"high": _} as entry:
                return cls(columns, target=_parse_range("the target", entry))
            case entry:
                _check_keys("the target", entry, ("classes", "low", "high"))
                return cls(columns)


def load(path: str | PathLike[str]) -> Schema:
    """Read a schema from a JSON file."""
    try:
        value = read_json(Path(path), _make_object)
    except FileNotFoundError:
        raise InputError(f"there is no schema {path}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    try:
        return Schema.from_json(value)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def listed_values(schema: Schema | None, target: str | None) -> dict[str, tuple[str, ...]]:
    """The values that the schema lists, by column."""
    if schema is None:
        return {}
    listed = {name: kind.values for name, kind in schema.columns.items() if isinstance(kind, Categorical)}
    return listed | ({target: schema.classes} if target is not None and schema.classes else {})


_IDS = ("id", "ids", "uid", "uuid", "guid", "identifier", "nbr", "mrn", "ssn", "nino", "passport", "iban")
_CONTACTS = ("email", "mail", "phone", "mobile", "fax", "username", "login")
IDENTIFIERS = frozenset((*_IDS, *_CONTACTS))  # words of the names of columns


def looks_like_identifier(name: str) -> bool:
    """Whether a column holds identifiers of people or things, by the words of its name.

    >>> [looks_like_identifier(name) for name in ("patient_nbr", "patientId", "E-Mail", "width", "idle")]
    [True, True, True, False, False]
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return any(word.casefold() in IDENTIFIERS for word in words)


def kinds(frame: "pd.DataFrame", schema: Schema | None = None) -> dict[str, Kind]:
    """The kind of each column: the schema's, or an unknown range or list by the column's type (which is taken as public)."""
    declared = {} if schema is None else schema.columns
    for name in declared:
        if name not in frame.columns:
            raise InputError(
                f"the schema mentions column {name!r}, which the data do not have. {suggest_names(name, frame.columns)}"
            )
    return {str(name): declared.get(str(name)) or _guess_kind(frame[name]) for name in frame.columns}


def _guess_kind(column: "pd.Series[Any]") -> Kind:
    import pandas as pd

    kind = pd.api.types
    if kind.is_numeric_dtype(column) and not kind.is_complex_dtype(column):  # bool is among them
        return UnknownNumeric()
    if kind.is_object_dtype(column) or kind.is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return UnknownCategorical()
    raise InputError(
        f"column {column.name!r} is {column.dtype}, neither numbers nor categories. Convert it (a date, for example, to days "
        'since a public date), or mark it {"ignore": true} in the schema.'
    )


# ---------------------------------------------------------------- from JSON


def _parse_column(where: str, entry: Any) -> Column:
    match entry:
        case {"ignore": True, **others}:
            _check_keys(where, others, (), beside="ignore")
            return Ignored()
        case {"values": values, **others}:
            _check_keys(where, others, (), beside="values")
            return _add_location(where, lambda: Categorical(_parse_list("values", values)))
        case {"low": _} | {"high": _}:
            return _parse_range(where, entry)
    _check_keys(where, entry, ("low", "high", "values", "ignore"))
    raise InputError(f'{where} is {shortened(entry)}; it is {{"low": …, "high": …}}, {{"values": […]}} or {{"ignore": true}}.')


def _parse_range(where: str, entry: Mapping[str, Any]) -> Numeric:
    _check_keys(where, entry, ("low", "high"))
    if len(entry) < 2:
        raise InputError(f"{where} has {next(iter(entry))!r} only; a range is 'low' and 'high'.")
    found = _add_location(where, lambda: Numeric(entry["low"], entry["high"]))
    if found.low == found.high:
        raise InputError(f"{where}: 'low' and 'high' are both {found.low}, but low lies below high. Ignore a constant column.")
    return found


def _add_location(where: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _parse_list(key: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str | int | float) for value in values):
        raise InputError(f"{key!r} is {shortened(values)}; it is a list of strings or numbers.")
    if len(values) > MOST_COLUMNS:
        raise InputError(f"{key!r} lists {len(values)} values; it lists at most {MOST_COLUMNS}.")
    return tuple(category_text(value) for value in values)


def _check_distinct(key: str, values: Sequence[str]) -> None:
    if not values:
        raise InputError(f"{key!r} is empty; it lists what may occur.")
    if repeated := sorted(value for value, count in Counter(values).items() if count > 1):
        raise InputError(f"{key!r} lists {list_names(list(map(shortened, repeated)))} more than once.")


def _check_keys(where: str, entry: object, allowed: Sequence[str], *, beside: str | None = None) -> None:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} is {shortened(entry)}; it is an object with {' or '.join(map(repr, allowed))}.")
    for key in entry:
        if key not in allowed:
            known = f"{beside!r} stands alone" if beside else f"the keys are {', '.join(map(repr, allowed))}"
            raise InputError(f"{where} has the key {shortened(key)}; {known}.")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise InputError(f"{shortened(repeated)} appears twice in the same object.")
    return found
