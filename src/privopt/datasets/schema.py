"""Schemas: what is publicly known about a table's columns, so that no budget is spent on estimating it.

A schema is a JSON file. Columns that it does not mention are unknown, and estimated privately:

    {"target":  {"classes": ["no", "yes"]},                  or {"low": 0, "high": 100}
     "columns": {"age":      {"low": 18, "high": 90, "missing": "indicator"},
                 "region":   {"values": ["north", "south"]},
                 "ward":     {"type": "category"},
                 "admitted": {"type": "date", "parts": ["year", "month"], "low": 2015, "high": 2025},
                 "notes":    {"ignore": true}}}

`type` says how a column is read (`ward` holds numbers that are codes), and what nothing more is said about is estimated. A `note`
is for readers; it and what is `null` count as not said, so a form that nobody has filled in is a schema, too (`blank_form`).

It must not be derived from the private data: a range from their minimum to their maximum reveals both.
"""

import re
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from privopt.datasets.readers import read_json
from privopt.datasets.table import Columns, as_written, category_text, list_names, suggest_names, type_of
from privopt.errors import InputError
from privopt.limits import MOST_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
shortened = reprlib.repr  # a schema is public, so errors may quote it, in short


INDICATOR: Literal["indicator"] = "indicator"  # a missing number becomes 0, and a feature of its own says that it is missing
PARTS = ("year", "month", "weekday")


@dataclass(frozen=True)
class UnknownNumeric:
    """A column of numbers without a declared range. A missing one counts as `missing`, a public number, or is marked."""

    missing: float | Literal["indicator"] | None = None

    def __post_init__(self) -> None:
        if self.missing not in (None, INDICATOR):
            _check_number("missing", self.missing, ', or "indicator"')

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        return {"type": "number", **_said(missing=self.missing)}

    def between(self, low: float, high: float) -> "Numeric":
        """The same with a range."""
        return Numeric(low, high, self.missing)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers; values outside the range are clipped to it. Missing ones are as for `UnknownNumeric`.

    A column is not `seen` if a survey had too few rows to tell where in the declared range its values lie.
    """

    low: float
    high: float
    missing: float | Literal["indicator"] | None = None
    seen: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        for key, value in (("low", self.low), ("high", self.high)):
            _check_number(key, value)
        if self.low > self.high:
            raise InputError(f"'low' is {self.low} and 'high' is {self.high}, but low lies below high.")
        UnknownNumeric(self.missing)

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        return {"low": self.low, "high": self.high, **_said(missing=self.missing)}


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
class UnknownCategorical:
    """A column of categories without a declared list."""

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        return {"type": "category"}


@dataclass(frozen=True)
class Date:
    """A column of dates, of which these parts are features: the year is a number, month and weekday are categories.

    `years` is the range of the years, if it is known. A missing date counts as `missing`, a public date, or is marked. Text is
    parsed as ISO 8601 (2024-01-31), or by `format`, which is written as for Python's strptime.
    """

    parts: tuple[str, ...] = PARTS
    years: Numeric | None = None
    missing: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        _check_distinct("parts", self.parts)
        if wrong := [part for part in self.parts if part not in PARTS]:
            raise InputError(f"'parts' lists {shortened(wrong[0])}; the parts of a date are {', '.join(PARTS)}.")
        if self.years is not None and "year" not in self.parts:
            raise InputError("'low' and 'high' are years, but 'parts' does not list the year.")
        for key, value in (("missing", self.missing), ("format", self.format)):
            if not isinstance(value, str | None):
                raise InputError(f"{key!r} is {shortened(value)}; it is a string.")
        if self.missing not in (None, INDICATOR):
            try:
                date.fromisoformat(str(self.missing))
            except ValueError:
                raise InputError(
                    f'\'missing\' is {shortened(self.missing)}; it is a date such as "2020-01-31", or "indicator".'
                ) from None

    @property
    def known(self) -> bool:
        """Whether nothing has to be estimated."""
        return self.years is not None or "year" not in self.parts

    def between(self, low: float, high: float) -> "Date":
        """The same with a range of years, if the year is one of the parts."""
        return replace(self, years=Numeric(low, high)) if "year" in self.parts else self

    @property
    def without_year(self) -> "Date | Ignored":
        """The same without the year."""
        rest = tuple(part for part in self.parts if part != "year")
        return replace(self, parts=rest, years=None) if rest else Ignored()

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        years = {} if self.years is None else {"low": self.years.low, "high": self.years.high}
        return {"type": "date", "parts": list(self.parts), **years, **_said(missing=self.missing, format=self.format)}


@dataclass(frozen=True)
class Ignored:
    """A column that is not used."""

    def to_json(self) -> dict[str, Any]:
        """As in a schema."""
        return {"ignore": True}


Kind = Numeric | Categorical | Date | Ignored | UnknownNumeric | UnknownCategorical


def is_unknown(kind: Kind) -> bool:
    """Whether something about the column has to be estimated."""
    return isinstance(kind, UnknownNumeric | UnknownCategorical) or (isinstance(kind, Date) and not kind.known)


@dataclass(frozen=True)
class Schema:
    """What is public about the columns, and about the classes or the range of the target."""

    columns: Mapping[str, Kind] = field(default_factory=dict)
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
        said = _read_keys("the schema", value, ("target", "columns"))
        described = said.get("columns", {})
        if not isinstance(described, Mapping):
            raise InputError("'columns' is an object: column names, and what is known of each.")
        parsed = {name: _parse_column(f"column {name!r}", entry) for name, entry in described.items()}
        columns = {name: kind for name, kind in parsed.items() if kind is not None}
        match _read_keys("the target", said.get("target", {}), ("classes", "low", "high")):
            case {"classes": classes, **others}:
                _check_keys("the target", others, (), beside="classes")
                return _add_location("the target", lambda: cls(columns, classes=_parse_list("classes", classes)))
            case {"low": _} | {"high": _} as entry:
                return cls(columns, target=_parse_range("the target", entry))
        return cls(columns)

    @classmethod
    def of(cls, schema: "Schema | Mapping[str, Any] | str | PathLike[str] | None") -> "Schema":
        """A schema, what its JSON file would hold, or the path of that file; `None` declares nothing."""
        if schema is None or isinstance(schema, Schema):
            return schema or cls()
        if not isinstance(schema, Mapping | str | PathLike):
            raise InputError(
                f"schema is {shortened(schema)}; it is a Schema, what its JSON file holds, or the path of that file."
            )
        return cls.from_json(schema) if isinstance(schema, Mapping) else load(schema)


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


def text_columns(schema: Schema | None, target: str | None) -> list[str]:
    """The columns that have to be read as text: categories and dates that would be parsed as numbers, or as missing."""
    if schema is None:
        return []
    listed = {name: kind.values for name, kind in schema.columns.items() if isinstance(kind, Categorical)}
    listed |= {target: schema.classes} if target is not None and schema.classes else {}
    return as_written(listed) + [name for name, kind in schema.columns.items() if isinstance(kind, UnknownCategorical | Date)]


_IDS = ("id", "ids", "uid", "uuid", "guid", "identifier", "nbr", "nr", "mrn", "ssn", "nino", "passport", "iban")
_CONTACTS = ("email", "mail", "phone", "mobile", "fax", "username", "login")
IDENTIFIERS = frozenset((*_IDS, *_CONTACTS))  # words of the names of columns
PERSONS = frozenset(("patient", "customer", "client", "user", "person", "participant"))  # names that are one of these words


def looks_like_identifier(name: str) -> bool:
    """Whether a column holds identifiers of people or things, by the words of its name.

    >>> [looks_like_identifier(name) for name in ("patient_nbr", "patientId", "E-Mail", "Patient", "patient age", "idle")]
    [True, True, True, True, False, False]
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return name.strip().casefold() in PERSONS or any(word.casefold() in IDENTIFIERS for word in words)


def kinds(frame: Any, schema: Schema | None = None) -> dict[str, Kind]:
    """The kind of each column: the schema's, or an unknown range or list by the column's type (which is taken as public)."""
    declared, columns = {} if schema is None else schema.columns, Columns.of(frame)
    for name in declared:
        if name not in columns:
            raise InputError(
                f"the schema mentions column {name!r}, which the data do not have. {suggest_names(name, columns.names)}"
            )
    return {name: declared.get(name) or _guess_kind(columns[name]) for name in columns.names}


def _guess_kind(column: "pd.Series[Any]") -> Kind:
    match type_of(column):
        case "numbers" | "whole numbers" | "truth values":
            return UnknownNumeric()
        case "text":
            return UnknownCategorical()
        case "dates":
            raise InputError(
                f"column {column.name!r} holds dates. Declare the parts that are features in the schema, such as "
                '{"type": "date", "parts": ["year", "month"]}, or mark it {"ignore": true}.'
            )
    raise InputError(
        f"column {column.name!r} is {column.dtype}, neither numbers nor categories. Convert it, or mark it "
        '{"ignore": true} in the schema.'
    )


# ---------------------------------------------------------------- a form to fill in


FORM = [
    "Say what is publicly known, never what the data say: a range from their minimum to their maximum reveals both.",
    "What stays null is estimated privately, out of the budget. Notes are not read.",
    "Numbers outside a range count as its ends; missing ones as 'missing', or they are marked by \"indicator\".",
    "Values that are not listed count as none; a missing text is the value (missing). Dates are of type date.",
]
_NOTES = {
    "whole numbers": "amounts, or codes? codes are of type category",
    "dates": "low and high are years",
    "identifier": 'by its name an identifier; say its type instead of "ignore" to train on it',
    "something else": "neither numbers nor categories",
}


def blank_form(frame: Any, target: str | None = None) -> dict[str, Any]:
    """A schema to fill in, from names and types only: not a value, nor which ones occur, nor whether some are missing.

    >>> import pandas as pd
    >>> blank_form(pd.DataFrame({"age": [41], "notes": ["tired"]}))["columns"]["age"]["low"] is None
    True
    """
    columns = Columns.of(frame)
    if target is not None and target not in columns:
        raise InputError(f"there is no column {target!r} to be the target. {suggest_names(target, columns.names)}")
    form: dict[str, Any] = {"note": FORM}
    if target is not None:
        form["target"] = {"low": None, "high": None} if type_of(columns[target]) == "numbers" else {"classes": None}
    form["columns"] = {name: _blank_entry(name, columns[name]) for name in columns.names if name != target}
    return form


def _blank_entry(name: str, column: "pd.Series[Any]") -> dict[str, Any]:
    kind = "identifier" if looks_like_identifier(name) else type_of(column)
    entry: dict[str, Any] = {"ignore": True}
    match kind:
        case "truth values":
            entry = {"type": "category", "values": ["False", "True"]}
        case "numbers" | "whole numbers":
            entry = {"type": "number", "low": None, "high": None, "missing": None}
        case "dates":
            entry = {"type": "date", "parts": list(PARTS), "low": None, "high": None, "missing": None}
        case "text":
            entry = {"type": "category", "values": None}
    return entry | _said(note=_NOTES.get(kind))


# ---------------------------------------------------------------- from JSON


_KEYS = {  # of a column, by its type
    "number": ("low", "high", "missing"),
    "category": ("values",),
    "date": ("parts", "low", "high", "missing", "format"),
}
_COLUMN_KEYS = ("type", "low", "high", "values", "missing", "parts", "format", "ignore")


def _parse_column(where: str, entry: Any) -> Kind | None:
    """What is said of a column; `None` if nothing is."""
    said = _read_keys(where, entry, _COLUMN_KEYS)
    kind = said.pop("type", None)
    if kind not in (None, *_KEYS):
        raise InputError(f"{where}: 'type' is {shortened(kind)}; it is {', '.join(map(repr, _KEYS))}.")
    if not said and kind is None:
        return None
    match said:
        case {"ignore": ignore, **others}:
            if ignore is not True:
                raise InputError(f"{where}: 'ignore' is {shortened(ignore)}; it is true, or not there.")
            _check_keys(where, others, (), beside="ignore")
            return Ignored()
        case {"values": _, **others} if kind is None:
            _check_keys(where, others, (), beside="values")
    kind = kind or ("category" if "values" in said else "date" if {"parts", "format"} & set(said) else "number")
    for key in said:
        if key not in _KEYS[kind]:
            raise InputError(
                f"{where} has the key {key!r}, but of type {kind!r} the keys are {', '.join(map(repr, _KEYS[kind]))}."
            )
    if kind == "category":
        listed = said.get("values")
        if listed is None:
            return UnknownCategorical()
        return _add_location(where, lambda: Categorical(_parse_list("values", listed)))
    if kind == "number":
        missing = said.pop("missing", None)
        if not said:
            return _add_location(where, lambda: UnknownNumeric(missing))
        return _parse_range(where, said, missing)
    years = _parse_range(where, said) if {"low", "high"} & set(said) else None
    parts = _add_location(where, lambda: _parse_list("parts", said.get("parts", list(PARTS))))
    return _add_location(where, lambda: Date(parts, years, said.get("missing"), said.get("format")))


def _parse_range(where: str, entry: Mapping[str, Any], missing: Any = None) -> Numeric:
    if not {"low", "high"} <= set(entry):
        raise InputError(f"{where} has {'low' if 'low' in entry else 'high'!r} only; a range is 'low' and 'high'.")
    found = _add_location(where, lambda: Numeric(entry["low"], entry["high"], missing))
    if found.low == found.high:
        raise InputError(f"{where}: 'low' and 'high' are both {found.low}, but low lies below high. Ignore a constant column.")
    return found


def _read_keys(where: str, entry: object, allowed: Sequence[str]) -> dict[str, Any]:
    """What an object says, without notes and nulls."""
    _check_keys(where, entry, (*allowed, "note"))
    assert isinstance(entry, Mapping)
    if not isinstance(entry.get("note"), str | list | None):
        raise InputError(f"{where}: 'note' is {shortened(entry['note'])}; it is text, or a list of lines.")
    return {key: value for key, value in entry.items() if key != "note" and value is not None}


def _said(**given: Any) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _check_number(key: str, value: object, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InputError(f"{key!r} is {shortened(value)}; it is a finite number{otherwise}.")


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
