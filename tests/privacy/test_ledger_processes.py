"""The ledger among real processes: killed, full disks, and two at once."""

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privopt.errors import LedgerError
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent
from privopt.privacy.ledger import Ledger
from tests.processes import Connection, answered, killed, one_fork_server, size, started, wait_for

pytestmark = one_fork_server
RELEASE = GaussianDpEvent(8.0)


def spend(path: Path, used: Path, name: str) -> None:
    """Pay for a release, use it, and so on until killed."""
    descriptor = os.open(used, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Ledger(path=path) as ledger:
        spending = ledger.run(name)
        while True:
            spending.pay([RELEASE])
            os.write(descriptor, b"x")


def test_a_process_killed_at_any_moment_has_paid_for_all_that_it_used(tmp_path: Path) -> None:
    path, moments = tmp_path / "ledger", random.Random(1)
    total = 0
    for trial in range(12):
        used = tmp_path / f"used-{trial}"
        process = started(spend, path, used, f"run-{trial}")
        wait_for(lambda used=used: size(used) > 0)  # type: ignore[misc]
        time.sleep(moments.uniform(0, 0.02))
        killed(process)
        with Ledger(path=path) as ledger:  # the dead process's lock is gone, a line cut short is removed
            paid = ledger.run(f"run-{trial}").paid
        assert size(used) <= paid <= size(used) + 1
        total += paid
    assert sum(entry.count for entry in Ledger.read(path).entries) == total


def open_one_more(connection: Connection, path: Path) -> None:
    try:
        with Ledger(path=path):
            connection.send("opened")
    except LedgerError as error:
        connection.send(str(error))


def test_a_second_process_is_refused_while_the_first_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path=path) as ledger:
        assert "in use by another process" in answered(open_one_more, path)
        ledger.run().pay([RELEASE])
    assert answered(open_one_more, path) == "opened"
    assert Ledger.read(path).event == RELEASE


def test_deleting_files_beside_a_ledger_lets_nobody_in(tmp_path: Path) -> None:
    """The lock is on the ledger itself; there is nothing else whose removal would release it."""
    path = tmp_path / "ledger"
    with Ledger(path=path) as ledger:
        ledger.run().pay([RELEASE])
        for beside in tmp_path.iterdir():
            if beside.suffix == ".lock":
                beside.unlink()
        assert "in use by another process" in answered(open_one_more, path)
        ledger.run().pay([RELEASE])
    assert len(Ledger.read(path).entries) == 2


def test_of_two_processes_with_a_ledger_of_one_name_the_first_stops_when_its_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path=path) as ledger:
        ledger.run().pay([RELEASE])
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        assert answered(open_one_more, path) == "opened"
        with pytest.raises(LedgerError, match="was replaced"):
            ledger.run().pay([RELEASE])
    assert len(Ledger.read(path).entries) == 1


def pay_on_a_full_disk(connection: Connection, path: Path, room: int) -> None:
    """`room` bytes are left for the file when the second charge is made; then there is space again."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Ledger(Budget(5.0, 1e-5), path) as ledger:
        spending = ledger.run("a")
        spending.pay([RELEASE])
        before = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            spending.pay([RELEASE])
            connection.send(("paid", before))
            return
        except LedgerError as error:
            message = str(error)
        same = path.read_bytes() == before and spending.paid == 1 and len(ledger.entries) == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        spending.pay([RELEASE])
        connection.send((message, same))


@pytest.mark.parametrize("room", [0, 1, 40, 100])
def test_a_full_disk_stops_the_run_loses_nothing_and_leaves_the_ledger_usable(tmp_path: Path, room: int) -> None:
    path = tmp_path / "ledger"
    message, same = answered(pay_on_a_full_disk, path, room)
    assert "could not be written" in message
    assert "nothing more is released" in message
    assert same
    with Ledger(path=path) as ledger:
        assert [(entry.run, entry.count) for entry in ledger.entries] == [("a", 1), ("a", 1)]


def begin_on_a_full_disk(connection: Connection, path: Path, room: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        Ledger(Budget(5.0, 1e-5), path)
        connection.send("opened")
    except LedgerError as error:
        connection.send(str(error))


@pytest.mark.parametrize("room", [0, 50])
def test_a_ledger_that_could_not_begin_can_begin_later(tmp_path: Path, room: int) -> None:
    path = tmp_path / "ledger"
    assert "could not be written" in answered(begin_on_a_full_disk, path, room)
    with Ledger(Budget(5.0, 1e-5), path) as ledger:
        ledger.run().pay([RELEASE])
    assert Ledger.read(path).event == RELEASE


def spend_from_a_copy(connection: Connection, ledger: Ledger) -> None:
    try:
        ledger.run().pay([RELEASE])
        connection.send("paid")
    except LedgerError as error:
        connection.send(str(error))


def test_another_process_cannot_spend_from_a_ledger_that_it_was_sent(tmp_path: Path) -> None:
    with Ledger(path=tmp_path / "ledger") as ledger:
        assert "what it spent would be lost" in answered(spend_from_a_copy, ledger)
        assert ledger.entries == ()


@pytest.mark.parametrize("held", ["from privopt.linear_model import Ridge", "import threading; threading.held = ledger"])
def test_a_script_may_leave_its_ledger_open(tmp_path: Path, held: str) -> None:
    """Whoever holds it last, and however late."""
    script = f"from privopt import Ledger; ledger = Ledger(path={str(tmp_path / 'ledger')!r}); {held}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_platform_without_locks_has_ledgers_in_memory_only(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['fcntl'] = None\n"
        "from privopt import Ledger\n"
        "Ledger().run()\n"
        f"try: Ledger(path={str(tmp_path / 'ledger')!r})\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "cannot be locked" in done.stdout
    assert "Ledger(), needs none" in done.stdout
