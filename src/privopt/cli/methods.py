"""`privopt methods`: what can be asked for with --method."""

import json as json_
from typing import Annotated

import typer

NARROW = 100  # letters


def methods(json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """List the training methods: what each is, what it needs and what it guarantees."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from privopt.methods import METHODS

    if json:
        fields = ("summary", "paper", "needs", "guarantee", "private")
        found = [
            {"name": name, **{field: getattr(method, field) for field in fields}, "networks": "network" in method.models}
            for name, method in METHODS.items()
        ]
        typer.echo(json_.dumps(found))
        return
    papers = list(dict.fromkeys(method.paper for method in METHODS.values()))
    table = Table("method", "what it is", "needs", "guarantee", "nets", "paper", padding=(0, 1, 0, 0))  # 80 letters hold it
    for name, method in METHODS.items():
        paper = f"[{papers.index(method.paper) + 1}]"
        table.add_row(
            name, method.summary, method.needs, method.guarantee, "yes" if "network" in method.models else "no", escape(paper)
        )
    console = Console()
    if console.width < NARROW:  # as wide as the longest word, so that none is cut
        for column in table.columns:
            column.width = max(len(word) for cell in [column.header, *column.cells] for word in str(cell).split())
    table.columns[0].no_wrap = True
    console.print(table)
    for number, paper in enumerate(papers, 1):
        console.print(f"[{number}] {paper}", markup=False, highlight=False)
