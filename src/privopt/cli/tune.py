"""`privopt tune`: the best of several settings, chosen privately, with one budget for all of it."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from privopt.cli.options import (
    PRIVACY,
    Delta,
    Drop,
    NewRun,
    Person,
    Relation,
    RowsPerPerson,
    SchemaFile,
    Seed,
    Target,
    Task,
    explain_large_epsilon,
    new_run_folder,
    parse_value,
)
from privopt.errors import InputError

SEARCH = "Search"


def tune(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A file, as for privopt train.", show_default=False)],
    epsilon: Annotated[
        float, typer.Option(help="The privacy budget for the whole search, and the model.", rich_help_panel=PRIVACY)
    ],
    tried: Annotated[
        list[str],
        typer.Option(
            "--try",
            help="A setting and the values to try, as in rounds=100,400. Repeatable; all combinations are tried.",
            rich_help_panel=SEARCH,
        ),
    ],
    target: Target = None,
    person: Person = None,
    rows_per_person: RowsPerPerson = None,
    delta: Delta = None,
    schema: SchemaFile = None,
    drop: Drop = None,
    task: Task = None,
    neighbours: Relation = "add-remove",
    trials: Annotated[
        float | None, typer.Option(help="How many trials on average. Default: two for each candidate.", rich_help_panel=SEARCH)
    ] = None,
    scored: Annotated[float, typer.Option(help="The share of rows that is for scores only.", rich_help_panel=SEARCH)] = 0.2,
    out: NewRun = None,
    seed: Seed = None,
) -> None:
    """Choose settings privately: privopt tune patients.csv --target readmitted --epsilon 1 --try rounds=50,400 --try alpha=0,0.1

    Settings are tried a secret, random number of times; each trial is scored with noise on rows that are kept for that, and only
    the best model is released. The budget is for all of it. It prints first how much noisier that makes each model. Try what
    might matter much; the defaults of privopt train need no search.

    The run folder is that of privopt train, and is continued like one: privopt train --resume RUN
    """
    from privopt import datasets
    from privopt.cli.train import run_folder
    from privopt.escaping import bar_console, say
    from privopt.runs.request import Request
    from privopt.training.search import Search

    request = Request(
        file=file,
        target=target,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        task=task,
        schema=None if schema is None else datasets.load(schema),
        seed=seed,
        person=person,
        rows_per_person=rows_per_person,
        drop=tuple(drop or ()),
        search=Search(_combine(tried), trials, scored),
    )

    explain_large_epsilon(epsilon)

    def announce(price: str) -> None:
        say(bar_console(), f"{price} How long the search takes tells how many trials there were: keep it to yourself.")

    run_folder(context, request, out or new_run_folder(file), None, [], announce)


def _combine(tried: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """All combinations of the values, by name."""
    grid: dict[str, list[Any]] = {}
    for text in tried:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise InputError(f"--try is {text[:80]!r}, but it is a name and values, as in --try rounds=100,400.")
        if name in grid:
            raise InputError(f"--try names {name} twice. Give its values together, as in --try {name}={values},…")
        grid[name.replace("-", "_")] = [parse_value(value) for value in values.split(",")]
    return tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
