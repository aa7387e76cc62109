"""Checkpoints: what a killed run needs to go on, repeating the same answers instead of buying new ones.

A checkpoint holds generator states, which reveal the noise, and a fingerprint of the data: it is as sensitive as the data.
Its folder is readable by its owner only (0700, files 0600), every write is atomic, and it is removed when the run ends.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from privopt.durable import sync_directory, temporary
from privopt.durable import write_atomically as write_atomically
from privopt.errors import InputError
from privopt.measure import randomness
from privopt.measure.randomness import Rng

State = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """Where a run stands between two rounds."""

    round_: int
    parts: dict[str, State]  # by name: the iterate, and what update and release rule, side information, … remember
    rng: Rng


class Checkpoint:
    """The checkpoint of one run in its folder; opening one that exists continues that run."""

    def __init__(self, folder: str | os.PathLike[str], fingerprint: str) -> None:
        self.folder = Path(folder)
        self._fingerprint = fingerprint

    def begin(self, run: str, rng: Rng) -> tuple[str, Rng]:
        """The run's name and generator: as given, and saved, the first time; as saved, ever after."""
        path = self.folder / "begin.json"
        if path.exists():
            try:
                saved = json.loads(_unsealed(path))
                name, rng, fingerprint = saved["run"], randomness.restored(saved["generator"]), saved["fingerprint"]
            except InputError:  # another version's
                raise
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} is damaged, so this run cannot go on. Start a new one.") from error
            if fingerprint != self._fingerprint:
                raise InputError(
                    "the data or settings are not those that this run began with. Replaying its noise on other data would "
                    "reveal both: resume with the same file, or start a new run."
                )
            return name, rng
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {"run": run, "generator": randomness.state(rng), "fingerprint": self._fingerprint}
        write_atomically(path, _sealed(json.dumps(content).encode()), private=True)
        sync_directory(self.folder)  # before anything is charged: what is charged can be repeated
        return run, rng

    def save(self, progress: Progress) -> None:
        """Replace what was saved before."""
        arrays = {f"{part}.{name}": _array(value) for part, state in progress.parts.items() for name, value in state.items()}
        meta = {"round": progress.round_, "generator": randomness.state(progress.rng)}
        buffer = BytesIO()
        np.savez(buffer, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)
        write_atomically(self.folder / "progress.npz", _sealed(buffer.getvalue()), private=True)

    def load(self) -> Progress | None:
        """What was saved last, if anything was."""
        path = self.folder / "progress.npz"
        if not path.exists():
            return None
        try:
            with np.load(BytesIO(_unsealed(path)), allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                parts: dict[str, State] = {}
                for key in file.files:
                    if key != "meta":
                        part, name = key.split(".", 1)
                        value = file[key]
                        parts.setdefault(part, {})[name] = value if value.ndim else value.item()
            return Progress(meta["round"], parts, randomness.restored(meta["generator"]))
        except (ValueError, KeyError, OSError, TypeError) as error:
            raise InputError(f"{path} is damaged. Remove it to replay the run from its beginning, at no cost.") from error

    def remove(self) -> None:
        """The run has ended: nobody needs its randomness any more. What else is in the folder stays."""
        for name in ("progress.npz", "begin.json"):
            for path in (self.folder / name, temporary(self.folder / name)):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _array(value: Any) -> Any:
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value)  # a tensor may be on another device


def _sealed(content: bytes) -> bytes:
    """With a hash at the end: randomness that changed by a bit would give new answers that nobody paid for."""
    return content + hashlib.sha256(content).digest()


def _unsealed(path: Path) -> bytes:
    content = path.read_bytes()
    if _sealed(content[:-32]) != content:
        raise ValueError(f"{path} is not as it was written")
    return content[:-32]
