"""Loops that are compiled into vector instructions, where many small operations of torch would take longer than they compute."""

import hashlib
import pickle
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

SEAL = 32  # bytes of a hash


def compiled(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function now, and keep it for the next process, if there is a folder that can be written.

    What is kept is sealed with a hash: a file that was damaged is compiled anew. numba would run what it finds in it.
    """

    def decorated(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = njit(nogil=True, **options)(function)
            dispatcher._cache = _SealedCache(function)
            dispatcher.compile(signature)
            dispatcher.disable_compile()
            return dispatcher
        except (OSError, RuntimeError):
            return njit(signature, nogil=True, **options)(function)

    return decorated


class _SealedCache(FunctionCache):
    """numba's cache, with sealed files."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _SealedFiles(
            self._cache_path, f"{self._impl.filename_base}.sealed", self._impl.locator.get_source_stamp()
        )


class _SealedFiles(IndexDataCacheFile):
    def _load_index(self) -> Any:
        try:
            version, stamp, overloads = _unsealed(self._index_path)
        except OSError:  # it is not there, or it is damaged
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: Any) -> None:
        self._save(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        return _unsealed(self._data_path(name))

    def _save_data(self, name: str, data: Any) -> None:
        self._save(self._data_path(name), data)

    def _save(self, path: str, value: Any) -> None:
        content = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(content).digest() + content)


def _unsealed(path: str) -> Any:
    with open(path, "rb") as file:
        seal, content = file.read(SEAL), file.read()
    if hashlib.sha256(content).digest() != seal:
        raise OSError(f"{path} is not as it was written")  # numba takes this as a file that is not there
    return pickle.loads(content)
