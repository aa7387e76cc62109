"""The ServerApp of `privopt federate`: it trains into a run folder. The app's configuration says what is trained."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privopt.errors import InputError, PrivoptError
from privopt.federated.flower_nodes import LOG, FlowerNodes
from privopt.runs.federation import PROGRESS, ProgressFile, prepare, serve, stop
from privopt.runs.folder import RunFolder
from privopt.runs.request import FederationRequest

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model with the users of all nodes."""
    config = context.run_config
    path = Path(str(config["run"]))
    if config.get("request"):  # an app for nodes elsewhere: its run folder begins here
        request = FederationRequest.from_json(json.loads(str(config["request"])))
        folder = RunFolder.open(path) if (path / "run.json").is_file() else RunFolder.create(path, request.to_json())
        if FederationRequest.from_json(folder.asked) != request:
            raise InputError(f"{path} holds a run that was begun with other settings. Name another folder with --out.")
    else:
        folder = RunFolder.open(path)
        request = FederationRequest.from_json(folder.asked)
    logging.basicConfig(level=logging.INFO)
    handler = logging.FileHandler(path / "federation.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    if folder.finished:
        LOG.info("the run is finished, and was left as it is")
        return
    warned: list[str] = []  # by privopt's surveys, which quote no value

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        LOG.warning("%s", message)
        warned.append(str(message))

    warnings.showwarning = note
    resumed = bool(folder.ledger().entries)
    try:
        prepared = prepare(request)
        nodes = FlowerNodes(grid, request.nodes, plan=prepared.plan, wait=request.wait, timeout=request.timeout)
        serve(folder, prepared, nodes, ProgressFile(path / PROGRESS, nodes, warned))
    except PrivoptError as error:
        stop(error, folder, resumed=resumed)
        raise
