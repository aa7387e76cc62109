"""A federation of nodes with files of their own, as docs/federated.md deploys it: TLS, and nodes that are registered."""

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="federations need Flower: pip install 'privopt[federated]'")

from privopt.federated.flower_processes import free_port
from privopt.runs.folder import RunFolder

pytestmark = pytest.mark.skipif("PRIVOPT_LONG" not in os.environ, reason="takes a minute: PRIVOPT_LONG=1")
LONG = 180.0  # seconds after which something counts as hanging
CERTIFICATES = """
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.pem -subj "/CN=test" -addext "basicConstraints=critical,CA:TRUE"
openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj "/CN=localhost"
printf "subjectAltName=DNS:localhost,IP:127.0.0.1" > names
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem
for node in node0 node1 stranger; do ssh-keygen -q -t ecdsa -b 384 -N '' -C '' -f $node; done
"""  # noqa: E501


def hospital(path: Path, users: int) -> None:
    rng = np.random.default_rng(users)
    ages = rng.integers(20, 80, users)
    ill = ages + 20 * rng.standard_normal(users) > 50
    lines = [
        f"p{user},{age},{'ns'[user % 2]},{'yes' if is_ill else 'no'}"
        for user, (age, is_ill) in enumerate(zip(ages, ill, strict=True))
    ]
    path.write_text("\n".join(["patient,age,region,readmitted", *lines]) + "\n")


class Deployment:
    """Flower's programs in a folder, as somebody would type them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.mine]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{folder / "ca.pem"}"\n'
        )
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> str:
        ended = subprocess.run(
            command, shell=True, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=LONG, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def start(self, name: str, command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command.split("|"), cwd=self.folder, env=self._environment, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(LONG)


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    found = Deployment(folder)
    try:
        yield found
    finally:
        found.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < ends, "it hangs"
        time.sleep(0.2)


def test_registered_nodes_train_over_tls_and_a_stranger_is_refused(tmp_path: Path) -> None:
    for place, users in enumerate((80, 70)):
        hospital(tmp_path / f"hospital{place}.csv", users)
    columns = {"age": {"low": 18, "high": 90}, "region": {"values": ["n", "s"]}}
    (tmp_path / "schema.json").write_text(json.dumps({"target": {"classes": ["no", "yes"]}, "columns": columns}))
    with deployed(tmp_path) as here:
        here.run(CERTIFICATES)
        asked = "--users patient --target readmitted --epsilon 8 --schema schema.json --nodes 2 --rounds 2"
        here.run(f"privopt federate --app fed {asked} --out {tmp_path / 'run'}")
        tls = "--ssl-certfile|server.pem|--ssl-keyfile|server.key|--ssl-ca-certfile|ca.pem"
        auth = "--enable-supernode-auth|--disable-runtime-dependency-installation"
        here.start("link", f"flower-superlink|--host|127.0.0.1|--port|{here.port}|{tls}|{auth}")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"https://127.0.0.1:{here.port}/health", timeout=2, context=trusted) as reply:
                    return bool(reply.status == 200)
            except OSError:
                return False

        wait_for(answers)

        def start_node(key: str, place: int) -> subprocess.Popen[bytes]:
            config = f'partition-id={place} data="{tmp_path / f"hospital{place}.csv"}"'
            own = f"--auth-supernode-private-key|{key}|--port|{free_port()}|--node-config|{config}|--max-retries|3"
            return here.start(key, f"flower-supernode|--superlink|127.0.0.1:{here.port}|--root-certificates|ca.pem|{own}")

        stranger = start_node("stranger", 0)
        for place in (0, 1):
            here.run(f"flwr supernode register node{place}.pub mine")
            start_node(f"node{place}", place)
        here.run("flwr run fed mine")
        wait_for((tmp_path / "run" / "model.safetensors").is_file)
        wait_for(lambda: stranger.poll() is not None)
        assert "Failed to activate SuperNode" in (tmp_path / "stranger.log").read_text()
    run = RunFolder.open(tmp_path / "run")
    assert run.statement().event == run.ledger().event
    assert any("150" in fact for fact in run.statement().assumed_public)
