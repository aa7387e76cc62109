"""Seed each bug into a copy of the source, run the tests that should catch it, and print what survived.

    python -m tests.mutants             # all of them
    python -m tests.mutants noise clip  # those whose name holds one of these words
    python -m tests.mutants --trust     # the tests are known to pass on the source as it is

The result of all of them goes to benchmarks/results/mutants.json. A bug is caught if one of its tests fails. That they pass on
the source as it is, is tried first. The exit code is 1 if a bug survived, or if it no longer fits the source.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600  # seconds: a bug that hangs its tests is caught, too


def main(words: Sequence[str], *, trust: bool) -> int:
    chosen = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    if stale := [bug.name for bug in chosen if bug.text().count(bug.old) != 1]:
        _print(f"these do not fit the source any more: {', '.join(stale)}")
        return 1
    _print(f"{len(chosen)} bugs{'' if trust else '. First their tests, on the source as it is …'}")
    tests = sorted({test for bug in chosen for test in bug.tests})
    with tempfile.TemporaryDirectory() as folder:
        if not trust and not _passes(_copy(Path(folder) / "as it is"), tests):
            _print("the tests fail without a bug: run make test.")
            return 1
        survived, seconds = list[str](), dict[str, float]()
        for number, bug in enumerate(chosen, start=1):
            began, source = time.monotonic(), _copy(Path(folder) / f"{number}")
            bug.seed(source)
            caught = not _passes(source, bug.tests)
            survived += [] if caught else [bug.name]
            seconds[bug.name] = round(time.monotonic() - began, 1)
            _print(f"{number:3d} {'caught  ' if caught else 'SURVIVED'} {seconds[bug.name]:4.0f} s  {bug.name}")
            shutil.rmtree(source.parent)
    _print(f"{len(chosen) - len(survived)} caught, {len(survived)} survived")
    if not words:
        command = f"python -m tests.mutants{' --trust' if trust else ''}"
        found = {"command": command, "caught": len(chosen) - len(survived), "survived": survived, "seconds": seconds}
        (ROOT / "benchmarks" / "results" / "mutants.json").write_text(json.dumps(found, indent=1) + "\n")
    return 1 if survived else 0


def _copy(folder: Path) -> Path:
    """A copy of the source, without compiled files: they would hide a change."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "src"


def _passes(source: Path, tests: Sequence[str]) -> bool:
    """Whether the tests pass with this source."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "2", *tests]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return False
    if run.returncode > 2:  # 1: a test failed; 2: and pytest-xdist was interrupted; more: the tests themselves are wrong
        _print(run.stdout.decode(errors="replace")[-500:])
    return run.returncode == 0


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # what this program is for


if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word != "--trust"], trust="--trust" in sys.argv))
