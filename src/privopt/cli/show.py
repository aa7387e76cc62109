"""`privopt show`: what may be claimed about a run."""

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from privopt.runs.folder import RunFolder


def show(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """What a run may claim: its statement, the budget spent (recomputed from the ledger), and its settings."""
    from rich.console import Console

    from privopt.runs.folder import RunFolder

    folder = RunFolder.open(run)
    if json:
        spent = folder.ledger().epsilon()
        typer.echo(
            json_.dumps(
                {
                    "finished": folder.finished,
                    "spent": spent,
                    "statement": folder.statement().to_json() if folder.finished else None,
                }
            )
        )
        return
    shown(Console(), folder)


def shown(console: "Console", folder: "RunFolder") -> None:
    """Print it."""
    from rich.markup import escape
    from rich.panel import Panel

    from privopt.errors import LedgerError

    ledger = folder.ledger()
    spent, budget = ledger.epsilon(), ledger.budget
    if budget is None:
        raise LedgerError(f"{folder.ledger_path} has no budget.")
    if not folder.finished:
        console.print(
            f"Unfinished: ε = {spent:.4g} of {budget.epsilon:.4g} is spent. Go on: [bold]privopt train --resume {folder.path}[/]"
        )
        return
    statement = folder.statement()
    if statement.event != ledger.event:
        raise LedgerError(
            f"the statement in {folder.path} is not about what its ledger records. Believe the ledger: ε = {spent:.4g}."
        )
    console.print(Panel(escape(statement.text()), title="Privacy statement", expand=False))
    console.print(f"Spent, from the ledger: ε = {spent:.4g} of {budget.epsilon:.4g} at δ = {budget.delta:.3g}")
    console.print(f"Run folder: {folder.path}   (statement.html opens in a browser)", soft_wrap=True)
