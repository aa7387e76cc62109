"""Parquet: columns with types of their own, read by pyarrow."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from privopt.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(path: Path) -> "pd.DataFrame":
    """The file's columns."""
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path} is a Parquet file, which needs pyarrow: pip install 'privopt[parquet]'.") from None
    import pandas as pd

    try:
        names = pyarrow.parquet.read_schema(path).names
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise InputError(f"{path} names these columns more than once: {', '.join(repeated)}. Give each its own name.")
        return pd.read_parquet(path, engine="pyarrow")
    except (pyarrow.lib.ArrowException, OSError):
        raise InputError(f"{path} is not a Parquet file, or is damaged. Write it anew.") from None
