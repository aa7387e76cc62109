"""`privopt methods`: what can be asked for with --method."""

import json as json_
from typing import Annotated

import typer


def methods(json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """List the training methods: what each is, what it needs and what it guarantees."""
    from rich.console import Console
    from rich.table import Table

    from privopt.recipes import METHODS

    if json:
        fields = ("summary", "paper", "needs", "guarantee")
        typer.echo(
            json_.dumps(
                [{"name": name, **{field: getattr(method, field) for field in fields}} for name, method in METHODS.items()]
            )
        )
        return
    table = Table("method", "what it is", "needs", "guarantee", "paper")
    for name, method in METHODS.items():
        table.add_row(f"[bold]{name}[/]", method.summary, method.needs, method.guarantee, method.paper)
    Console().print(table)
