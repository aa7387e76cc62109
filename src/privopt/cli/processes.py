"""`privopt train --nproc`: the same command in several processes of this machine, started by torchrun.

The command that the user typed starts torchrun's launcher, which runs the command again in each process. Rank 0 does what one
process would, in the same run folder; the others get the table from it and answer for their part.
"""

import logging
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import typer

from privopt.errors import InputError, RankFailed
from privopt.runs.folder import RunFolder
from privopt.runs.request import Request

MOST = 256


def resumed_processes(path: Path, nproc: int | None) -> int | None:
    """The number of processes to resume a run with: `nproc`, or as many as it began with. None for a run of one process."""
    folder = RunFolder.open(path)
    if folder.finished:
        return None
    began = Request.from_json(folder.asked).processes
    if began is None and nproc is not None:
        raise InputError(f"{path} began in one process, which adds up in another order than several do: leave --nproc out.")
    return began if nproc is None else nproc


@contextmanager
def processes(context: typer.Context, nproc: int | None, more: Sequence[str]) -> Iterator[None]:
    """Run the block on rank 0 of a job of `nproc` processes; without a number, in this process.

    The process that the user started launches the job, and ends with its exit code. `more` are arguments for the job's processes.
    """
    inside = "TORCHELASTIC_RUN_ID" in os.environ
    if nproc is None:
        if inside:
            raise InputError("torchrun is started by privopt train itself: leave it out, and say --nproc 2.")
        yield
        return
    if not 1 <= nproc <= MOST:
        raise InputError(f"--nproc is {nproc}, but it is a number of processes from 1 to {MOST}.")
    if find_spec("torch") is None:
        raise InputError("--nproc is for networks, which need torch: pip install 'privopt[torch]'")
    if not inside:
        _launch(nproc, [*context.meta["privopt arguments"], *more])
        raise typer.Exit
    from privopt.nets.ranks import join

    ranks = join()
    assert ranks is not None
    if ranks.leads:
        with ranks.leading():
            yield
        return
    from privopt.nets.table_network import serve_table

    try:
        serve_table()
    except RankFailed:  # rank 0, or who started it, says why
        sys.exit(2)
    raise typer.Exit


def _launch(nproc: int, arguments: list[str]) -> None:
    """Run this command in `nproc` processes, on the loopback interface; raise or exit as they end."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from privopt.nets.ranks import default_interface

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it would print tracebacks of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for several; sums are rounded alike with any number
    default_interface(os.environ)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "privopt", *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        if killed := [rank for rank, code in codes.items() if code < 0 and code != -15]:  # the launcher itself ends with 15
            raise RankFailed(
                f"process {killed[0]} of {nproc} was killed (signal {-codes[killed[0]]}), so the others were stopped. What was "
                "paid for is kept; privopt train --resume goes on, with any --nproc, and pays nothing twice."
            ) from None
        raise typer.Exit(max(codes.values(), default=1)) from None
    except SignalException:
        raise KeyboardInterrupt from None
