"""Commands on hostile input: refused with one line, exit code 2, no traceback, and no cell of the data."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from click.testing import Result
from typer.testing import CliRunner

from privopt.cli.application import app
from tests.processes import CONTEXT, Connection

SECRET = "Zebrafish"  # stands in cells, and must not be in any output
MEMORY = 700_000_000  # bytes that a process may map beside what is there at its start
SECONDS = 60  # after which a process counts as hanging, on a slow machine too


def run(*arguments: object) -> Result:
    """Run a command in this process; it may succeed or refuse, but nothing else."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 2), (arguments, result.output, result.exception)
    check(result.stdout, result.stderr)
    return result


def refused(*arguments: object) -> str:
    """The one line that a command is refused with."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Warning:")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    assert len(lines[0]) < 3000
    return lines[0]


def refused_alone(*arguments: object, memory: int = MEMORY, folder: Path | None = None) -> str:
    """The same in a process of its own, with limited memory."""
    done = start(*arguments, memory=memory, folder=folder)
    assert done.returncode == 2, (done.returncode, done.stderr)
    check(done.stdout, done.stderr)
    return " ".join(done.stderr.split())


def start(
    *arguments: object,
    memory: int = MEMORY,
    folder: Path | None = None,
    file_size: int | None = None,
    output: Callable[[], int] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of the fork server, with limited memory and perhaps limited files, or an output of its own."""
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
    outputs = [there for _, there in pipes]
    asked, limits = [*map(str, arguments)], (memory, file_size)
    process = CONTEXT.Process(target=_limited, args=(asked, limits, folder, output, *outputs), daemon=True)
    process.start()
    for there in outputs:
        there.close()
    process.join(SECONDS)
    assert process.exitcode is not None, "the command hangs"
    return subprocess.CompletedProcess(asked, process.exitcode, *(_read(here) for here, _ in pipes))


def _read(pipe: Connection) -> str:
    with pipe, os.fdopen(os.dup(pipe.fileno())) as file:
        return file.read()


def _limited(
    arguments: Sequence[str],
    limits: tuple[int, int | None],
    folder: Path | None,
    output: Callable[[], int] | None,
    stdout: Connection,
    stderr: Connection,
) -> None:
    os.dup2(stderr.fileno(), 2)
    os.dup2(output() if output else stdout.fileno(), 1)
    os.chdir(folder or ".")
    memory, file_size = limits
    memory += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    try:
        app(arguments)
    finally:
        sys.stdout.flush()  # as an interpreter does at its end


def check(stdout: str, stderr: str) -> None:
    """No traceback, no cell, no control character."""
    for text in (stdout or "", stderr):
        assert "Traceback" not in text
        assert SECRET not in text, text
        assert all(char.isprintable() or char in "\n" for char in text), text


# ---------------------------------------------------------------- files without fault


def table(size: int = 1500) -> pd.DataFrame:
    """Rows of which a model can be learnt, each with the secret in a column of text."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, size), "dose": rng.normal(size=size).round(3)})
    frame["note"] = [f"{SECRET}{number}" for number in range(size)]
    frame["sick"] = np.where(frame["age"] + 10 * rng.normal(size=size) > 54, "yes", "no")
    return frame


SCHEMA: dict[str, Any] = {
    "target": {"classes": ["no", "yes"]},
    "columns": {"age": {"low": 18, "high": 90}, "dose": {"low": -3, "high": 3}, "note": {"ignore": True}},
}


def write_schema(path: Path, schema: object = SCHEMA) -> Path:
    path.write_text(json.dumps(schema))
    return path


def train(file: Path, *options: object) -> tuple[object, ...]:
    """The arguments that train on a file."""
    named = ("--target", "sick") if file.name.endswith((".csv", ".parquet", ".csv.gz", ".csv.xz")) else ()
    return "train", file, *named, "--epsilon", 3, "--seed", 0, "--out", file.parent / "run", *options
