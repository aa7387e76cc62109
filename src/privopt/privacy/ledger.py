"""The ledger: an append-only record of what was released, written before it is used.

In memory, or durable in a file of JSON lines. What must stay true of a file:

- A charge is on the disk (`fsync`) before `pay` returns, so an answer that was used was paid for, whatever happens next.
- Every line carries a hash of itself and of the line before. A last line cut short by a crash was never acted on and is
  removed; any other damage is reported, never repaired or reset.
- One process writes at a time (a lock beside the file).

A *run* is a sequence of releases that one generator of randomness drew. A resumed run draws the same randomness again, so it
repeats the same answers and pays nothing for what the ledger already holds of it: `Run.pay` charges only what is new.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from privopt.errors import BudgetExceeded, InputError, LedgerError
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget, Neighbours
from privopt.privacy.events import (
    ComposedDpEvent,
    DpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
    atoms,
    compose,
    from_json,
    to_json,
)

FORMAT = "privopt-ledger-1"
_START = b'{"hash":"'  # of every line
_LINE = re.compile(rb'\{"hash":"([0-9a-f]{32})","body":(\{.*\})\}')


@dataclass(frozen=True)
class Entry:
    """One charge: `count` releases of `event` by a run."""

    run: str
    event: DpEvent
    count: int


class Ledger:
    """What has been spent, by every run that was given this ledger.

    `budget` is a cap on all of it together: a release that would exceed it is refused before it happens.

    >>> from privopt.privacy.events import GaussianDpEvent
    >>> ledger = Ledger(Budget(1.0, 1e-5))
    >>> ledger.run().pay([GaussianDpEvent(8.0)] * 2)
    >>> round(ledger.epsilon(), 2)
    0.63
    """

    def __init__(self, budget: Budget | None = None, path: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(budget, Budget | None):
            raise InputError(f"a ledger's budget is a Budget(epsilon, delta) or None, not {budget!r}. A file is path=….")
        self.budget = budget
        self.path = None if path is None else Path(path)
        self._entries: list[Entry] = []
        self._tip = ""
        self._read_only = False
        self._process = os.getpid()
        self._paying = threading.Lock()  # of threads; processes are kept apart by the lock of the file
        self._lock: FileLock | None = None
        if self.path is not None:
            self._lock = _lock(self.path)
            try:
                self._open(self.path)
            except BaseException:
                self.close()
                raise

    # ------------------------------------------------------------ reading

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """The ledger as it stands, without locking it for writing: for showing what was spent."""
        ledger = cls()
        lines, _ = _lines(Path(path))
        if not lines:
            raise LedgerError(f"{path} holds no ledger.")
        ledger._load(Path(path), lines)
        ledger._read_only = True
        return ledger

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every charge, in order."""
        return tuple(self._entries)

    @property
    def event(self) -> DpEvent:
        """All of it, as one event."""
        return compose(SelfComposedDpEvent(entry.event, entry.count) for entry in self._entries)

    def epsilon(
        self, delta: float | None = None, neighbours: Neighbours | None = None, *, accountant: Accountant = "auto"
    ) -> float:
        """What all of it costs, at the budget's δ and for its neighbours unless told otherwise."""
        if delta is None:
            if self.budget is None:
                raise InputError("this ledger has no budget to take delta from: say epsilon(delta=...).")
            delta = self.budget.delta
        return epsilon(
            self.event,
            delta,
            neighbours or (self.budget.neighbours if self.budget else "add-remove"),
            accountant=accountant,
        )

    def allows(self, events: Iterable[DpEvent]) -> bool:
        """Whether these releases, on top of what is spent, stay within the budget."""
        if self.budget is None:
            return True
        return epsilon(compose([self.event, *events]), self.budget.delta, self.budget.neighbours) <= self.budget.epsilon

    # ------------------------------------------------------------ writing

    def run(self, name: str | None = None) -> "Run":
        """A run that pays into this ledger; with the name of an earlier one, its continuation."""
        return Run(self, name or uuid.uuid4().hex[:12])

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __sklearn_clone__(self) -> Self:  # clones of an estimator pay into the same ledger
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:  # a copy in another process could spend unseen, so it may only be read
        return _copy, (self.budget, self._entries)

    def _append(self, entries: list[Entry]) -> None:
        if self._read_only:
            raise LedgerError("this is a copy of a ledger, for reading: what it spent would be lost. With n_jobs, use n_jobs=1.")
        if os.getpid() != self._process:
            raise LedgerError("this ledger belongs to the process that made it: what a fork spends would be lost. Make one here.")
        if self.path is not None:
            if self._lock is None:
                raise LedgerError(f"{self.path} is closed.")
            self._write(self.path, [_body(entry) for entry in entries])
        self._entries.extend(entries)

    def _open(self, path: Path) -> None:
        lines, rest = _lines(path)
        if not lines and rest and not (rest.startswith(_START) or _START.startswith(rest)):
            raise LedgerError(f"{path} is not a ledger. Nothing was changed; give the ledger another name.")
        if lines:
            cap = self.budget
            self._load(path, lines)
            if cap is not None and cap != self.budget:
                raise LedgerError(f"{path} was opened with {cap}, but it was made for {self.budget}.")
            if rest:  # a line cut short by a crash: its charge was never acted on
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size - len(rest))
                    os.fsync(file.fileno())
            return
        path.unlink(missing_ok=True)  # at most the first line, cut short: nothing was ever charged
        head = {"format": FORMAT, "budget": None if self.budget is None else asdict(self.budget), "made": int(time.time())}
        self._write(path, [head])
        _sync_directory(path.parent)

    def _load(self, path: Path, lines: list[bytes]) -> None:
        for number, line in enumerate(lines, start=1):
            body, self._tip = _checked(path, number, line, self._tip)
            try:
                if number == 1:
                    if body["format"] != FORMAT:
                        raise LedgerError(f"{path} has the format {body['format']!r}, not {FORMAT!r}.")
                    self.budget = None if body["budget"] is None else Budget(**body["budget"])
                else:
                    self._entries.append(Entry(body["run"], from_json(body["event"]), int(body["count"])))
            except (KeyError, TypeError) as error:
                raise LedgerError(f"{path} is damaged at line {number}: {error}. Nothing was changed.") from error
            except InputError as error:
                raise LedgerError(f"{path} has a budget that cannot be kept: {error} Nothing was changed.") from error

    def _write(self, path: Path, bodies: list[dict[str, Any]]) -> None:
        tip, block = self._tip, b""
        for body in bodies:
            text = json.dumps(body, separators=(",", ":"), sort_keys=True)
            tip = _chain(tip, text)
            block += _START + f'{tip}","body":{text}}}\n'.encode()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a last line that a crash left without its newline
            block = b"\n" + block
        try:
            written = os.write(descriptor, block)
            if written < len(block):
                raise OSError(f"only {written} of {len(block)} bytes fitted on the disk")
            os.fsync(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise LedgerError(f"{path} could not be written ({error}), so nothing more is released.") from error
        finally:
            os.close(descriptor)
        self._tip = tip


class Run:
    """One sequence of releases; what the ledger already holds of it has been paid for."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.name = name
        self.position = 0
        self._paid: list[DpEvent] = []
        self._cleared: list[DpEvent] = []  # the next releases, found affordable
        self._seen = 0  # when the ledger had so many entries
        for entry in ledger.entries:
            if entry.run == name:
                self._paid.extend([entry.event] * entry.count)

    @property
    def paid(self) -> int:
        """How many releases of this run the ledger holds."""
        return len(self._paid)

    def since(self, position: int) -> DpEvent:
        """What this run has released since it stood there; since 0, all of it."""
        return compose(self._paid[position : self.position])

    def pay(self, events: Iterable[DpEvent]) -> None:
        """Charge the next releases, durably, before they happen. Those that the ledger already holds are free."""
        with self.ledger._paying:  # nobody else spends between the question whether the budget allows it and the charge
            self._pay(events)

    def _pay(self, events: Iterable[DpEvent]) -> None:
        fresh: list[DpEvent] = []
        position = self.position
        for event in _parts(events):
            if position < len(self._paid):
                if self._paid[position] != event:
                    raise LedgerError(
                        "this run is not the one that the ledger holds: its release "
                        f"{position + 1} was recorded as something else. Start a new run."
                    )
            else:
                fresh.append(event)
            position += 1
        cleared = self._seen == len(self.ledger.entries) and fresh == self._cleared[: len(fresh)]
        if fresh and not cleared and not self.ledger.allows(fresh):
            raise BudgetExceeded(f"{len(fresh)} more releases would exceed the ledger's budget: {self.ledger.budget}.")
        charges = [Entry(self.name, event, count) for event, count in atoms(compose(fresh))]
        if charges:
            self.ledger._append(charges)
        self._paid.extend(fresh)
        self._cleared = self._cleared[len(fresh) :] if cleared else []
        self._seen = len(self.ledger.entries)
        self.position = position

    def affordable(self, events: Sequence[DpEvent]) -> int:
        """How many of the next releases the ledger's budget holds; what is paid already is affordable, and so is what is free."""
        fresh = list(_parts(events))
        held = min(len(fresh), max(0, len(self._paid) - self.position))
        del fresh[:held]
        few, many = 0, len(fresh)
        if not self.ledger.allows(fresh):
            while many - few > 1:
                middle = (few + many) // 2
                few, many = (middle, many) if self.ledger.allows(fresh[:middle]) else (few, middle)
            many = few
        every = many == len(fresh)
        del fresh[many:]
        self._cleared, self._seen = fresh, len(self.ledger.entries)
        if every:
            return len(events)
        ends = itertools.accumulate(sum(1 for _ in _parts([event])) for event in events)  # how many parts, up to each event
        return next(place for place, end in enumerate(ends) if end > held + many)


def _parts(events: Iterable[DpEvent]) -> Iterator[DpEvent]:
    """What a ledger holds of these events: atoms, one by one. A round that draws two kinds of noise has two."""
    for event in events:
        if isinstance(event, ComposedDpEvent | SelfComposedDpEvent):
            for part, count in atoms(event):
                yield from itertools.repeat(part, count)
        elif not isinstance(event, NoOpDpEvent):
            yield event


def _copy(budget: Budget | None, entries: list[Entry]) -> Ledger:
    ledger = Ledger(budget)
    ledger._entries, ledger._read_only = entries, True
    return ledger


def _body(entry: Entry) -> dict[str, Any]:
    return {"run": entry.run, "event": to_json(entry.event), "count": entry.count, "time": int(time.time())}


def _chain(tip: str, text: str) -> str:
    return hashlib.sha256(f"{tip}\n{text}".encode()).hexdigest()[:32]


def _checked(path: Path, number: int, line: bytes, tip: str) -> tuple[dict[str, Any], str]:
    record = _LINE.fullmatch(line)  # the text itself is hashed: 5 and 5.0 are the same number, but not the same line
    if record is None or record[1].decode() != _chain(tip, record[2].decode("ascii", "replace")):
        raise LedgerError(
            f"{path} is damaged at line {number}: its hash does not match. Nothing was changed; restore the file from a "
            "copy, and if there is none, treat the budget as spent."
        )
    body: dict[str, Any] = json.loads(record[2])
    return body, record[1].decode()


def _lines(path: Path) -> tuple[list[bytes], bytes]:
    """The lines that a newline ends, and what follows the last of them, which a crash may have cut short.

    A record that is whole although its newline is missing counts as a line: its charge was written, if perhaps not used. One
    that something else follows was damaged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], b""
    *lines, rest = content.split(b"\n")
    try:
        _, end = json.JSONDecoder().raw_decode(rest.decode("ascii", "replace"))
    except ValueError:
        return lines, rest
    if end < len(rest):
        raise LedgerError(f"{path} is damaged at line {len(lines) + 1}: it does not end as it should. Nothing was changed.")
    return [*lines, rest], b""


def _lock(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LedgerError(f"{path} is in use by another process. Wait for it, or use another ledger.") from None
    return lock


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
