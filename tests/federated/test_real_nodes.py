"""A federation of Flower's own processes: the same model as in one process, and no loss when nodes or the server are killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("flwr", reason="federations need Flower: pip install 'privopt[federated]'")

from privopt.federated.flower_processes import end_processes, processes_of
from privopt.federated.training import FederatedSettings
from privopt.runs.federation import TableNodes, prepare, serve
from privopt.runs.folder import RunFolder
from privopt.runs.request import FederationRequest

LONG = 170.0  # seconds after which a step of a federation counts as hanging
PRIVOPT = [sys.executable, "-m", "privopt"]


def table(folder: Path, users: int = 150) -> Path:
    """Visits of made-up users."""
    rng = np.random.default_rng(0)
    lines = ["user,age,kind,ill"]
    for user in range(users):
        for _ in range(int(rng.integers(1, 4))):
            age = int(rng.integers(20, 80))
            lines.append(
                f"u{user:03},{age},{'ab'[int(rng.integers(2))]},{'yes' if age + 20 * rng.standard_normal() > 50 else 'no'}"
            )
    path = folder / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    schema = {
        "target": {"classes": ["no", "yes"]},
        "columns": {"age": {"low": 18, "high": 90}, "kind": {"values": ["a", "b"]}},
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    return path


def federate(folder: Path, *options: str) -> list[str]:
    asked = ["--users", "user", "--target", "ill", "--epsilon", "8", "--schema", str(folder / "schema.json"), "--seed", "3"]
    return [*PRIVOPT, "federate", str(table(folder)), *asked, "--out", str(folder / "run"), *options]


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < ends, "the federation hangs"
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def done(run: Path) -> int:
    try:
        return int(json.loads((run / "progress.json").read_text())["done"])
    except (OSError, ValueError):
        return 0


def test_real_processes_and_one_process_give_the_same_model_bit_for_bit(tmp_path: Path) -> None:
    ended = subprocess.run(federate(tmp_path, "--rounds", "2"), capture_output=True, text=True, timeout=LONG, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Unit: one user" in ended.stdout
    real = load_file(tmp_path / "run" / "model.safetensors")
    assert not (tmp_path / "run" / "flower").exists()
    request = FederationRequest.from_json(RunFolder.open(tmp_path / "run").asked)
    assert request.settings == FederatedSettings(rounds=2)
    prepared = prepare(request)
    folder = RunFolder.create(tmp_path / "same", request.to_json())
    serve(folder, prepared, TableNodes(prepared))
    same = load_file(folder.path / "model.safetensors")
    assert all(real[name].tobytes() == same[name].tobytes() for name in ("slopes", "intercepts"))
    assert RunFolder.open(tmp_path / "run").ledger().event == folder.ledger().event


@contextmanager
def running(command: list[str], run: Path) -> Iterator[subprocess.Popen[str]]:
    """A command, of which nothing is left afterwards."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        end_processes(run / "flower")


def stopped(process: subprocess.Popen[str], run: Path) -> None:
    """Stop a command as Ctrl-C does: Flower's processes end with it, and it says how to go on."""
    process.terminate()
    _, error = process.communicate(timeout=LONG)
    assert f"--resume {run}" in error
    assert not processes_of(run / "flower")


def test_a_killed_node_is_used_again_and_a_killed_server_goes_on_and_pays_nothing_twice(tmp_path: Path) -> None:
    """One federation for both: nodes come back under other numbers, and then everything is ended but the command."""
    run = tmp_path / "run"
    with running(federate(tmp_path, "--rounds", "60"), run) as process:
        wait_for(lambda: done(run) >= 1, process)
        link, _, node = map(int, (run / "flower" / "processes").read_text().split())
        os.killpg(node, signal.SIGKILL)
        wait_for(lambda: len(re.findall("part 1, ", (run / "federation.log").read_text())) > 1, process)
        back = done(run)
        wait_for(lambda: done(run) > back, process)
        os.killpg(link, signal.SIGKILL)  # with the server's own process
        _, error = process.communicate(timeout=LONG)
        assert process.returncode == 2
        assert f"--resume {run}" in error
    killed, spent = done(run), RunFolder.open(run).ledger()
    with running([*PRIVOPT, "federate", "--resume", str(run)], run) as process:
        wait_for(lambda: done(run) > killed, process)
        stopped(process, run)
    held = RunFolder.open(run).ledger()
    assert held.entries[: len(spent.entries)] == spent.entries
    rounds = sum(entry.count for entry in held.entries if entry.event == held.entries[-1].event)  # without surveys
    assert back < killed < rounds <= done(run) + 1 <= 60
    assert held.epsilon(1e-4) <= 8
    log = (run / "federation.log").read_text()
    assert not re.search(r"u\d\d\d|\.csv", log)  # nodes are named, and nobody's data
