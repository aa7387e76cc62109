"""`privopt methods`: what can be asked for with --method."""

import json as json_
from typing import Annotated

import typer


def methods(json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """List the training methods: what each is, what it needs and what it guarantees."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from privopt.recipes import METHODS

    if json:
        fields = ("summary", "paper", "needs", "guarantee", "networks", "private")
        typer.echo(
            json_.dumps(
                [{"name": name, **{field: getattr(method, field) for field in fields}} for name, method in METHODS.items()]
            )
        )
        return
    papers = list(dict.fromkeys(method.paper for method in METHODS.values()))
    table = Table("method", "what it is", "needs", "guarantee", "networks", "paper")
    table.columns[0].no_wrap = True
    for name, method in METHODS.items():
        paper = f"[{papers.index(method.paper) + 1}]"
        table.add_row(name, method.summary, method.needs, method.guarantee, "yes" if method.networks else "no", escape(paper))
    console = Console()
    console.print(table)
    for number, paper in enumerate(papers, 1):
        console.print(f"[{number}] {paper}", markup=False, highlight=False)
