"""The ledger: an append-only record of what was released, written before it is used.

In memory, or durable in a file of JSON lines. What must stay true of a file:

- A charge is on the disk (`fsync`) before `pay` returns, so an answer that was used was paid for, whatever happens next.
- Every line carries a hash of itself and of the line before. An anchor beside the file (`.tip`) holds the number of lines and the
  newest hash, so that an older copy of the file, or one that lost its end, is noticed too.
- The anchor is written after the lines, and before `pay` returns. So a crash can leave lines that the anchor does not know,
  complete or cut short: they were never acted on; a complete one counts as spent, and one cut short is removed. It cannot leave
  an anchor that knows more than the file. That, and any other damage, is reported, never repaired or reset.
- One process writes at a time (a lock on the file itself). In a torchrun job that is rank 0: in the others a ledger is opened
  when something pays into it, not when it is made, because a script that runs in every process makes it in every process.

A cap on all runs together has to hold although runs are chosen after looking at the answers of earlier ones: it is a filter
(`filters`). Only a ledger whose first run was planned before anything was released, and is too large for the filter, prices
that plan as one composition; then the cap belongs to that run only. Which of the two it is follows from the plan and the cap,
is decided before the first charge and is written with it, so that no answer can influence it.

A *run* is a sequence of releases that one generator of randomness drew. A resumed run draws the same randomness again, so it
repeats the same answers and pays nothing for what the ledger already holds of it: `Run.pay` charges only what is new.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from privopt.durable import sync_directory, write_atomically
from privopt.errors import BudgetExceeded, InputError, LedgerError
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget, Neighbours
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
    atoms,
    compose,
    from_json,
    to_json,
)
from privopt.privacy.filters import RenyiFilter, best_order

try:
    import fcntl
except ImportError:  # ledgers in memory work all the same
    fcntl = None  # type: ignore[assignment]

FORMAT = "privopt-ledger-2"
_START = b'{"hash":"'  # of every line
_LINE = re.compile(rb'\{"hash":"([0-9a-f]{32})","body":(\{.*\})\}')
_SLOT = re.compile(rb"((\d{12}) (\d{12}) ([0-9a-f]{32}) [0-9a-f]{32}\n)")
NOTHING = "0" * 32  # hash of no lines at all
ADVICE = "Nothing was changed; restore the file from a copy, and if there is none, treat the budget as spent."


@dataclass(frozen=True)
class Entry:
    """One charge: `count` releases of `event` by a run."""

    run: str
    event: DpEvent
    count: int


class Anchor(NamedTuple):
    """What a ledger held after its last write; `turn` counts the writes."""

    turn: int
    lines: int
    tip: str


class Ledger:
    """What has been spent by all runs that pay into this ledger.

    `budget` is a cap on all of it together: a release that would exceed it is refused before it happens.

    **Guarantee** All releases together are within the cap, whatever the user does with earlier answers to choose later runs. A
    run that has the cap to itself (`holder`) is within it if its events were fixed before it began, as those of every method are.

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
        self.path = None if path is None else Path(path).absolute()  # wherever the process goes
        self.holder: str | None = None  # the run that has the cap to itself
        self.made: int | None = None  # when a ledger that was read from a file was begun, in seconds since 1970
        self._order = math.inf if budget is None else best_order(budget)
        self._entries: list[Entry] = []
        self._tip, self._lines, self._size, self._turn = NOTHING, 0, 0, 0
        self._read_only = False
        self._process = os.getpid()
        self._paying = threading.Lock()  # of threads; processes are kept apart by the lock of the file
        self._file: int | None = None
        self._deferred = self.path is not None and _is_other_rank()
        if not self._deferred:
            self._open_file()

    def _open_file(self) -> None:
        self._deferred = False
        if self.path is not None:
            try:
                self._open(self.path)
            except BaseException:
                self.close()
                raise

    # ------------------------------------------------------------ reading

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Read a ledger without locking it, to show what was spent."""
        ledger = cls()
        anchor = _read_anchor(Path(path))  # first: a ledger that is being written may be ahead of it, never behind
        lines, rest = _read_lines(Path(path))
        if anchor is None and not Path(path).exists():
            raise LedgerError(f"{path} holds no ledger.")
        if _has_begun(Path(path), lines, rest, anchor):
            ledger._load(Path(path), lines, anchor)
        ledger._read_only = True
        return ledger

    @classmethod
    def adopt(cls, path: str | os.PathLike[str]) -> None:
        """Create a new anchor for a ledger that lost its own, for example because it was moved without it.

        Whether charges are missing cannot be checked then: the caller vouches that the file is the newest copy.
        """
        place = Path(path)
        if _read_anchor(place) is None and _read_lines(place)[0]:
            ledger = cls()
            try:
                ledger._lock(place)
                ledger._load(place, _read_lines(place)[0], Anchor(0, 0, NOTHING))
                _write_anchor(place, Anchor(0, ledger._lines, ledger._tip))
            finally:
                ledger.close()
        cls(path=path).close()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All charges, in order."""
        return tuple(self._entries)

    @property
    def event(self) -> DpEvent:
        """All charges, as one event."""
        return compose(SelfComposedDpEvent(entry.event, entry.count) for entry in self._entries)

    @property
    def newest(self) -> str:
        """The hash of a file's newest line, which covers all lines before it."""
        return self._tip

    def epsilon(
        self, delta: float | None = None, neighbours: Neighbours | None = None, *, accountant: Accountant = "auto"
    ) -> float:
        """What all of it costs; δ and neighbours are the budget's by default."""
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

    def allows(self, events: Iterable[DpEvent], run: str | None = None) -> bool:
        """Whether these releases of a run, on top of what is spent, stay within the cap."""
        if self.budget is None:
            return True
        if self.holder is None:
            return self._filter.holds(compose([self.event, *events]))
        return run == self.holder and self._fits_as_plan(events)

    @property
    def used(self) -> float:
        """The share of the cap that is used, by the rule that enforces the cap.

        `epsilon` is the price of what happened, as if it had been planned: it is smaller, and no bound on what was chosen by
        looking at earlier answers.

        >>> ledger = Ledger(Budget(1.0, 1e-5))
        >>> ledger.run().pay([GaussianDpEvent(8.0)] * 2)
        >>> round(ledger.used, 2)
        0.52
        """
        if self.budget is None:
            raise InputError("this ledger has no budget, so there is no cap to use up.")
        return self._filter.used(self.event) if self.holder is None else self.epsilon() / self.budget.epsilon

    @property
    def cap(self) -> str | None:
        """The cap in words, and how it is enforced, for statements."""
        if self.budget is None:
            return None
        cap = f"a cap of ε = {self.budget.epsilon:.4g}, δ = {self.budget.delta:.3g}"
        if self.holder is not None:
            return f"{cap} for one planned run, accounted as one composition"
        rule = "basic composition" if math.isinf(self._order) else f"a Rényi filter of order {self._order:.4g}"
        return f"{cap} for all runs, which may depend on the answers of earlier ones ({rule}); {self.used:.1%} used"

    @property
    def _filter(self) -> RenyiFilter:
        assert self.budget is not None
        return RenyiFilter(self.budget, self._order)

    def _fits_as_plan(self, events: Iterable[DpEvent]) -> bool:
        """Whether these events, after all charges, stay within the cap as one plan that was fixed beforehand."""
        assert self.budget is not None
        return epsilon(compose([self.event, *events]), self.budget.delta, self.budget.neighbours) <= self.budget.epsilon

    # ------------------------------------------------------------ writing

    def run(self, name: str | None = None, *, budget: Budget | None = None) -> "Run":
        """A run that pays into this ledger; with the name of an earlier one, its continuation.

        `budget` is what the whole run was planned within, if it pays for something before all of its events are known.
        """
        if self._deferred:
            self._open_file()
        return Run(self, name or uuid.uuid4().hex[:12], budget)

    def mirror(self, leading: "Ledger") -> None:
        """Show what the ledger of rank 0 holds, which alone is written; nothing can be charged to this one any more."""
        self.budget, self.holder, self._order, self._entries = (
            leading.budget,
            leading.holder,
            leading._order,
            list(leading._entries),
        )
        self._deferred, self._read_only = False, True

    def close(self) -> None:
        """Release the file, so that another process can write."""
        if self._file is not None:
            self._file = None
            self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __sklearn_clone__(self) -> Self:  # clones of an estimator share the ledger
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:  # a copy in another process is read-only: its charges would be lost
        return _make_read_only, (self.budget, self._entries, self._order, self.holder)

    def _append(self, entries: list[Entry], *, exclusive: bool) -> None:
        """Charge these entries of one run; `exclusive` reserves the cap for it."""
        if self._read_only:
            raise LedgerError("this is a copy of a ledger, for reading: what it spent would be lost. With n_jobs, use n_jobs=1.")
        if os.getpid() != self._process:
            raise LedgerError("this ledger belongs to the process that made it: what a fork spends would be lost. Make one here.")
        if self.path is not None:
            if self._file is None:
                raise LedgerError(f"{self.path} is closed.")
            self._write(self.path, self._file, [_body(entry) | ({"alone": True} if exclusive else {}) for entry in entries])
        self._entries.extend(entries)
        if exclusive:
            self.holder = entries[0].run

    def _lock(self, path: Path) -> int:
        """Open and lock the file for this process; it is created if missing."""
        if fcntl is None:
            raise LedgerError(f"{path} cannot be locked: this platform has no fcntl. A ledger in memory, Ledger(), needs none.")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._unlock = weakref.finalize(self, _unlock, self._file, self._process)  # at the end of the script, if nobody closes it
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(f"{path} is in use by another process. Wait for it, or use another ledger.") from None
        return self._file

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        anchor = _read_anchor(path)
        if anchor is not None and anchor.lines > 1 and not path.exists():
            raise _missing_lines(path, 0, anchor.lines)
        file = self._lock(path)
        anchor = _read_anchor(path)  # again, now that nobody else writes it
        lines, rest = _read_lines(path)
        if _has_begun(path, lines, rest, anchor):
            requested = self.budget
            self._load(path, lines, anchor)
            if requested is not None and requested != self.budget:
                raise LedgerError(f"{path} was opened with {requested}, but it was made for {self.budget}.")
            self._size = path.stat().st_size - len(rest)
            if rest:  # a line cut short by a crash: its charge was never acted on
                os.ftruncate(file, self._size)
                os.fsync(file)
            self._update_anchor(path, self._lines, self._tip)
            return
        os.ftruncate(file, 0)  # at most the first line, cut short: nothing was ever charged
        cap = None if self.budget is None else asdict(self.budget)
        head: dict[str, Any] = {"format": FORMAT, "budget": cap, "made": int(time.time())}
        if self.budget is not None and self.budget.delta:
            head["order"] = self._order
        self._write(path, file, [head])
        sync_directory(path.parent)

    def _load(self, path: Path, lines: list[bytes], anchor: Anchor | None) -> None:
        for number, line in enumerate(lines, start=1):
            body, self._tip = _parse_line(path, number, line, self._tip)
            if anchor is not None and number == anchor.lines and self._tip != anchor.tip:
                raise LedgerError(
                    f"{path} is not the ledger that its anchor {_anchor_path(path)} knows: line {number} is another. {ADVICE}"
                )
            try:
                if number == 1:
                    if body["format"] != FORMAT:
                        raise LedgerError(f"{path} has the format {body['format']!r}, not {FORMAT!r}.")
                    self.budget = None if body["budget"] is None else Budget(**body["budget"])
                    self._order = float(body.get("order", math.inf))
                    self.made = body.get("made")
                else:
                    self._entries.append(Entry(body["run"], from_json(body["event"]), int(body["count"])))
                    if body.get("alone"):
                        self.holder = body["run"]
            except (KeyError, TypeError) as error:
                raise LedgerError(f"{path} is damaged at line {number}: {error}. Nothing was changed.") from error
            except InputError as error:
                raise LedgerError(f"{path} has a budget that cannot be kept: {error} Nothing was changed.") from error
        self._lines = len(lines)
        if anchor is None:
            raise LedgerError(
                f"{path} has no anchor, {_anchor_path(path)}, so it is unknown whether charges are missing. Restore both. If "
                "the ledger was moved without it and is its newest copy, say so: Ledger.adopt(path) makes a new one."
            )
        if self._lines < anchor.lines:
            raise _missing_lines(path, self._lines, anchor.lines)
        self._turn = anchor.turn

    def _write(self, path: Path, file: int, bodies: list[dict[str, Any]]) -> None:
        tip, block = self._tip, b""
        for body in bodies:
            text = json.dumps(body, separators=(",", ":"), sort_keys=True)
            tip = _chain(tip, text)
            block += _START + f'{tip}","body":{text}}}\n'.encode()
        held = os.fstat(file)
        if not (path.exists() and os.path.samestat(held, path.stat()) and held.st_size == self._size):
            raise LedgerError(f"{path} was replaced or changed while it was open, so nothing more is released. {ADVICE}")
        if self._size and os.pread(file, 1, self._size - 1) != b"\n":  # a last line that a crash left without its newline
            block = b"\n" + block
        try:
            if not self._lines:  # before anything is written: from now on a ledger without an anchor has lost it
                _write_anchor(path, Anchor(0, 0, NOTHING))
            _write_all(file, block)
            os.fsync(file)
            self._update_anchor(path, self._lines + len(bodies), tip)
        except BaseException as error:  # nothing is released for it, so it is taken back: first from the anchor
            with contextlib.suppress(OSError):
                self._update_anchor(path, self._lines, self._tip)
                os.ftruncate(file, self._size)
            if isinstance(error, OSError):
                name, reason = error.filename or path, error.strerror or error
                raise LedgerError(f"{name} could not be written ({reason}), so nothing more is released.") from error
            raise
        self._tip, self._lines, self._size = tip, self._lines + len(bodies), self._size + len(block)

    def _update_anchor(self, path: Path, lines: int, tip: str) -> None:
        self._turn += 1
        _write_anchor(path, Anchor(self._turn, lines, tip))


class Run:
    """One sequence of releases; what the ledger already holds of it has been paid for."""

    def __init__(self, ledger: Ledger, name: str, budget: Budget | None = None) -> None:
        self.ledger = ledger
        self.name = name
        self.position = 0
        self._paid: list[DpEvent] = []
        self._cleared: list[DpEvent] = []  # the next releases, known to be affordable
        self._seen = 0  # number of ledger entries at that time
        for entry in ledger.entries:
            if entry.run == name:
                self._paid.extend([entry.event] * entry.count)
        self._exclusive = False  # whether the first charge reserves the cap for this run
        if budget is not None and ledger.budget is not None and not ledger.entries:
            noise = calibrate(GaussianDpEvent, budget) if budget.delta else math.inf
            self._plan([GaussianDpEvent(noise) if budget.delta else PureDpEvent(budget.epsilon)])

    @property
    def paid(self) -> int:
        """How many releases of this run are recorded in the ledger."""
        return len(self._paid)

    def since(self, position: int) -> DpEvent:
        """What this run has released since that position; since 0, all of it."""
        return compose(self._paid[position : self.position])

    def pay(self, events: Iterable[DpEvent]) -> None:
        """Charge the next releases, durably, before they happen. Those that the ledger already holds are free."""
        with self.ledger._paying:  # no other thread spends between the check and the charge
            self._pay(events)

    def _pay(self, events: Iterable[DpEvent]) -> None:
        fresh: list[DpEvent] = []
        position = self.position
        for event in _split(events):
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
        if fresh and not cleared and not self._fits(fresh):
            more = "one more release" if len(fresh) == 1 else f"{len(fresh)} more releases"
            raise BudgetExceeded(f"{more} would exceed the ledger's budget: {self.ledger.budget}.")
        charges = [Entry(self.name, event, count) for event, count in atoms(compose(fresh))]
        if charges:
            self.ledger._append(charges, exclusive=self._exclusive and not self.ledger.entries)
        self._paid.extend(fresh)
        self._cleared = self._cleared[len(fresh) :] if cleared else []
        self._seen = len(self.ledger.entries)
        self.position = position

    def affordable(self, events: Sequence[DpEvent]) -> int:
        """How many of the next releases fit into the ledger's budget; those already paid, and free ones, always do.

        `events` are all that this run will release, fixed beforehand: a ledger without charges may reserve its cap for them.
        """
        fresh = list(_split(events))
        held = min(len(fresh), max(0, len(self._paid) - self.position))
        del fresh[:held]
        self._plan(fresh)
        few, many = 0, len(fresh)
        if not self._fits(fresh):
            while many - few > 1:
                middle = (few + many) // 2
                few, many = (middle, many) if self._fits(fresh[:middle]) else (few, middle)
            many = few
        every = many == len(fresh)
        del fresh[many:]
        self._cleared, self._seen = fresh, len(self.ledger.entries)
        if every:
            return len(events)
        ends = itertools.accumulate(sum(1 for _ in _split([event])) for event in events)  # how many parts, up to each event
        return next(place for place, end in enumerate(ends) if end > held + many)

    def _plan(self, events: list[DpEvent]) -> None:
        """Reserve the cap for this run if its plan exceeds the filter, and nothing was released that the plan could depend on."""
        if self.ledger.budget is not None and not self.ledger.entries:
            self._exclusive = not self.ledger._filter.holds(compose(events))

    def _fits(self, events: list[DpEvent]) -> bool:
        """Whether the ledger's budget has room for these releases of this run."""
        if self._exclusive and not self.ledger.entries:
            return self.ledger._fits_as_plan(events)
        return self.ledger.allows(events, self.name)


def _is_other_rank() -> bool:
    """Whether this process is one of a torchrun job, and not rank 0."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


def _unlock(file: int, process: int) -> None:
    """Close a file that `process` has locked. A forked process shares the lock, and must not release it."""
    if os.getpid() == process:
        fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def _split(events: Iterable[DpEvent]) -> Iterator[DpEvent]:
    """Split events into the atoms that a ledger records. A round that draws two kinds of noise has two."""
    for event in events:
        if isinstance(event, ComposedDpEvent | SelfComposedDpEvent):
            for part, count in atoms(event):
                yield from itertools.repeat(part, count)
        elif not isinstance(event, NoOpDpEvent):
            yield event


def _make_read_only(budget: Budget | None, entries: list[Entry], order: float, holder: str | None) -> Ledger:
    ledger = Ledger(budget)
    ledger._entries, ledger._order, ledger.holder, ledger._read_only = entries, order, holder, True
    return ledger


def _body(entry: Entry) -> dict[str, Any]:
    return {"run": entry.run, "event": to_json(entry.event), "count": entry.count, "time": int(time.time())}


def _chain(tip: str, text: str) -> str:
    return hashlib.sha256(f"{tip}\n{text}".encode()).hexdigest()[:32]


def _parse_line(path: Path, number: int, line: bytes, tip: str) -> tuple[dict[str, Any], str]:
    record = _LINE.fullmatch(line)  # the text itself is hashed: 5 and 5.0 are the same number, but not the same line
    if record is None or record[1].decode() != _chain(tip, record[2].decode("ascii", "replace")):
        raise LedgerError(f"{path} is damaged at line {number}: its hash does not match. {ADVICE}")
    body: dict[str, Any] = json.loads(record[2])
    return body, record[1].decode()


def _read_lines(path: Path) -> tuple[list[bytes], bytes]:
    """Read the complete lines, and what follows the last newline, which a crash may have cut short.

    A complete record without a newline counts as a line: its charge was written, if perhaps not used. One that is followed by
    anything else is damaged.
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


def _has_begun(path: Path, lines: list[bytes], rest: bytes, anchor: Anchor | None) -> bool:
    """Whether the ledger has, or should have, a first line; one that is cut short counts as none."""
    if not lines and rest and not (rest.startswith(_START) or _START.startswith(rest)):
        raise LedgerError(f"{path} is not a ledger. Nothing was changed; give the ledger another name.")
    return bool(lines) or (anchor is not None and anchor.lines > 1)


def _anchor_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.tip")


def _read_anchor(path: Path) -> Anchor | None:
    """Read the newer of the two slots that are intact; None if there is no anchor."""
    try:
        content = _anchor_path(path).read_bytes()
    except FileNotFoundError:
        return None
    found = [Anchor(int(turn), int(lines), tip.decode()) for record, turn, lines, tip in _SLOT.findall(content)]
    intact = [anchor for anchor in found if _slot(anchor) in content]
    if not intact:
        raise LedgerError(f"{_anchor_path(path)} is damaged, so it is unknown whether {path} is complete. {ADVICE}")
    return max(intact)


def _slot(anchor: Anchor) -> bytes:
    text = f"{anchor.turn:012d} {anchor.lines:012d} {anchor.tip}"
    return f"{text} {_chain(NOTHING, text)}\n".encode()


def _missing_lines(path: Path, lines: int, known: int) -> LedgerError:
    missing = f"the last {known - lines} of {known} lines, and the charges in them, are missing"
    return LedgerError(f"{path} is older than its anchor {_anchor_path(path)}: {missing}. {ADVICE}")


def _write_anchor(path: Path, anchor: Anchor) -> None:
    """Overwrite the older of two slots in place: an interrupted write leaves the other, and needs no more disk space."""
    slot, place = _slot(anchor), _anchor_path(path)
    if not anchor.turn:
        write_atomically(place, 2 * slot)
        return
    descriptor = os.open(place, os.O_WRONLY)
    try:
        os.lseek(descriptor, anchor.turn % 2 * len(slot), os.SEEK_SET)
        _write_all(descriptor, slot)
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(place)) from error
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, block: bytes) -> None:
    written = os.write(descriptor, block)
    if written < len(block):
        raise OSError(f"only {written} of {len(block)} bytes could be written")
