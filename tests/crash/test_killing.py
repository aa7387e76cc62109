"""What kills a process at a durable call does: else the tests that use it would prove nothing."""

import os
from pathlib import Path

from privopt.durable import write_atomically
from tests.crash.killing import durable_calls, killed_at, spread
from tests.processes import one_fork_server

pytestmark = one_fork_server


def write(folder: Path) -> None:
    write_atomically(folder / "one", b"whole")
    descriptor = os.open(folder / "two", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"halves")
    os.close(descriptor)


def test_a_process_dies_at_the_call_that_it_was_to_die_at(tmp_path: Path) -> None:
    calls = durable_calls(write, tmp_path)
    assert calls == ["open", "fsync", "replace", "open", "write"]
    found = []
    for place in range(len(calls)):
        folder = tmp_path / str(place)
        folder.mkdir()
        assert killed_at(place, write, folder)
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert [sorted(files) for files in found] == [[], [".one.new"], [".one.new"], ["one"], ["one", "two"]]
    assert found[-1]["two"] == b"hal"
    assert not killed_at(len(calls), write, tmp_path)


def test_places_are_spread_from_the_first_to_the_last() -> None:
    assert list(spread(3, 5)) == [0, 1, 2]
    assert list(spread(101, 5)) == [0, 25, 50, 75, 100]
