"""CSV: a header and rows, separated by commas, semicolons or tabs."""

import csv
import io
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privopt.datasets.columns import check_names
from privopt.datasets.files import open_decompressed
from privopt.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = ",;\t"
LONGEST_HEADER = 2**26  # characters: names of 256 characters for as many columns as there may be
_ENCODING = "utf-8-sig"  # with or without a byte-order mark


def read_delimited(path: Path, text: Collection[str] = ()) -> "pd.DataFrame":
    """Read the columns with the types that pandas infers, but those in `text` as strings: 01 is not 1."""
    import pandas as pd

    try:
        separator, header = _header(path)
        check_names(path, filter(None, header))
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # "leads to a loss of data"
            form: dict[str, Any] = {"sep": separator, "encoding": _ENCODING, "index_col": False, "skipinitialspace": True}
            with open_decompressed(path) as file:
                frame = pd.read_csv(file, low_memory=False, **form)
            if named := [name for name in frame.columns if name in text]:
                with open_decompressed(path) as file:
                    written = pd.read_csv(file, usecols=named, dtype=str, keep_default_na=False, na_values=[""], **form)
                frame[named] = written[named]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except pd.errors.ParserWarning:
        raise InputError(f"{path} is ragged: its rows have more fields than the header's {len(header)}.") from None
    except pd.errors.ParserError as error:
        reason = str(error).partition("C error: ")[2].strip() or "its rows cannot be parsed"
        if "out of memory" in reason:
            raise MemoryError from None
        raise InputError(f"{path} is ragged: {reason}. Every row needs the header's {len(header)} fields.") from None
    if frame.iloc[:, -1].hasnans:  # what pandas makes of a row that is too short
        _refuse_short_rows(path, separator, len(header))
    return frame


def _header(path: Path) -> tuple[str, list[str]]:
    """The separator that splits the first line into most fields, and these fields."""
    with io.TextIOWrapper(open_decompressed(path), encoding=_ENCODING) as file:
        line = next((line for line in iter(lambda: file.readline(LONGEST_HEADER + 1), "") if line.strip()), None)
    if line is None:
        raise InputError(f"{path} is empty. A CSV file starts with a line of column names.")
    if len(line) > LONGEST_HEADER:
        raise InputError(f"{path} begins with a line of more than {LONGEST_HEADER} characters, which cannot be column names.")
    found = [(separator, _fields(line, separator)) for separator in SEPARATORS]
    return max(found, key=lambda pair: len(pair[1]))


def _fields(line: str, separator: str) -> list[str]:
    with _fields_of_any_length():
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True))


def _refuse_short_rows(path: Path, separator: str, width: int) -> None:
    with io.TextIOWrapper(open_decompressed(path), encoding=_ENCODING, newline="") as file, _fields_of_any_length():
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        for row in rows:
            if 0 < len(row) < width:
                raise InputError(
                    f"{path} is ragged: line {rows.line_num} has {len(row)} fields, but the header has {width}. "
                    "An empty field is a field; write the separators."
                )


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lift the csv module's limit of 128 KiB for a field."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)
