"""A federation on one machine: Flower's own SuperLink and SuperNode processes, on the loopback interface.

All that they write lies in one folder, which only its owner may read: logs of nodes may quote their data.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from privopt.errors import InputError, PrivoptError

READY = 60.0  # seconds for the SuperLink to answer
STOPPING = 10.0  # seconds between SIGTERM and SIGKILL
APP = """[project]
name = "privopt-federation"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "privopt"

[tool.flwr.app.components]
serverapp = "privopt.runs.server_app:server"
clientapp = "privopt.runs.client_app:client"

[tool.flwr.app.config]
"""


def write_app(folder: Path, config: Mapping[str, str | int | float]) -> None:
    """Write a Flower app: a configuration that says what is trained, and no code, which is installed with privopt."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in config.items()]
    project = folder / "pyproject.toml"
    if project.is_file() and not project.read_text(errors="replace").startswith(APP):
        raise InputError(f"{project} is of another project. Name a folder of the app's own.")
    project.write_text(APP + "\n".join(lines) + "\n")


class LocalFederation:
    """A SuperLink, SuperNodes and one run, which are started with a block and ended with it.

    `node_configs` has the configuration of each node. If a process that was killed left a federation in this folder, that is
    ended first.
    """

    def __init__(self, folder: Path, app_config: Mapping[str, str | int | float], node_configs: Sequence[str]) -> None:
        self._folder, self._app_config, self._node_configs = folder, app_config, node_configs
        self._processes: list[subprocess.Popen[bytes]] = []  # the link is the first
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._port = 0
        self._lock: IO[bytes] | None = None
        self.run = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self._folder / "lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise InputError("this federation is running already, in another process. Wait for it, or stop it.") from None
        end_processes(self._folder)
        try:
            self._start_link()
            for place in range(len(self._node_configs)):
                self.start_node(place)
            self._start_run()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes; nodes first, so that they do not look for their link."""
        end_processes(self._folder)
        for process in self._processes:
            process.wait()
        self._processes.clear()
        if self._lock is not None:
            self._lock.close()

    def start_node(self, place: int) -> subprocess.Popen[bytes]:
        """Start a SuperNode, or restart it."""
        link = f"127.0.0.1:{self._port}"
        command = ["flower-supernode", "--insecure", "--superlink", link, "--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--isolation", "subprocess", "--max-retries", "5", "--node-config", self._node_configs[place]]
        self._nodes[place] = self._start(command, f"node-{place}")
        return self._nodes[place]

    def revive(self) -> int:
        """Restart the nodes that have ended; return how many there were."""
        dead = [place for place, process in self._nodes.items() if process.poll() is not None]
        for place in dead:
            self.start_node(place)
        return len(dead)

    @property
    def linked(self) -> bool:
        """Whether the SuperLink is running: nothing goes on without it."""
        return self._processes[0].poll() is None

    @property
    def ended(self) -> bool:
        """Whether Flower says that the run is over, however it ended."""
        listed = self._flwr("list", "loop", "--run-id", self.run, "--format", "json")
        try:
            (found,) = json.loads(listed)["runs"]
            return str(found["status"]).startswith("finished")
        except (ValueError, KeyError, TypeError):
            return False

    def _start_link(self) -> None:
        self._port = free_port()
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        address = f'[superlink]\ndefault = "loop"\n\n[superlink.loop]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        (home / "config.toml").write_text(address)
        command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self._port)]
        link = self._start([*command, "--isolation", "subprocess", "--disable-runtime-dependency-installation"], "link")
        ends = time.monotonic() + READY
        while not self._answers():
            if time.monotonic() > ends or link.poll() is not None:
                raise PrivoptError(f"Flower's SuperLink did not start; its log is {self._folder / 'link.log'}.")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=2.0) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _start_run(self) -> None:
        app = self._folder / "app"
        write_app(app, self._app_config)
        started = self._flwr("run", str(app), "loop", "--format", "json")
        try:
            self.run = str(json.loads(started)["run-id"])
        except (ValueError, KeyError, TypeError):
            raise PrivoptError(f"Flower did not start the run; its logs are in {self._folder}.") from None

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        self._processes.append(process)
        with (self._folder / "processes").open("a") as list_:
            list_.write(f"{process.pid}\n")
        return process

    def _flwr(self, *arguments: str) -> str:
        found = subprocess.run(["flwr", *arguments], env=self._environment, capture_output=True, text=True, check=False)
        with (self._folder / "flwr.log").open("a") as log:
            log.write(found.stdout + found.stderr)
        return found.stdout

    @property
    def _environment(self) -> dict[str, str]:
        programs = Path(sys.executable).parent
        return {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",  # children are started by their bare names
            "FLWR_HOME": str(self._folder.absolute() / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "OMP_NUM_THREADS": "1",
        }


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent is killed: a federation that nobody watches spends nothing."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def require_flower() -> None:
    """Refuse to go on without Flower in this environment."""
    if find_spec("flwr") is None:
        raise InputError("federations run on Flower, which is not installed: pip install 'privopt[federated]'")


def end_processes(folder: Path) -> None:
    """End the processes of a federation in this folder: those that it started, and those that Flower started for them."""
    for sign, seconds in ((signal.SIGTERM, STOPPING), (signal.SIGKILL, STOPPING)):
        ends = time.monotonic() + seconds
        for process in processes_of(folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, sign)
        while processes_of(folder) and time.monotonic() < ends:
            time.sleep(0.1)
    (folder / "processes").unlink(missing_ok=True)


def processes_of(folder: Path) -> list[int]:
    """The processes whose Flower home is in this folder: Flower starts some in sessions of their own."""
    mark, found = f"FLWR_HOME={folder.absolute() / 'home'}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            variables = (place / "environ").read_bytes().split(b"\0")
            dead = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if mark in variables and not dead:
            found.append(int(place.name))
    return found


def free_port() -> int:
    """A port of the loopback interface that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
