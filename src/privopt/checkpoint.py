"""Checkpoints: what a killed run needs to go on, repeating the same answers instead of buying new ones.

A checkpoint holds generator states, which reveal the noise, and a fingerprint of the data: it is as sensitive as the data.
Its folder is readable by its owner only (0700, files 0600), every write is atomic, and generator states are removed when the run
ends. What the run released may stay (`finish`): whoever was killed before it had the model asks for it again, for free.

Noise is replayed on the same query only. Whether it is the same is decided by the caller's fingerprint and by the software:
another version of privopt, numpy or Python may compute another query, or other noise, so a run goes on with those it began with.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

import privopt
from privopt.durable import sync_directory, temporary, write_atomically
from privopt.errors import InputError
from privopt.measure import randomness
from privopt.measure.randomness import Rng
from privopt.privacy.events import DpEvent, from_json, to_json

State = dict[str, Any]
FINISHED = "finished.npz"
START, PROGRESS = "start.npz", "progress.npz"  # before the first round, and after some
CLOSE = 1e-3  # relative: answers to made-up examples on another machine; another query gives others
OTHER = (
    "the data, the code or the settings are not those that this run began with{found}. Replaying its noise on another query "
    "would reveal both: resume with the same code, the same settings and the same file, or start a new run."
)
Fingerprint = str | dict[str, str]  # of everything, or of each part by its name


@dataclass(frozen=True)
class Progress:
    """Where a run stands between two rounds, or before its first one (round 0)."""

    round_: int
    parts: dict[str, State]  # by name: the iterate, and what update and release rule, side information, … remember
    rng: Rng
    run: str = ""  # its name in the ledger
    first: int = 0  # releases of that run before round 0


@dataclass(frozen=True)
class Finished:
    """What a run has released, under its guarantee. It holds nothing of the randomness."""

    run: str
    parameters: Any
    rounds: int
    stopped_early: bool
    noise_multiplier: float
    event: DpEvent


class Checkpoint:
    """The checkpoint of one run in its folder; opening one that exists continues that run.

    `fingerprint` identifies the data and all that is asked of them. It may be one for each named part, so that an error can name
    the part. `answers` are the model's outputs on made-up examples: numbers, which another machine may round in another way.
    """

    def __init__(self, folder: str | os.PathLike[str], fingerprint: Fingerprint, answers: Sequence[float] = ()) -> None:
        self.folder = Path(folder)
        self._fingerprint, self._answers = fingerprint, list(answers)
        self.built = ""  # a fingerprint of the recipe that was built, once there is one

    def begin(self, run: str, rng: Rng) -> tuple[str, Rng]:
        """Save the name and the generator of a new run; of a run that was saved before, return those instead."""
        path = self.folder / "begin.json"
        if path.exists():
            try:
                saved = json.loads(_unsealed(path))
                name, rng = saved["run"], randomness.restore_state(saved["generator"])
                self._check(saved)
            except InputError:  # another version's, or another query's
                raise
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} is damaged, so this run cannot go on. Start a new one.") from error
            return name, rng
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {"run": run, "generator": randomness.save_state(rng), **self._query()}
        write_atomically(path, _sealed(json.dumps(content).encode()), private=True)
        sync_directory(self.folder)  # before anything is charged: what is charged can be repeated
        (self.folder / FINISHED).unlink(missing_ok=True)  # of a run before this one
        return run, rng

    def _query(self) -> dict[str, Any]:
        """What is compared to decide whether a replay asks the same query."""
        return {"fingerprint": self._fingerprint, "answers": self._answers, "software": software()}

    def _check(self, saved: dict[str, Any]) -> None:
        """Refuse to replay noise on another query than that it was saved for."""
        began, fingerprint, answers = saved["software"], saved["fingerprint"], np.asarray(saved["answers"], dtype=float)
        if began != software():
            raise InputError(
                f"this run began with {began}, but here is {software()}. Other software may ask another query with the same "
                "noise, which would reveal both: resume with what the run began with, or start a new run."
            )
        if fingerprint != self._fingerprint or not self._answers_are(answers):
            raise InputError(OTHER.format(found=different(fingerprint, self._fingerprint)))

    def _answers_are(self, saved: Any) -> bool:
        size = float(np.nan_to_num(np.abs(saved), posinf=0.0).max(initial=0.0))
        return len(saved) == len(self._answers) and np.allclose(self._answers, saved, CLOSE, 1e-6 * size, equal_nan=True)

    def save(self, progress: Progress, *, keep_start: bool = True) -> None:
        """Replace what was saved before. The start (round 0) is kept beside it: all of the run can be replayed from there.

        Without `keep_start` it cannot: for runs whose iterates are shown before they end.
        """
        arrays = {f"{part}.{name}": _array(value) for part, state in progress.parts.items() for name, value in state.items()}
        where = {"round": progress.round_, "run": progress.run, "first": progress.first}
        meta = {**where, "built": self.built, "generator": randomness.save_state(progress.rng), **self._query()}
        buffer = BytesIO()
        np.savez(buffer, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.folder / (PROGRESS if progress.round_ else START), _sealed(buffer.getvalue()), private=True)
        if not progress.round_ or not keep_start:
            sync_directory(self.folder)  # before anything is charged, as in `begin`, or shown
        if progress.round_ and not keep_start:
            (self.folder / START).unlink(missing_ok=True)

    def load(self) -> Progress | None:
        """What was saved last, if anything was."""
        path = next((path for path in (self.folder / PROGRESS, self.folder / START) if path.exists()), None)
        if path is None:
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
            self._check(meta)
            if meta["built"] != self.built:
                raise InputError(OTHER.format(found=" (different: the recipe that was built)"))
            return Progress(meta["round"], parts, randomness.restore_state(meta["generator"]), meta["run"], meta["first"])
        except InputError:  # another version's, or another query's
            raise
        except (ValueError, KeyError, OSError, TypeError) as error:
            if path.name == START:
                raise InputError(f"{path} is damaged, so this run cannot go on. Start a new one.") from error
            raise InputError(f"{path} is damaged. Remove it to replay the run from its beginning, at no cost.") from error

    def finish(self, finished: Finished) -> None:
        """Keep what was released, for whoever is killed before it has it, and remove the randomness."""
        meta = {
            "run": finished.run,
            "rounds": finished.rounds,
            "stopped early": finished.stopped_early,
            "noise multiplier": finished.noise_multiplier,
            "event": to_json(finished.event),
            **self._query(),
        }
        buffer = BytesIO()
        np.savez(buffer, allow_pickle=False, meta=np.array(json.dumps(meta)), parameters=_array(finished.parameters))
        write_atomically(self.folder / FINISHED, _sealed(buffer.getvalue()), private=True)
        self.remove()

    def finished(self) -> Finished | None:
        """What the same run released, if it has ended. A run that is under way, or another one, has not."""
        path = self.folder / FINISHED
        if not path.exists():
            return None
        try:
            with np.load(BytesIO(_unsealed(path)), allow_pickle=False) as file:
                meta, parameters = json.loads(str(file["meta"])), file["parameters"]
            rounds, early, noise, event = (meta[key] for key in ("rounds", "stopped early", "noise multiplier", "event"))
            found = Finished(meta["run"], parameters, rounds, early, noise, from_json(event))
        except (ValueError, KeyError, OSError, TypeError) as error:
            raise InputError(f"{path} is damaged. Remove it to begin a new run, which is paid for.") from error
        try:
            self._check(meta)
        except InputError:  # of another query
            return None
        self.remove()  # as `finish` would have, had it not been killed
        return found

    def remove(self) -> None:
        """Remove the randomness of a run that has ended. Other files in the folder stay."""
        for name in (PROGRESS, START, "begin.json"):
            for path in (self.folder / name, temporary(self.folder / name)):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def different(saved: Fingerprint, own: Fingerprint) -> str:
    """Which of the named parts differ, in brackets; nothing if that is not known.

    >>> different({"data": "a", "model": "b"}, {"data": "a", "model": "c"})
    ' (different: model)'
    """
    if not isinstance(saved, dict) or not isinstance(own, dict):
        return ""
    names = [name for name in {**saved, **own} if saved.get(name) != own.get(name)]
    return f" (different: {', '.join(names)})" if names else ""


@cache
def software() -> str:
    """What computes the queries and draws the noise: versions, and a hash of privopt's own code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    python = ".".join(map(str, sys.version_info[:2]))
    return f"privopt {privopt.__version__} ({digest.hexdigest()[:12]}), numpy {np.__version__}, Python {python}"


def _array(value: Any) -> Any:
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value)  # a tensor may be on another device


def _sealed(content: bytes) -> bytes:
    """Append a hash: randomness that changed by a bit would give new answers that nobody paid for."""
    return content + hashlib.sha256(content).digest()


def _unsealed(path: Path) -> bytes:
    content = path.read_bytes()
    if _sealed(content[:-32]) != content:
        raise ValueError(f"{path} is not as it was written")
    return content[:-32]
