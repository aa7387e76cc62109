"""The wrapper and the accountant in Flower's own processes: a SuperLink, two SuperNodes, and an app that is run on them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'privopt[federated]'")

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from privopt.federated.strategy import PrivateStrategy
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, compose
from privopt.privacy.ledger import Ledger
from tests.federated.in_process import Nodes, trained, weights_of

PATIENCE = 240.0  # seconds, for a machine that is busy with other tests
BIN = Path(sys.executable).parent

PROJECT = """
[project]
name = "wrapped"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "privopt"

[tool.flwr.app.components]
serverapp = "wrapped.server:app"
clientapp = "wrapped.client:app"

[tool.flwr.app.config]
out = ""
seed = 0
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    w = message.content["arrays"]["w"].numpy() + np.array([3.0, 4.0, 0.0])
    metrics = MetricRecord({"num-examples": 10, "loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics}), reply_to=message)
"""
SERVER = """
import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from privopt import Budget, Ledger
from privopt.federated.flower_accountant import PldAccountant
from privopt.federated.strategy import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    out, start = Path(context.run_config["out"]), ArrayRecord({"w": Array(np.zeros(3))})
    everybody = FedAvg(fraction_evaluate=0.0)
    strategy = PrivateStrategy(
        everybody, budget=Budget(50.0, 1e-5, unit="user"), rounds=2, cohort=1, population=2, clip_bound=1.0,
        ledger=Ledger(path=out / "ours.jsonl"), seed=context.run_config["seed"], accountant="rdp",
    )
    seen = []
    ours = strategy.start(grid, start, evaluate_fn=lambda round_, arrays: seen.append(strategy.epsilon()))

    config = PrivacyConfig(1e-5, 2, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = PldAccountant(config, out / "theirs.jsonl")
    flower = DifferentialPrivacyServerSideFixedClipping(everybody, 2.0, 1.0, 2, accountant=accountant)
    flower.start(grid, start, num_rounds=1)
    result = {"w": ours.arrays["w"].numpy().tolist(), "spent": seen, "noise_multiplier": strategy.noise_multiplier}
    (out / "result.new").write_text(json.dumps(result | {"statement": strategy.statement().text()}))
    (out / "result.new").rename(out / "result.json")
"""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def settings(home: Path, port: int) -> dict[str, str]:
    """The environment of Flower's processes: nothing outside this folder, nothing sent anywhere."""
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    return os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # they start their children by name
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def process(log: Path, environment: dict[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, all of which is gone afterwards."""
    with log.open("wb") as file:
        running = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        yield running
    finally:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def wait_until(condition: Callable[[], bool], logs: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            pytest.fail("\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(logs.glob("*.log"))))
        time.sleep(0.2)


def answers(url: str) -> bool:
    with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=2) as reply:
        return bool(reply.status == 200)
    return False


def run_app(folder: Path, seed: int) -> dict[str, Any]:
    """Run the app on a SuperLink and two SuperNodes; what its server wrote."""
    port = free_port()
    environment = settings(folder / "home", port)
    (folder / "app" / "wrapped").mkdir(parents=True)
    for name, text in {"pyproject.toml": PROJECT, "wrapped/client.py": CLIENT, "wrapped/server.py": SERVER}.items():
        (folder / "app" / name).write_text(text)
    (folder / "app" / "wrapped" / "__init__.py").touch()
    link = ("--insecure", "--host", "127.0.0.1", "--isolation", "subprocess")
    with ExitStack() as stack:
        superlink = ("flower-superlink", *link, "--port", str(port), "--disable-runtime-dependency-installation")
        stack.enter_context(process(folder / "link.log", environment, *superlink))
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), folder)
        for node in range(2):
            supernode = ("flower-supernode", *link, "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()))
            stack.enter_context(process(folder / f"node{node}.log", environment, *supernode, "--max-retries", "5"))
        submit = ("flwr", "run", str(folder / "app"), "loop", "--run-config", f'out="{folder}" seed={seed}')
        stack.enter_context(process(folder / "run.log", environment, *submit)).wait(PATIENCE)
        wait_until((folder / "result.json").exists, folder)
    written: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return written


def in_this_process(seed: int) -> tuple[list[int], PrivateStrategy, np.ndarray[Any, Any]]:
    """How many nodes each round of the same training draws, and its model."""
    grid = Nodes({node: lambda message: trained(message, weights_of(message) + np.array([3.0, 4.0, 0.0])) for node in (1, 2)})
    strategy = PrivateStrategy(
        FedAvg(),
        budget=Budget(50.0, 1e-5, unit="user"),
        rounds=2,
        cohort=1,
        population=2,
        clip_bound=1.0,
        seed=seed,
        ledger=Ledger(),
        accountant="rdp",
    )
    arrays, drawn = ArrayRecord({"w": Array(np.zeros(3))}), []
    for round_ in (1, 2):
        messages = strategy.configure_train(round_, arrays, ConfigRecord(), grid)
        result, _ = strategy.aggregate_train(round_, grid.send_and_receive(messages))
        assert result is not None
        arrays = result
        drawn.append(len(messages))
    return drawn, strategy, arrays["w"].numpy()


def test_real_nodes_give_the_same_model_bit_for_bit_and_every_round_is_charged(tmp_path: Path) -> None:
    """The second round draws nobody, which Flower's grid has to bear. Then Flower's own strategy runs, with our accountant."""
    seed, strategy, w = next((seed, *run[1:]) for seed in range(1000) if (run := in_this_process(seed))[0] == [2, 0])
    result = run_app(tmp_path, seed)
    np.testing.assert_array_equal(result["w"], w)
    assert 0 == result["spent"][0] < result["spent"][1] < result["spent"][2] <= 50.0
    assert result["spent"][2] == strategy.epsilon()
    round_ = PoissonSampledDpEvent(0.5, GaussianDpEvent(result["noise_multiplier"]))
    assert Ledger.read(tmp_path / "ours.jsonl").event == compose([round_, round_])
    assert Ledger.read(tmp_path / "theirs.jsonl").event == GaussianDpEvent(2.0)
    assert "Unit: one user" in result["statement"]
