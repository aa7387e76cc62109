"""Faults around a command: a full disk, an output that nobody reads, Ctrl-C, damaged files of the compiler."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privopt.durable import write_atomically
from tests.hostile.commands import SECONDS, check, run, start, table, train, write_schema
from tests.processes import Connection, answered, one_fork_server

pytestmark = one_fork_server


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    table().to_csv(folder / "rows.csv", index=False)
    schema = write_schema(folder / "schema.json")
    assert run(*train(folder / "rows.csv", "--schema", schema)).exit_code == 0
    return folder


# ---------------------------------------------------------------- a full disk


def test_a_file_that_does_not_fit_on_the_disk_is_named(trained: Path, tmp_path: Path) -> None:
    done = start("predict", trained / "run", trained / "rows.csv", "--out", tmp_path / "predictions.csv", file_size=1000)
    assert done.returncode == 2
    assert f"{tmp_path / 'predictions.csv'}: File too large" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_a_run_on_a_full_disk_names_a_file_of_its_folder(trained: Path, tmp_path: Path) -> None:
    options = ("--schema", trained / "schema.json", "--out", tmp_path / "run")
    for size in (10, 1000, 2500):
        done = start(*train(trained / "rows.csv", *options), file_size=size, folder=tmp_path)
        assert done.returncode == 2
        check(done.stdout, done.stderr)
        assert f"{tmp_path}/run/" in " ".join(done.stderr.split())
        subprocess.run(["rm", "-r", tmp_path / "run"], check=True)


def test_an_error_of_writing_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(Path("/dev/full"), b"content")
    assert caught.value.filename == "/dev/full"
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically(tmp_path / "none" / "a", b"")
    assert missing.value.filename == str(tmp_path / "none" / "a")


def open_full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("command", [("methods",), ("methods", "--json"), ("show",), ("predict",)])
def test_a_full_standard_output_is_named(trained: Path, command: tuple[str, ...]) -> None:
    places = {"show": [trained / "run"], "predict": [trained / "run", trained / "rows.csv"]}.get(command[0], [])
    done = start(*command, *places, output=open_full)
    assert done.returncode == 2
    assert done.stderr.split() == ["Error:", "standard", "output:", "No", "space", "left", "on", "device."]


def open_unread() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_an_output_that_nobody_reads_is_no_error() -> None:
    assert start("methods", output=open_unread).stderr == ""


# ---------------------------------------------------------------- Ctrl-C

INTERRUPTED = """
import sys

place, sys.argv[1:] = sys.argv[1], sys.argv[2:]

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == place:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from privopt.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module", ["privopt.cli", "typer", "rich", "privopt.cli.train", "numpy", "pandas", "scipy", "dp_accounting"]
)
def test_ctrl_c_while_anything_is_loaded_is_one_line_and_130(trained: Path, tmp_path: Path, module: str) -> None:
    arguments = train(trained / "rows.csv", "--schema", trained / "schema.json", "--out", tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == "Stopped."


def test_the_installed_command_is_the_one_that_catches_ctrl_c() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"privopt": "privopt.__main__:main"}
    done = subprocess.run([sys.executable, "-m", "privopt", "methods", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)


# ---------------------------------------------------------------- what the compiler keeps

COMPILED = """
import numpy as np
from privopt.numba_cache import compiled

@compiled("float64(float64)")
def triple(x):
    return 3.0 * x

found = triple(2.0), sum(triple.stats.cache_hits.values())
"""


def run_compiled(connection: Connection, program: Path, cache: Path) -> None:
    import numba

    numba.config.CACHE_DIR = str(cache)  # type: ignore[attr-defined]  # made of the environment
    connection.send(runpy.run_path(str(program))["found"])


def test_damaged_files_of_the_compiler_are_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "triple.py").write_text(COMPILED)
    cache = tmp_path / "cache"

    def triple() -> tuple[float, int]:
        found: tuple[float, int] = answered(run_compiled, tmp_path / "triple.py", cache)
        return found

    assert triple() == (6.0, 0)
    assert triple() == (6.0, 1)
    rng = np.random.default_rng(0)
    for path in sorted(path for path in cache.rglob("*") if path.is_file()):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[int(rng.integers(len(content) // 2, len(content)))] ^= 16
        for damaged in (b"", b"garbage", content[:-10], bytes(len(content)), bytes(flipped)):
            path.write_bytes(damaged)
            assert triple() == (6.0, 0)
    assert triple() == (6.0, 1)
