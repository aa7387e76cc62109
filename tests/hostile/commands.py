"""Commands on hostile input: refused with one line, exit code 2, no traceback, and no cell of the data."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from click.testing import Result
from typer.testing import CliRunner

from privopt.cli.application import app

SECRET = "Zebrafish"  # stands in cells, and must not be in any output
MEMORY = 1_500_000_000  # bytes that a process may map: the libraries alone take most of a gigabyte
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
    *arguments: object, memory: int = MEMORY, folder: Path | None = None, file_size: int | None = None, output: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with limited memory and perhaps limited files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    return subprocess.run(
        [sys.executable, "-c", "from privopt.cli.application import app; app()", *map(str, arguments)],
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        preexec_fn=limit,
        cwd=folder,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


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
