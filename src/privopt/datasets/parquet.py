"""Parquet: typed columns, read by pyarrow."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privopt.datasets.columns import check_names
from privopt.errors import InputError, PrivoptWarning
from privopt.limits import unpacked_limit

if TYPE_CHECKING:
    import pandas as pd

CELL = 8  # least number of bytes of a cell in memory


def read_parquet(path: Path) -> "pd.DataFrame":
    """Read the columns. A pandas index is one of them if it has a name, and is left out otherwise."""
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path} is a Parquet file, which needs pyarrow: pip install 'privopt[parquet]'.") from None
    import pandas as pd

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            check_names(path, names)
            _check_size(path, file)
            labels = _row_labels(file.schema_arrow.metadata or {}, names)
            table = file.read(columns=[name for name in names if name not in labels] if labels else None)
    except (pyarrow.lib.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        raise InputError(f"{path} is not a Parquet file, or is damaged. Write it anew.") from None
    if labels:
        message = f"the index of the frame in {path} has no name and is left out. Name it, if it is to be a column."
        warnings.warn(message, PrivoptWarning, stacklevel=2)
    return pd.DataFrame(
        {name: _values(path, name, column) for name, column in zip(table.column_names, table.columns, strict=True)}
    )


def _values(path: Path, name: str, column: Any) -> "pd.Series[Any]":
    try:
        column.validate(full=True)  # pandas would keep text as it is, and fail where it is used
        return column.to_pandas()
    except (ValueError, OverflowError, TypeError, NotImplementedError):  # their messages quote a value
        raise InputError(
            f"column {name!r} of {path} holds {column.type} values that Python cannot: text that is not UTF-8, for example, or "
            "dates of another age. Leave it out of the file, or convert it."
        ) from None


def _check_size(path: Path, file: Any) -> None:
    """Refuse a table that is too large in memory: repeated values take almost no space in a file."""
    meta, most = file.metadata, unpacked_limit(path.stat().st_size)
    stored = sum(meta.row_group(place).total_byte_size for place in range(meta.num_row_groups))
    if max(stored, CELL * meta.num_rows * meta.num_columns) > most:
        raise InputError(
            f"{path} has {meta.num_rows} rows of {meta.num_columns} columns, which unpack to more than {most} bytes."
        )


def _row_labels(metadata: dict[bytes, bytes], names: list[str]) -> list[str]:
    """The columns in which pandas stores an index without a name."""
    try:
        index = json.loads(metadata.get(b"pandas", b"{}"))["index_columns"]
        return [name for name in names if name in index and name.startswith("__index_level_")]
    except (ValueError, KeyError, TypeError, RecursionError):  # not a pandas frame, or its metadata are damaged: all are columns
        return []
