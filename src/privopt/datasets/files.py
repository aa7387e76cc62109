"""Files: plain or compressed, opened alike; and JSON of any origin, read safely."""

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
BLOCK = 2**20  # bytes that are unpacked at a time


def opened(path: Path) -> BinaryIO:
    """The file's content in bytes, decompressed."""
    file: BinaryIO = OPENERS.get(path.suffix.lower(), open)(path, "rb")
    return file


def check_unpacked_size(path: Path) -> None:
    """Refuse a compressed file that unpacks to more than the limit, before a parser makes something even larger of it."""
    if path.suffix.lower() not in OPENERS:
        return
    left = most = unpacked_limit(path.stat().st_size)
    with opened(path) as file:
        while left >= 0 and (block := file.read(BLOCK)):
            left -= len(block)
    if left < 0:
        raise InputError(f"{path} unpacks to more than {most} bytes. If it really is so large, unpack it first.")


def read_json(path: Path, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """What a JSON file says. An `InputError` tells what is wrong with one that cannot be read, but not which file it is."""
    with path.open("rb") as file:
        content = file.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise InputError(f"it is larger than {MOST_JSON_BYTES} bytes.")
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=pairs_hook, parse_int=_whole_number)
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


def _whole_number(digits: str) -> int:
    """One that a float can hold: whatever computes with it need not ask again."""
    if len(digits) > sys.float_info.max_10_exp:
        raise InputError(f"it holds a number of {len(digits)} digits, which is too large to compute with.")
    return int(digits)
