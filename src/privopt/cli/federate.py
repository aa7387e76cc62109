"""`privopt federate`: a private model from users who keep their rows, on Flower."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privopt.cli.options import (
    DATA,
    MODEL,
    PRIVACY,
    ClipBound,
    LearningRate,
    MethodOptions,
    NewRun,
    Resume,
    SchemaFile,
    Seed,
    Target,
    Task,
    explain_large_epsilon,
    new_run_folder,
    parse_options,
    refuse_settings,
)
from privopt.cli.train import explain_resume
from privopt.errors import InputError, warn

if TYPE_CHECKING:
    from privopt.runs.request import FederationRequest

NODES = "Nodes"


def federate(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="CSV or Parquet, with a column of users.", show_default=False)] = None,
    users: Annotated[
        str | None, typer.Option(help="The column that says whose row it is. It is not trained on.", rich_help_panel=DATA)
    ] = None,
    target: Target = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The privacy budget for one user, with all rows: 1 is strong.", rich_help_panel=PRIVACY)
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="The probability that the guarantee may fail with. Default: below 1/(10 users).", rich_help_panel=PRIVACY
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="dp-fedavg, dp-fedadam or fed-adadps (which needs --public).", rich_help_panel=MODEL)
    ] = "dp-fedavg",
    model: Annotated[
        str | None,
        typer.Option(
            help="logistic, ridge, or a network: mlp:64. Default: logistic or ridge, by the target.", rich_help_panel=MODEL
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="How often the model is sent to the nodes. Default: a public rule, as for the next four.", rich_help_panel=MODEL
        ),
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Expected users of a round: each is drawn by a coin.", rich_help_panel=MODEL)
    ] = None,
    clip_bound: ClipBound = None,
    learning_rate: LearningRate = None,
    option: MethodOptions = None,
    task: Task = None,
    schema: SchemaFile = None,
    public: Annotated[Path | None, typer.Option(help="Rows that are not private, for fed-adadps.", rich_help_panel=DATA)] = None,
    nodes: Annotated[int, typer.Option(help="Flower SuperNodes; each serves its part of the users.", rich_help_panel=NODES)] = 2,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for a node at most; a slow one is left out of a round.", rich_help_panel=NODES)
    ] = 120.0,
    wait: Annotated[float, typer.Option(help="Seconds to wait for all nodes at the start.", rich_help_panel=NODES)] = 60.0,
    app: Annotated[
        Path | None,
        typer.Option(
            help="Write a Flower app to this folder instead, for nodes that have their own rows.", rich_help_panel=NODES
        ),
    ] = None,
    out: NewRun = None,
    resume: Resume = None,
    seed: Seed = None,
) -> None:
    """Train a federation on this machine: privopt federate visits.csv --users patient --target readmitted --epsilon 3

    The guarantee is for one user, however many rows a user has. Users' rows stay on nodes (Flower's own SuperNode processes,
    here on the loopback interface); what leaves a node is the sum of its users' clipped changes of the model.

    The run folder holds the model, the privacy statement and the ledger. A run that is killed goes on with --resume. For nodes
    on other machines see docs/federated.md.
    """
    from rich.console import Console

    from privopt import datasets
    from privopt.cli.show import print_run, report
    from privopt.escaping import bar_console
    from privopt.federated.training import FederatedSettings
    from privopt.runs import local_federation
    from privopt.runs.request import FederationRequest

    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: Flower's processes are ended, and nothing is lost
    if resume is not None:
        refuse_settings(context, allowed=[])
        with explain_resume(resume, "federate"), _Bar(bar_console()) as bar:
            folder = local_federation.resume(resume, bar)
        report(folder)
        print_run(console, folder)
        return
    if users is None or target is None or epsilon is None or (file is None) == (app is None):
        raise InputError(
            "say a FILE (or --app FOLDER), --users, --target and --epsilon. For example: privopt federate visits.csv "
            "--users patient --target readmitted --epsilon 3"
        )
    explain_large_epsilon(epsilon)
    request = FederationRequest(
        users=users,
        target=target,
        epsilon=epsilon,
        file=file,
        delta=delta,
        task=task,
        model=model,
        nodes=nodes,
        settings=FederatedSettings(method, rounds, cohort, clip_bound, learning_rate, parse_options(option)),
        schema=None if schema is None else datasets.load(schema),
        public=public,
        wait=wait,
        timeout=timeout,
        seed=seed,
    )
    if app is not None:
        if app.exists() and not app.is_dir():
            raise InputError(f"--app is {app}, which is a file. Name a folder.")
        _write_app(request, app, out)
        console.print(f"Flower app in {app}. Start it with: flwr run {app} SUPERLINK", highlight=False)
        return
    assert file is not None
    place = out or new_run_folder(file)
    with explain_resume(place, "federate"), _Bar(bar_console()) as bar:
        folder = local_federation.start(request, place, bar)
    report(folder)
    print_run(console, folder)


MANY_USERS = 1_000_000  # an app is checked for so many users: settings that do not fit then never do


def _write_app(request: "FederationRequest", app: Path, out: Path | None) -> None:
    import json

    from privopt.federated.flower_processes import write_app
    from privopt.runs.federation import check_size, prepare

    run = (out or app.with_name(f"{app.name}-run")).absolute()
    if run.is_relative_to(app.absolute()):
        raise InputError(f"--out {run} lies in the app's folder, which Flower sends to every node. Name a folder outside of it.")
    check_size(prepare(request), max(MANY_USERS, request.settings.cohort or 0))  # what no federation could do
    write_app(app, {"run": str(run), "request": json.dumps(request.to_json())})


class _Bar:
    """Shows rounds, ε so far, nodes alive and the time left; before the first round, that Flower is being started."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("federation"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds  ε ≤ {task.fields[epsilon]}  {task.fields[nodes]} nodes"),
            TimeRemainingColumn(),
            console=console,
        )
        self._status = console.status("Starting Flower's SuperLink and SuperNodes …")
        self._task: Any = None

    def __enter__(self) -> "_Bar":
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
        self._progress.stop()

    def __call__(self, progress: dict[str, Any]) -> None:
        if not progress:
            return
        shown: dict[str, Any] = {"epsilon": f"{progress['epsilon']:.3f}", "nodes": f"{progress['alive']}/{progress['nodes']}"}
        if self._task is None:
            self._status.stop()
            for message in progress["warned"]:  # by surveys, before the first round
                warn(message)
            self._progress.start()
            self._task = self._progress.add_task("", total=progress["rounds"], **shown)
        self._progress.update(self._task, completed=progress["done"], **shown)
