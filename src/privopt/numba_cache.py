"""Compiled loops, and a cache of them whose files are protected by a hash.

They replace sequences of small torch operations, whose overhead would exceed their work.
"""

import hashlib
import pickle
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

SEAL = 32  # bytes of a hash


def compiled(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function now, and cache it for the next process, if a cache folder is writable.

    A cache file begins with a hash of its content, and a damaged one is compiled anew; numba itself would run whatever it finds.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = njit(nogil=True, **options)(function)
            dispatcher._cache = _SealedCache(function)
            dispatcher.compile(signature)
            dispatcher.disable_compile()
            return dispatcher
        except (OSError, RuntimeError):
            return njit(signature, nogil=True, **options)(function)

    return decorate


class _SealedCache(FunctionCache):
    """numba's cache, with a hash in each file."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _SealedFiles(
            self._cache_path, f"{self._impl.filename_base}.sealed", self._impl.locator.get_source_stamp()
        )


class _SealedFiles(IndexDataCacheFile):
    def _load_index(self) -> Any:
        try:
            version, stamp, overloads = _load_sealed(self._index_path)
        except OSError:  # missing or damaged
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: Any) -> None:
        self._save(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        return _load_sealed(self._data_path(name))

    def _save_data(self, name: str, data: Any) -> None:
        self._save(self._data_path(name), data)

    def _save(self, path: str, value: Any) -> None:
        content = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(content).digest() + content)


def _load_sealed(path: str) -> Any:
    with open(path, "rb") as file:
        seal, content = file.read(SEAL), file.read()
    if hashlib.sha256(content).digest() != seal:
        raise OSError(f"{path} does not match its hash")  # numba treats this as a missing file
    return pickle.loads(content)
