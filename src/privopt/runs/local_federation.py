"""A federation on this machine, from one command: Flower's processes are started, watched and ended."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privopt.errors import InputError, PrivoptError
from privopt.federated.flower_processes import LocalFederation, require_flower
from privopt.runs.execution import open_unfinished
from privopt.runs.federation import PROGRESS, STOPPED, prepare
from privopt.runs.folder import RunFolder
from privopt.runs.request import FederationRequest

Watch = Callable[[dict[str, Any]], None]  # f(progress), the content of the server's progress file
LOOK = 0.3  # seconds between two looks at the run folder
ASK = 15.0  # seconds without progress after which Flower is asked whether the run is over, which takes a second


def start(request: FederationRequest, path: Path, watch: Watch) -> RunFolder:
    """Start a new run. Whatever is wrong with the request or the file is found before anything is written."""
    require_flower()
    prepare(request)
    return _run(RunFolder.create(path, request.to_json()), request, watch)


def resume(path: Path, watch: Watch) -> RunFolder:
    """Go on with a run that was killed; a finished one is left as it is."""
    require_flower()
    folder = open_unfinished(path, "federate")
    return folder if folder.finished else _run(folder, FederationRequest.from_json(folder.asked), watch)


def _run(folder: RunFolder, request: FederationRequest, watch: Watch) -> RunFolder:
    flower, stopped = folder.path / "flower", folder.path / STOPPED
    stopped.unlink(missing_ok=True)
    configs = [f"partition-id={part}" for part in range(request.nodes)]
    with LocalFederation(flower, {"run": str(folder.path.absolute()), "request": ""}, configs) as federation:
        _wait(folder, federation, watch)
    if folder.finished:
        folder.tidy()
        (folder.path / PROGRESS).unlink(missing_ok=True)
        shutil.rmtree(flower)
        return folder
    if not stopped.is_file():
        raise PrivoptError(
            f"the federation's server ended without a word; its logs are in {flower}. What was paid for is kept. Go on: "
            f"privopt federate --resume {folder.path}"
        )
    why = str(_read(stopped).get("why"))
    if not folder.ledger().entries:
        folder.discard()  # nothing was released: leave nothing half done
    raise InputError(why)


def _wait(folder: RunFolder, federation: LocalFederation, watch: Watch) -> None:
    """Wait until the model is there, or the run has stopped without one."""
    seen: dict[str, Any] = {}
    changed = time.monotonic()
    while not folder.finished and not (folder.path / STOPPED).is_file() and federation.linked:
        time.sleep(LOOK)
        progress = _read(folder.path / PROGRESS)
        if progress != seen or federation.revive():
            seen, changed = progress, time.monotonic()
            watch(progress)
        if time.monotonic() - changed > ASK:
            if federation.ended:
                return
            changed = time.monotonic()


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
