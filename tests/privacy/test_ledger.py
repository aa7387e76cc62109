"""The ledger in one process: what it holds, what it refuses, and that no damage goes unnoticed."""

import copy
import os
import pickle
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from privopt.errors import BudgetExceeded, InputError, LedgerError
from privopt.privacy import ledger as module
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import (
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PureDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    atoms,
    compose,
)
from privopt.privacy.ledger import Entry, Ledger
from tests.privacy.strategies import sampled

BUDGET = Budget(3.0, 1e-5)
RELEASE = GaussianDpEvent(8.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "ledger.jsonl"


def written(path: Path) -> bytes:
    """A ledger with a header and three charges."""
    with Ledger(BUDGET, path) as ledger:
        ledger.run("first").pay([RELEASE] * 2)
        ledger.run("second").pay([GaussianDpEvent(2.5)])
        ledger.run("third").pay([FailureDpEvent(1e-07)])
    return path.read_bytes()


def anchor(path: Path) -> Path:
    return path.with_name(path.name + ".tip")


ENTRIES = (
    Entry("first", RELEASE, 2),
    Entry("second", GaussianDpEvent(2.5), 1),
    Entry("third", FailureDpEvent(1e-07), 1),
)

# ---------------------------------------------------------------- what is written is there


def test_a_reopened_ledger_holds_what_was_charged_and_its_budget(path: Path) -> None:
    written(path)
    with Ledger(path=path) as ledger:
        assert ledger.entries == ENTRIES
        assert ledger.budget == BUDGET
    assert Ledger.read(path).entries == ENTRIES


@settings(max_examples=50)
@given(st.lists(sampled, max_size=5))
def test_every_kind_of_event_comes_back_from_a_file(tmp_path_factory: pytest.TempPathFactory, events: list[DpEvent]) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    with Ledger(path=path) as ledger:
        ledger.run().pay(events)
        assert ledger.event == compose(events)
    assert Ledger.read(path).event == compose(events)


def test_a_charge_is_on_the_disk_before_pay_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of the file was there when the last fsync was called."""
    synced: list[int] = []
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", counted)
    with Ledger(path=path) as ledger:
        assert path.stat().st_size in synced
        for _ in range(3):
            synced.clear()
            ledger.run().pay([RELEASE])
            assert synced == [path.stat().st_size, anchor(path).stat().st_size]  # the anchor last


def test_a_block_of_equal_releases_is_one_line(path: Path) -> None:
    with Ledger(path=path) as ledger:
        ledger.run().pay([RELEASE] * 1000)
    assert len(path.read_bytes().splitlines()) == 2


def test_the_event_of_a_ledger_is_what_all_runs_released_in_order() -> None:
    ledger = Ledger()
    one, other = ledger.run("one"), ledger.run("other")
    one.pay([RELEASE])
    other.pay([RELEASE, PureDpEvent(0.1)])
    one.pay([RELEASE, NoOpDpEvent()])
    assert ledger.event == compose([RELEASE, RELEASE, PureDpEvent(0.1), RELEASE])
    assert (one.paid, other.paid) == (2, 2)
    assert one.since(0) == SelfComposedDpEvent(RELEASE, 2)
    assert other.since(1) == PureDpEvent(0.1)


def test_the_epsilon_of_a_ledger_is_that_of_its_event() -> None:
    ledger = Ledger(BUDGET)
    assert ledger.epsilon() == 0.0
    ledger.run().pay([RELEASE] * 2)
    assert ledger.epsilon() == epsilon(ledger.event, 1e-5)
    assert ledger.epsilon(1e-7, "replace-one") == epsilon(ledger.event, 1e-7, "replace-one")
    assert ledger.epsilon(accountant="rdp") == epsilon(ledger.event, 1e-5, accountant="rdp")


def test_without_a_budget_delta_has_to_be_said() -> None:
    with pytest.raises(InputError, match="delta"):
        Ledger().epsilon()
    assert Ledger().epsilon(1e-5) == 0.0


def test_what_is_held_cannot_be_changed_from_outside() -> None:
    ledger = Ledger()
    ledger.run("a").pay([RELEASE])
    assert isinstance(ledger.entries, tuple)
    with pytest.raises(AttributeError):
        ledger.entries[0].count = 0  # type: ignore[misc]


# ---------------------------------------------------------------- a crash while writing


def test_a_last_line_cut_short_at_any_byte_was_never_acted_on_and_is_removed(path: Path) -> None:
    with Ledger(BUDGET, path) as ledger:
        for entry in ENTRIES[:2]:
            ledger.run(entry.run).pay([entry.event] * entry.count)
        before = anchor(path).read_bytes()
        ledger.run("third").pay([FailureDpEvent(1e-07)])
    content = path.read_bytes()
    last = content[:-1].rfind(b"\n") + 1
    for cut in range(last, len(content) - 1):
        path.write_bytes(content[:cut])
        anchor(path).write_bytes(before)  # it is written last
        assert Ledger.read(path).entries == ENTRIES[:2]
        assert path.read_bytes() == content[:cut]  # reading repairs nothing
        with Ledger(path=path) as ledger:
            assert ledger.entries == ENTRIES[:2]
            assert ledger.budget == BUDGET
            assert path.read_bytes() == content[:last]
    with Ledger(path=path) as ledger:
        ledger.run("third").pay([FailureDpEvent(1e-07)])
    assert Ledger.read(path).entries == ENTRIES


def test_a_last_line_that_lost_nothing_but_its_end_counts_as_spent(path: Path) -> None:
    """Whether it was acted on cannot be told, so it was."""
    path.write_bytes(written(path)[:-1])
    assert Ledger.read(path).entries == ENTRIES
    with Ledger(path=path) as ledger:
        assert ledger.entries == ENTRIES
        ledger.run("fourth").pay([RELEASE])
        ledger.run("fifth").pay([RELEASE])
    assert Ledger.read(path).entries == (*ENTRIES, Entry("fourth", RELEASE, 1), Entry("fifth", RELEASE, 1))


def test_a_first_line_cut_short_is_a_ledger_that_nothing_was_charged_to(path: Path) -> None:
    content = written(path)
    for cut in range(0, content.index(b"\n"), 5):
        path.write_bytes(content[:cut])
        module._write_anchor(path, module.Anchor(0, 0, module.NOTHING))  # as it is before the first line
        with Ledger(BUDGET, path) as ledger:
            assert ledger.entries == ()
            assert ledger.budget == BUDGET
        assert Ledger.read(path).budget == BUDGET


# ---------------------------------------------------------------- any other damage


def refused(path: Path, content: bytes, match: str | None = None) -> None:
    """Neither opening nor reading accepts this, and the file stays as it is."""
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=match):
        Ledger(path=path)
    with pytest.raises(LedgerError, match=match):
        Ledger.read(path)
    assert path.read_bytes() == content


def test_a_flipped_bit_anywhere_is_reported_and_nothing_is_changed(path: Path) -> None:
    content = written(path)
    for place in range(len(content) - 1):
        flipped = bytes([content[place] ^ (1 << place % 8)])  # one of the eight, each in turn
        refused(path, content[:place] + flipped + content[place + 1 :], "damaged|not a ledger")


@pytest.mark.parametrize("byte", [b"X", b" ", b"\x00", b"\x0b", b"\x8a"], ids=repr)
def test_a_damaged_end_of_the_last_line_is_not_mistaken_for_a_crash(path: Path, byte: bytes) -> None:
    """A crash cuts a line short; it does not put another byte behind a whole one. The charge must not be lost."""
    content = written(path)
    path.write_bytes(content[:-1] + byte)
    with pytest.raises(LedgerError):
        Ledger(path=path)
    assert path.read_bytes() == content[:-1] + byte


def test_a_damaged_end_of_the_only_line_does_not_reset_the_ledger(path: Path) -> None:
    with Ledger(BUDGET, path):
        pass
    content = path.read_bytes()[:-1] + b"X"
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger(path=path)
    assert path.read_bytes() == content


def test_a_changed_byte_is_reported_even_where_the_number_stays_the_same(path: Path) -> None:
    content = written(path)
    assert content.count(b"8.0") == 1
    refused(path, content.replace(b"8.0", b"8e0"), "damaged at line 2")


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], lines[2], lines[3]],
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [lines[0], lines[1], lines[1], lines[2], lines[3]],
        lambda lines: lines[1:],
        lambda lines: [*lines, lines[0]],
        lambda lines: [*lines, b"\n"],
        lambda lines: [lines[0], b"\n", *lines[1:]],
    ],
    ids=["a line gone", "lines swapped", "a line twice", "no header", "two headers", "an empty line", "an empty line inside"],
)
def test_lines_that_are_moved_removed_or_added_are_reported(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    refused(path, b"".join(change(written(path).splitlines(keepends=True))), "damaged")


def test_a_damaged_ledger_says_what_to_do(path: Path) -> None:
    refused(
        path, written(path).replace(b'"count":2', b'"count":1'), "line 2.*restore the file from a copy.*treat the budget as spent"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"a,b\n1,2\n",
        b'{"some": "json"}\n',
        b"\x00" * 64,
        b'{"hash":"deadbeef","files":["thesis.tex"]}',
        b'{"hash":"deadbeef","files":["thesis.tex"]}\n',
        b"\n",
    ],
    ids=repr,
)
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    refused(path, content)


def test_a_ledger_of_another_format_is_refused_and_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMAT", "privopt-ledger-3")
    content = written(path)
    monkeypatch.undo()
    refused(path, content, "privopt-ledger-3")


def test_a_ledger_for_a_unit_that_nobody_enforces_is_refused_and_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "asdict", lambda budget: {**asdict(budget), "unit": "household"})
    content = written(path)
    monkeypatch.undo()
    refused(path, content, "a budget that cannot be kept: unit is 'household', but it is 'example'")


def test_reading_what_is_not_there_is_an_error_and_makes_nothing(path: Path) -> None:
    with pytest.raises(LedgerError, match="holds no ledger"):
        Ledger.read(path)
    assert not path.exists()


def test_a_ledger_is_not_opened_under_another_budget(path: Path) -> None:
    content = written(path)
    for other in (Budget(4.0, 1e-5), Budget(3.0, 1e-6), Budget(3.0, 1e-5, "replace-one")):
        with pytest.raises(LedgerError, match="was made for"):
            Ledger(other, path)
    assert path.read_bytes() == content
    with Ledger(BUDGET, path) as ledger:
        assert ledger.entries == ENTRIES


def test_a_ledger_without_a_budget_stays_one(path: Path) -> None:
    with Ledger(path=path):
        pass
    with pytest.raises(LedgerError, match="was made for"):
        Ledger(BUDGET, path)
    assert Ledger.read(path).budget is None


# ---------------------------------------------------------------- the anchor


def test_lines_cut_from_the_end_are_missed(path: Path) -> None:
    lines = written(path).splitlines(keepends=True)
    for kept in range(len(lines)):
        refused(path, b"".join(lines[:kept]), f"last {4 - kept} of 4 lines.*missing.*treat the budget as spent")


def test_a_zeroed_end_is_missed(path: Path) -> None:
    content = written(path)
    for zeroed in range(1, len(content), 17):
        refused(path, content[:-zeroed] + bytes(zeroed), "missing|damaged|not a ledger")


def test_zeros_after_what_the_anchor_knows_were_never_acted_on(path: Path) -> None:
    """A file that had grown when the power failed, before its content was there."""
    content = written(path)
    path.write_bytes(content + bytes(50))
    with Ledger(path=path) as ledger:
        assert ledger.entries == ENTRIES
    assert path.read_bytes() == content


def test_a_ledger_that_is_gone_is_missed(path: Path) -> None:
    written(path)
    path.unlink()
    for opened in (Ledger.read, lambda place: Ledger(path=place)):
        with pytest.raises(LedgerError, match="last 4 of 4 lines"):
            opened(path)
    assert not path.exists()


def test_an_older_copy_is_missed_also_when_others_were_charged_since(path: Path) -> None:
    older = written(path)
    with Ledger(path=path) as ledger:
        ledger.run().pay([RELEASE])
    refused(path, older, "last 1 of 5 lines")


def test_a_ledger_that_branched_off_is_not_the_one_that_the_anchor_knows(path: Path) -> None:
    older, knew = written(path), anchor(path).read_bytes()
    with Ledger(path=path) as ledger:
        ledger.run("this").pay([RELEASE])
    newer = anchor(path).read_bytes()
    path.write_bytes(older)
    anchor(path).write_bytes(knew)
    with Ledger(path=path) as ledger:
        ledger.run("that").pay([GaussianDpEvent(100.0)])
    anchor(path).write_bytes(newer)
    refused(path, path.read_bytes(), "line 5 is another")


def test_a_ledger_without_its_anchor_is_refused_until_it_is_adopted(path: Path) -> None:
    content = written(path)
    anchor(path).unlink()
    refused(path, content, r"has no anchor.*Ledger\.adopt")
    Ledger.adopt(path)
    assert Ledger.read(path).entries == ENTRIES
    with Ledger(path=path) as ledger:
        assert ledger.entries == ENTRIES
    refused(path, content[: content[:-1].rfind(b"\n") + 1], "last 1 of 4 lines")


def test_adopting_does_not_accept_a_ledger_that_is_behind_or_damaged(path: Path) -> None:
    content = written(path)
    path.write_bytes(content[: content[:-1].rfind(b"\n") + 1])
    with pytest.raises(LedgerError, match="last 1 of 4 lines"):
        Ledger.adopt(path)
    anchor(path).unlink()
    path.write_bytes(content.replace(b"8.0", b"9.0"))
    with pytest.raises(LedgerError, match="damaged at line 2"):
        Ledger.adopt(path)
    assert not anchor(path).exists()


def test_a_damaged_anchor_is_reported(path: Path) -> None:
    content = written(path)
    anchor(path).write_bytes(anchor(path).read_bytes().replace(b"0", b"1"))
    refused(path, content, "tip is damaged")


def test_an_anchor_cut_short_while_it_was_written_leaves_the_one_before(path: Path) -> None:
    """The charge that it was written for is in the ledger by then, and counts."""
    written(path)
    whole = anchor(path).read_bytes()
    half = len(whole) // 2
    for cut in range(half):
        for torn in (whole[:half] + bytes(cut) + whole[half + cut :], bytes(cut) + whole[cut:]):
            anchor(path).write_bytes(torn)
            assert Ledger.read(path).entries == ENTRIES
    with Ledger(path=path) as ledger:
        ledger.run("fourth").pay([RELEASE])
    assert len(Ledger.read(path).entries) == 4


def test_a_ledger_that_changes_while_it_is_open_takes_no_charges(path: Path) -> None:
    content = written(path)
    with Ledger(path=path) as ledger:
        path.write_bytes(content[: content[:-1].rfind(b"\n") + 1])
        with pytest.raises(LedgerError, match="changed while it was open"):
            ledger.run().pay([RELEASE])
        path.unlink()
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="replaced"):
            ledger.run().pay([RELEASE])
    assert path.read_bytes() == content


def test_a_charge_that_somebody_interrupts_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, calls = os.fsync, list[int]()

    def interrupted(descriptor: int) -> None:
        fsync(descriptor)
        calls.append(descriptor)
        if len(calls) == place:
            raise KeyboardInterrupt

    for place in (1, 2):
        with Ledger(BUDGET, path.with_name(f"ledger-{place}")) as ledger:
            spending = ledger.run("a")
            spending.pay([RELEASE])
            calls.clear()
            monkeypatch.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                spending.pay([RELEASE])
            monkeypatch.undo()
            spending.pay([RELEASE])
            assert len(ledger.entries) == len(Ledger.read(path.with_name(f"ledger-{place}")).entries) == 2


LONG = 40 if os.environ.get("PRIVOPT_LONG") else 1


def test_no_corruption_of_the_file_makes_what_is_spent_smaller_unseen(tmp_path: Path) -> None:
    """Whatever happens to the bytes of the ledger: it is refused, or holds at least what was charged."""
    rng = random.Random(5)
    path = tmp_path / "ledger"
    older = []
    with Ledger(Budget(50.0, 1e-5), path) as ledger:
        for number in range(8):
            older.append(path.read_bytes())
            ledger.run(f"run-{number}").pay([GaussianDpEvent(rng.uniform(5, 50))] * rng.randint(1, 5))
    content, charged = path.read_bytes(), ledger.entries
    lines = content.splitlines(keepends=True)

    def damaged() -> bytes:
        place, other = rng.randrange(len(content)), rng.randrange(len(lines))
        one = rng.randrange(len(lines))
        return rng.choice(
            [
                content[:place],
                content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :],
                content[:place] + rng.randbytes(rng.randint(1, 40)) + content[place:],
                content[:place] + bytes(len(content) - place),
                content[:place] + bytes(rng.randint(1, 100)) + content[place + 100 :],
                content[:place] + content[place + rng.randint(1, 300) :],
                b"".join(lines[:one] + lines[one + 1 :]),
                b"".join([*lines[:one], lines[other], *lines[one:]]),
                b"".join([*lines[:one], *sorted(lines[one:])]),
                rng.choice(older),
                content + rng.choice(lines),
                content + rng.randbytes(5),
            ]
        )

    refusals = 0
    for _ in range(300 * LONG):
        path.write_bytes(damaged())
        for opened in (Ledger.read, lambda place: Ledger(path=place)):
            try:
                held = opened(path)
                held.close()
            except LedgerError:
                refusals += 1
                continue
            assert held.entries == charged
    assert refusals > 300 * LONG


# ---------------------------------------------------------------- one writer, one identity


def test_a_second_ledger_on_the_same_file_is_refused_until_the_first_is_closed(path: Path) -> None:
    with Ledger(path=path) as ledger:
        with pytest.raises(LedgerError, match="in use"):
            Ledger(path=path)
        ledger.run().pay([RELEASE])
        assert Ledger.read(path).event == RELEASE  # reading needs no lock
    with Ledger(path=path) as again:
        assert again.event == RELEASE


def test_a_ledger_that_could_not_be_opened_does_not_stay_locked(path: Path) -> None:
    content = written(path)
    refused(path, content[:-20] + b"x" + content[-19:])
    path.write_bytes(content)
    with Ledger(path=path) as ledger:
        assert ledger.entries == ENTRIES


def test_a_closed_ledger_takes_no_charges(path: Path) -> None:
    with Ledger(path=path) as ledger:
        spending = ledger.run()
    with pytest.raises(LedgerError, match="is closed"):
        spending.pay([RELEASE])
    assert ledger.entries == Ledger.read(path).entries == ()


def test_a_clone_of_an_estimator_pays_into_the_same_ledger() -> None:
    ledger = Ledger(BUDGET)
    assert clone(ledger) is ledger


def test_threads_do_not_spend_the_same_budget_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    release = GaussianDpEvent(5.0)  # one fits, two do not
    allows = ledger.allows

    def slowly(events: Iterable[DpEvent], run: str | None = None) -> bool:
        allowed = allows(events, run)
        time.sleep(0.05)
        return allowed

    monkeypatch.setattr(ledger, "allows", slowly)

    def pay(_: int) -> bool:
        try:
            ledger.run().pay([release])
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(pay, range(4))) == 1
    assert ledger.event == release


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes that share memory here")
@pytest.mark.parametrize("durable", [False, True])
def test_a_fork_does_not_spend_unseen(tmp_path: Path, durable: bool) -> None:
    ledger = Ledger(Budget(1.0, 1e-5), tmp_path / "ledger" if durable else None)
    child = os.fork()
    if not child:
        try:
            ledger.run().pay([RELEASE])
        except LedgerError as refusal:
            os._exit(0 if "belongs to the process" in str(refusal) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ledger.run().pay([RELEASE])
    assert len(ledger.entries) == 1
    if durable:
        assert Ledger.read(tmp_path / "ledger").event == RELEASE


@pytest.mark.parametrize("copied", [lambda ledger: pickle.loads(pickle.dumps(ledger)), copy.copy], ids=["pickle", "copy"])
def test_a_copy_of_a_ledger_can_be_read_but_not_spent_from(path: Path, copied: Callable[[Ledger], Ledger]) -> None:
    """What a copy in another process spent would be lost."""
    written(path)
    with Ledger(path=path) as ledger:
        other = copied(ledger)
        assert other.entries == ENTRIES
        assert other.epsilon() == ledger.epsilon()
        with pytest.raises(LedgerError, match="copy of a ledger"):
            other.run().pay([RELEASE])
        assert other.entries == ledger.entries == ENTRIES
        ledger.run("fourth").pay([RELEASE])
    assert len(Ledger.read(path).entries) == 4


def test_a_deep_copy_of_an_estimator_pays_into_the_same_ledger() -> None:
    ledger = Ledger(BUDGET)
    assert copy.deepcopy({"ledger": ledger})["ledger"] is ledger


def test_a_ledger_that_was_read_cannot_be_spent_from(path: Path) -> None:
    content = written(path)
    with pytest.raises(LedgerError):
        Ledger.read(path).run().pay([RELEASE])
    assert path.read_bytes() == content


# ---------------------------------------------------------------- runs


def test_repeating_a_run_by_its_name_is_free_and_what_is_new_is_charged(path: Path) -> None:
    with Ledger(path=path) as ledger:
        ledger.run("a").pay([RELEASE] * 3 + [NoOpDpEvent(), PureDpEvent(0.1)])
    with Ledger(path=path) as ledger:
        again = ledger.run("a")
        assert again.paid == 4
        again.pay([RELEASE, NoOpDpEvent(), RELEASE])
        again.pay([RELEASE, PureDpEvent(0.1)])
        assert ledger.event == compose([RELEASE] * 3 + [PureDpEvent(0.1)])
        again.pay([RELEASE])
        assert again.since(0) == ledger.event == compose([RELEASE] * 3 + [PureDpEvent(0.1), RELEASE])
    assert Ledger.read(path).event == compose([RELEASE] * 3 + [PureDpEvent(0.1), RELEASE])


def test_a_run_of_the_same_name_that_does_something_else_is_refused() -> None:
    ledger = Ledger()
    ledger.run("a").pay([RELEASE] * 3)
    again = ledger.run("a")
    again.pay([RELEASE])
    with pytest.raises(LedgerError, match="its release 2 was recorded as something else"):
        again.pay([GaussianDpEvent(7.9)])
    assert ledger.event == SelfComposedDpEvent(RELEASE, 3)


def test_runs_without_a_name_are_different_runs() -> None:
    ledger = Ledger()
    names = {ledger.run().name for _ in range(100)}
    assert len(names) == 100


# ---------------------------------------------------------------- the cap


def test_a_release_that_would_exceed_the_budget_is_refused_and_not_recorded(path: Path) -> None:
    with Ledger(Budget(1.0, 1e-5), path) as ledger:
        spending = ledger.run()
        spending.pay([RELEASE] * 2)
        content = path.read_bytes()
        with pytest.raises(BudgetExceeded, match="10 more releases would exceed"):
            spending.pay([RELEASE] * 10)
        assert path.read_bytes() == content
        assert spending.paid == 2
        spending.pay([RELEASE])  # what fits, fits
        assert ledger.epsilon() <= 1.0


def test_affordable_is_the_largest_number_of_releases_that_fits() -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    ledger.run("before").pay([GaussianDpEvent(10.0)])
    spending = ledger.run("now")
    count = spending.affordable([RELEASE] * 50)
    assert 0 < count < 50
    assert ledger.allows([RELEASE] * count)
    assert not ledger.allows([RELEASE] * (count + 1))
    spending.pay([RELEASE] * count)
    assert spending.affordable([RELEASE] * 5) == 0
    assert Ledger().run().affordable([NonPrivateDpEvent()] * 7) == 7  # no budget, no cap


def test_a_release_without_noise_fits_into_no_budget() -> None:
    ledger = Ledger(Budget(100.0, 0.5))
    for event in (NonPrivateDpEvent(), GaussianDpEvent(0.0)):
        assert not ledger.allows([event])
        with pytest.raises(BudgetExceeded):
            ledger.run().pay([event])


def test_what_is_affordable_of_one_plan_says_nothing_of_another() -> None:
    """Asking the price of little does not allow much."""
    spending = Ledger(Budget(1.0, 1e-5)).run()
    assert spending.affordable([GaussianDpEvent(100.0)] * 10) == 10
    with pytest.raises(BudgetExceeded):
        spending.pay([GaussianDpEvent(0.1)])
    assert spending.ledger.epsilon() <= 1.0


def test_what_a_run_has_paid_is_affordable_again_even_with_rounds_that_cost_nothing() -> None:
    """The rounds of disjoint batches: one that is paid, then some that are free."""
    epoch = [RELEASE, NoOpDpEvent(), NoOpDpEvent()]
    ledger = Ledger(Budget(1.3, 1e-5))
    spending = ledger.run("a")
    rounds = spending.affordable(epoch * 20)
    spending.pay((epoch * 20)[:rounds])
    assert 3 < rounds < 60
    assert ledger.run("a").affordable((epoch * 20)[:rounds]) == rounds


ROUND = compose([GaussianDpEvent(9.0), PureDpEvent(0.01)])  # a round that draws noise of two kinds


def test_a_round_of_two_kinds_of_noise_is_repeated_for_free_and_recorded_in_full(path: Path) -> None:
    plan = [ROUND, PureDpEvent(0.01), ROUND]
    with Ledger(path=path) as ledger:
        ledger.run("a").pay(plan[:2])
    with Ledger(path=path) as ledger:
        again = ledger.run("a")
        again.pay(plan[:1])
        again.pay(plan[1:])
        assert again.since(0) == ledger.event == compose(plan)
    assert Ledger.read(path).event == compose(plan)


def test_a_round_of_two_kinds_of_noise_of_which_one_fits_is_not_affordable() -> None:
    ledger = Ledger(Budget(epsilon(compose([ROUND, ROUND, GaussianDpEvent(9.0)]), 1e-5), 1e-5))
    spending = ledger.run()
    assert spending.affordable([ROUND] * 5) == 2
    spending.pay([ROUND] * 2)
    assert spending.affordable([ROUND]) == 0


MENU = [GaussianDpEvent(5.0), GaussianDpEvent(12.0), NoOpDpEvent(), FailureDpEvent(1e-7)]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["pay", "ask", "again"]), st.lists(st.sampled_from(MENU), max_size=4))
    )
)
def test_whatever_runs_do_the_budget_is_never_exceeded_and_nothing_is_lost(
    deeds: list[tuple[str, str, list[DpEvent]]],
) -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    runs = {name: ledger.run(name) for name in "ab"}
    paid: list[DpEvent] = []
    for name, deed, events in deeds:
        if deed == "again":  # the process came back: nothing of the run is forgotten, and repeating it is free
            before, runs[name] = runs[name], ledger.run(name)
            runs[name].pay([event for event, count in atoms(before.since(0)) for _ in range(count)])
        elif deed == "ask":
            runs[name].affordable(events)
        else:
            try:
                runs[name].pay(events)
            except BudgetExceeded:
                continue
            paid.extend(events)
    assert ledger.event == compose(paid)
    assert ledger.epsilon() <= 1.0


def test_fixed_size_samples_are_counted_under_replace_one_only() -> None:
    event = SampledWithoutReplacementDpEvent(100, 5, GaussianDpEvent(20.0))
    ledger = Ledger(Budget(1.0, 1e-5, "replace-one"))
    ledger.run().pay([event])
    assert 0 < ledger.epsilon() <= 1.0
