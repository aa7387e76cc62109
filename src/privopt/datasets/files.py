"""Files: transparent decompression, and JSON from untrusted sources."""

import bz2
import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from privopt.errors import InputError
from privopt.limits import MOST_JSON_BYTES, unpacked_limit

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BLOCK = 2**20  # bytes to unpack at a time


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file for reading bytes; .gz, .bz2 and .xz are decompressed."""
    file: BinaryIO = OPENERS.get(path.suffix.lower(), open)(path, "rb")
    return file


def check_unpacked_size(path: Path) -> None:
    """Refuse a compressed file that unpacks to more than the limit, before a parser needs even more memory for it."""
    if path.suffix.lower() not in OPENERS:
        return
    left = most = unpacked_limit(path.stat().st_size)
    with open_decompressed(path) as file:
        while left >= 0 and (block := file.read(BLOCK)):
            left -= len(block)
    if left < 0:
        raise InputError(f"{path} unpacks to more than {most} bytes. If it really is so large, unpack it first.")


def read_json(path: Path, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Read a JSON file. An `InputError` says what is wrong with it, but not which file it is."""
    with path.open("rb") as file:
        content = file.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise InputError(f"it is larger than {MOST_JSON_BYTES} bytes.")
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=pairs_hook, parse_int=_parse_int)
        json.dumps(value, ensure_ascii=False).encode()
    except InputError:
        raise
    except RecursionError:
        raise InputError("it is nested too deeply.") from None
    except UnicodeEncodeError:
        raise InputError("it holds half of a surrogate pair, which is no character.") from None
    except UnicodeDecodeError:
        raise InputError("it is not JSON: it is not UTF-8 text.") from None
    except ValueError as error:  # JSON files are public, so their errors may be quoted
        raise InputError(f"it is not JSON: {error}.") from None
    return value


def _parse_int(digits: str) -> int:
    """Parse an integer that fits into a float, so that it is safe to compute with."""
    if len(digits) > sys.float_info.max_10_exp:
        raise InputError(f"it holds a number of {len(digits)} digits, which is too large to compute with.")
    return int(digits)
