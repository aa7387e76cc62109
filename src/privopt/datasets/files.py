"""Files: plain or compressed, opened alike."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def opened(path: Path) -> BinaryIO:
    """The file's content in bytes, decompressed."""
    file: BinaryIO = OPENERS.get(path.suffix.lower(), open)(path, "rb")
    return file
