"""Checkpoints: private files, for the same data only, whose damage is never mistaken for progress."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt.checkpoint import Checkpoint, Progress
from privopt.durable import write_atomically
from privopt.errors import InputError
from privopt.measure import randomness
from privopt.measure.randomness import Rng, generator
from tests.processes import Connection, answered, one_fork_server

PARTS: dict[str, dict[str, Any]] = {
    "at": {"current": np.array([0.1, -0.2]), "previous": np.array([1e-300, 3.0])},
    "memory": {"first": np.array([1.0, 2.0], dtype="float32"), "second": np.zeros(2)},
    "kept": {"kept": np.array([5.0, 6.0]), "count": 3},
}


def begun(folder: Path) -> Checkpoint:
    checkpoint = Checkpoint(folder, "these data")
    checkpoint.begin("the run", generator(1))
    return checkpoint


def advanced(seed: int = 5) -> Rng:
    """A generator in the middle of its work, half a word used up."""
    rng = generator(seed)
    rng.standard_normal(7)
    rng.integers(100, dtype="uint32")
    return rng


def same(one: Progress, other: Progress) -> bool:
    parts = all(
        one.parts[part].keys() == other.parts[part].keys()
        and all(np.array_equal(one.parts[part][name], other.parts[part][name]) for name in one.parts[part])
        for part in one.parts
    )
    numbers = (one.round_, randomness.save_state(one.rng)) == (other.round_, randomness.save_state(other.rng))
    return parts and numbers and one.parts.keys() == other.parts.keys()


# ---------------------------------------------------------------- what is saved comes back


def test_a_run_keeps_the_name_and_the_randomness_that_it_began_with(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path / "c", "these data").begin("one", generator(1))
    again = Checkpoint(tmp_path / "c", "these data").begin("another", generator(2))
    assert first[0] == again[0] == "one"
    np.testing.assert_array_equal(first[1].standard_normal(5), again[1].standard_normal(5))


def test_progress_comes_back_exactly(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path / "c")
    assert checkpoint.load() is None
    checkpoint.save(Progress(3, PARTS, advanced()))
    loaded = checkpoint.load()
    assert loaded is not None
    assert same(loaded, Progress(3, PARTS, advanced()))
    assert loaded.parts["memory"]["first"].dtype == np.float32
    assert isinstance(loaded.parts["kept"]["count"], int)
    expected = advanced()
    np.testing.assert_array_equal(loaded.rng.integers(9, size=3, dtype="uint32"), expected.integers(9, size=3, dtype="uint32"))
    np.testing.assert_array_equal(loaded.rng.standard_normal(9), expected.standard_normal(9))


def test_a_later_save_replaces_an_earlier_one(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path / "c")
    for round_ in (1, 2, 3):
        checkpoint.save(Progress(round_, PARTS, generator(round_)))
    loaded = checkpoint.load()
    assert loaded is not None
    assert loaded.round_ == 3


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.SFC64, np.random.Philox, np.random.MT19937])
def test_whatever_generator_a_run_was_given_its_noise_is_repeated(tmp_path: Path, kind: type[np.random.BitGenerator]) -> None:
    def given() -> Rng:
        return generator(np.random.Generator(kind(3)))

    Checkpoint(tmp_path / "c", "these data").begin("run", given())
    _, restored = Checkpoint(tmp_path / "c", "these data").begin("run", given())
    np.testing.assert_array_equal(restored.standard_normal(5), given().standard_normal(5))


def test_a_run_whose_noise_another_version_drew_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state_before(rng: Rng) -> str:
        return json.dumps(np.random.PCG64DXSM(1).state)

    with monkeypatch.context() as patched:
        patched.setattr(randomness, "save_state", state_before)
        begun(tmp_path / "c")
    with pytest.raises(InputError, match=r"another version of privopt began it.*start a new run"):
        Checkpoint(tmp_path / "c", "these data").begin("the run", generator(1))


# ---------------------------------------------------------------- as sensitive as the data


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_can_read_a_checkpoint(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        checkpoint = begun(tmp_path / "c")
        checkpoint.save(Progress(1, PARTS, generator(1)))
    finally:
        os.umask(before)
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "c").iterdir())
    assert {file.name for file in files} == {"begin.json", "progress.npz"}
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


def test_a_checkpoint_is_removed_without_a_trace(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path / "c")
    checkpoint.save(Progress(1, PARTS, generator(1)))
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []
    checkpoint.remove()  # twice is once


def test_other_data_are_refused_and_the_error_says_why(tmp_path: Path) -> None:
    begun(tmp_path / "c")
    with pytest.raises(InputError, match=r"not those that this run began with.*same file, or start a new run"):
        Checkpoint(tmp_path / "c", "other data").begin("the run", generator(1))
    assert Checkpoint(tmp_path / "c", "these data").begin("x", generator(2))[0] == "the run"


# ---------------------------------------------------------------- damage


def test_progress_cut_short_anywhere_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    checkpoint, path = begun(tmp_path / "c"), tmp_path / "c" / "progress.npz"
    checkpoint.save(Progress(3, PARTS, generator(1)))
    content = path.read_bytes()
    for cut in [*range(0, len(content), 41), len(content) - 1]:
        path.write_bytes(content[:cut])
        with pytest.raises(InputError, match=r"damaged\. Remove it to replay the run from its beginning, at no cost"):
            checkpoint.load()


def test_a_flipped_bit_of_progress_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    """Another round, another iterate or another state of the generator would each break what the ledger says."""
    checkpoint, path = begun(tmp_path / "c"), tmp_path / "c" / "progress.npz"
    checkpoint.save(Progress(3, PARTS, generator(1)))
    content, whole = path.read_bytes(), checkpoint.load()
    assert whole is not None
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
        try:
            loaded = checkpoint.load()
        except InputError:
            continue
        assert loaded is not None
        assert same(loaded, whole), place


def test_a_flipped_bit_of_the_beginning_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    """Other randomness under the same name would be new answers that nobody paid for."""
    begun(tmp_path / "c")
    path = tmp_path / "c" / "begin.json"
    content = path.read_bytes()
    name, whole = Checkpoint(tmp_path / "c", "these data").begin("x", generator(9))
    for place in range(len(content)):
        for bit in (0, place % 8):
            path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
            try:
                again, rng = Checkpoint(tmp_path / "c", "these data").begin("x", generator(9))
            except InputError:
                continue
            assert again == name
            assert randomness.save_state(rng) == randomness.save_state(whole), place


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"run": 3}', b"\xff\xfe", b'"text"'], ids=repr)
def test_a_beginning_that_is_none_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    checkpoint = begun(tmp_path / "c")
    (tmp_path / "c" / "begin.json").write_bytes(content)
    with pytest.raises(InputError, match="Start a new one"):
        checkpoint.begin("the run", generator(1))


# ---------------------------------------------------------------- all of it or nothing


@pytest.mark.parametrize("private", [True, False])
def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path, private: bool) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old", private=private)
    write_atomically(path, b"new and longer", private=private)
    assert path.read_bytes() == b"new and longer"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0 or not private


def write_on_a_full_disk(connection: Connection, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        write_atomically(folder / "file", b"x" * 5000)
        connection.send("written")
    except OSError as error:
        connection.send(error.filename)


@one_fork_server
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    assert answered(write_on_a_full_disk, tmp_path) == str(tmp_path / "file")  # the error names it
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_else_is_in_the_folder_stays_when_the_run_has_ended(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    checkpoint = Checkpoint(tmp_path, "these data")
    checkpoint.begin("a", generator(1))
    checkpoint.save(Progress(1, PARTS, generator(1)))
    checkpoint.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_links_and_pipes_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "file")
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"new")
    assert os.read(reader, 9) == b"new"
    assert pipe.is_fifo()
    os.close(reader)
