"""`privopt show`: what may be claimed about a run. `privopt card`: its model card, or its entry of a registry."""

import json as json_
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privopt.cli.options import AsJson, Run

if TYPE_CHECKING:
    from rich.console import Console

    from privopt.privacy.ledger import Ledger
    from privopt.privacy.statement import Statement
    from privopt.runs.folder import RunFolder


def show(
    run: Run,
    json: AsJson = False,
    html: Annotated[bool, typer.Option("--html", help="Write report.html anew into the run folder, for a browser.")] = False,
) -> None:
    """What a run may claim: its statement, the budget spent (recomputed from the ledger), and its settings."""
    from rich.console import Console

    from privopt.runs.folder import RunFolder

    folder = RunFolder.open(run)
    if html:
        from privopt.escaping import say
        from privopt.report import write_report

        if folder.finished:
            _check(folder, folder.ledger())
        page = write_report(folder)
        say(Console(stderr=True), f"The report is in {page}")
        if not json:
            return
    if json:
        ledger = folder.ledger()
        spent = 0.0 if not ledger.entries else None if ledger.budget is None else ledger.epsilon()
        if folder.finished:
            _check(folder, ledger)
        typer.echo(
            json_.dumps(
                {
                    "finished": folder.finished,
                    "spent": spent,
                    "statement": folder.statement().to_json() if folder.finished else None,
                    "failure": folder.failure,
                }
            )
        )
        return
    print_run(Console(), folder)


def print_run(console: "Console", folder: "RunFolder") -> None:
    """Print what a run may claim, or how to go on with it."""
    from rich.panel import Panel

    from privopt.escaping import plain, say

    if (failure := folder.failure) is not None:
        say(console, f"Ended without a model: {failure}")
        return
    ledger = folder.ledger()
    budget = ledger.budget
    spent = ledger.epsilon() if budget is not None else math.inf  # only a run without privacy has no budget
    if not folder.finished:
        of = f" of {budget.epsilon:.4g}" if budget is not None else ", without privacy,"
        held = f"ε = {spent:.4g}{of} is spent" if ledger.entries else "nothing is spent yet"
        say(console, f"privopt {folder.command} --resume {folder.path}", before=f"Unfinished: {held}. Go on: ")
        return
    statement = _check(folder, ledger)
    console.print(Panel(plain(statement.text()), title="Privacy statement", expand=False))
    of = f"ε = {spent:.4g} of {budget.epsilon:.4g} at δ = {budget.delta:.3g}" if budget is not None else "everything: not private"
    console.print(f"Spent, from the ledger: {of}")
    page = "report.html" if (folder.path / "report.html").is_file() else "statement.html"
    say(console, f"Run folder: {folder.path}   ({page} opens in a browser)")


def report(folder: "RunFolder") -> None:
    """Write the report of a run that has just ended, unless it is there."""
    from privopt.report import try_report

    if folder.finished and not (folder.path / "report.html").is_file():
        try_report(folder)


def card(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="The file to write; it must not exist. Default: RUN/model_card.md.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print an entry for the registry of DP deployments instead.")] = False,
) -> None:
    """Write a model card (Markdown): privopt card RUN

    It says what the model is, what it was trained on and how private it is. What only you know, such as its purpose, is marked
    (to fill in). With --json it prints an entry for the registry of differential privacy deployments (OpenDP, NIST).
    """
    from rich.console import Console

    from privopt.durable import write_atomically
    from privopt.errors import InputError
    from privopt.escaping import say
    from privopt.report import Contents, registry_entry, write_card
    from privopt.runs.folder import RunFolder

    folder = RunFolder.open(run)
    contents = Contents.of(folder)
    _check(folder, folder.ledger())
    if json:
        typer.echo(json_.dumps(registry_entry(contents), indent=2))
        return
    file = out or run / "model_card.md"
    if file.exists():  # what somebody filled in must not be lost
        raise InputError(f"{file} exists already; name another file with --out.")
    write_atomically(file, write_card(contents).encode())
    say(Console(), f"Model card: {file}")


def _check(folder: "RunFolder", ledger: "Ledger") -> "Statement":
    """Return the statement; refuse one that is not about what the ledger holds."""
    from privopt.errors import LedgerError

    statement = folder.statement()
    if statement.event != ledger.event or folder.newest != ledger.newest:
        recorded = math.inf if ledger.budget is None else ledger.epsilon()
        raise LedgerError(
            f"the statement in {folder.path} (ε = {statement.epsilon:.4g}) is not about what its ledger records "
            f"(ε = {recorded:.4g}). One of them was changed: treat the larger ε as spent."
        )
    return statement
