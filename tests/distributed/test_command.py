"""`privopt train --nproc`: as a user types it, and with a process that is killed."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("networks need torch", allow_module_level=True)

from privopt import Ledger
from privopt.runs.folder import RunFolder
from tests.cli.typed import privopt
from tests.problems import PATIENTS, patients
from tests.processes import size, wait_for

ROUNDS = 400  # of all rows, whose price is known in no time


def typed(*arguments: object) -> "subprocess.Popen[str]":
    """A command in a process of its own."""
    order = [sys.executable, "-m", "privopt", *map(str, arguments)]
    return subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_process_of_a_command_is_killed_and_another_number_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, run = patients(tmp_path / "patients.csv", 600), tmp_path / "run"
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    about = ["--target", "readmitted", "--epsilon", 2, "--schema", tmp_path / "schema.json", "--model", "mlp:8"]
    with typed("train", file, *about, "--rounds", ROUNDS, "--nproc", 2, "--out", run) as command:
        try:
            wait_for(lambda: size(run / "checkpoint" / "start.npz") > 0, seconds=300)  # rounds begin
            os.kill(children(command.pid)[1], signal.SIGKILL)
        except BaseException:
            command.terminate()
            raise
        printed = " ".join(command.communicate()[0].split())
    assert command.returncode == 2, printed
    assert "was killed (signal 9), so the others were stopped" in printed
    assert "Traceback" not in printed
    held = sum(entry.count for entry in Ledger.read(run / "ledger.jsonl").entries)
    assert privopt("train", "--resume", tmp_path / "elsewhere", "--nproc", 2, code=2)
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"):  # which the launcher sets, in this process
        monkeypatch.setenv(name, os.environ.get(name, {"OMP_NUM_THREADS": "1"}.get(name, "lo")))
    privopt("train", "--resume", run, "--nproc", 1)
    assert RunFolder.open(run).statement().settings["processes"] == 1
    *before, last = Ledger.read(run / "ledger.jsonl").entries
    assert held <= sum(entry.count for entry in (*before, last))
    assert sum(entry.count for entry in (*before, last) if entry.event == last.event) == ROUNDS  # nothing was paid twice
    assert RunFolder.open(run).statement().epsilon <= 2


def test_what_several_processes_cannot_do_is_one_clear_line(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv", 500), tmp_path / "run"
    asked = ["train", file, "--target", "readmitted", "--epsilon", 2]
    assert "--nproc is for networks" in privopt(*asked, "--nproc", 2, code=2)
    assert "a number of processes from 1 to 256" in privopt(*asked, "--model", "mlp:8", "--nproc", 0, code=2)
    assert not run.exists()
