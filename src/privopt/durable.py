"""Files that survive a crash: written completely or not at all, and on the disk when a function returns."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file's content: a crash, or a full disk, leaves the file as it was. Errors name the file."""
    path = path.resolve()  # replaces the target of a link, not the link
    try:
        if path.exists() and not path.is_file():  # a device or a pipe has no earlier content to keep
            path.write_bytes(content)
        else:
            _replace(path, content, 0o600 if private else 0o644)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, content: bytes, mode: int) -> None:
    beside = temporary(path)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def temporary(path: Path) -> Path:
    """Where `write_atomically` writes before it replaces the file; a crash may leave it."""
    return path.with_name(f".{path.name}.new")


def sync_directory(path: Path) -> None:
    """Flush the folder's list of files to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
