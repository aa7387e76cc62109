"""`privopt evaluate`: how good a model is, measured privately on held-out rows."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privopt.cli.options import DATA, FOLDER, PRIVACY, Relation, Run, Seed, explain_large_epsilon
from privopt.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from privopt.privacy.ledger import Ledger
    from privopt.runs.evaluation import Quality
    from privopt.runs.folder import RunFolder


def evaluate(
    run: Run,
    file: Annotated[
        Path, typer.Argument(help="Private rows that the model was not trained on, in the same format.", show_default=False)
    ],
    epsilon: Annotated[
        float, typer.Option(help="The privacy budget of this evaluation, for the rows of FILE.", rich_help_panel=PRIVACY)
    ],
    delta: Annotated[
        float, typer.Option(help="The probability that the guarantee may fail with.", rich_help_panel=PRIVACY)
    ] = 0.0,
    target: Annotated[
        str | None,
        typer.Option(
            help="The column with the true values. Default: the one that the model was trained on.", rich_help_panel=DATA
        ),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="The column that says whose row it is: protect persons, each of whom counts once.", rich_help_panel=DATA
        ),
    ] = None,
    target_bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="The public range of a number to predict. Default: the one that the schema of the run declares.",
            rich_help_panel=DATA,
        ),
    ] = None,
    error_bound: Annotated[
        float | None,
        typer.Option(
            help="Larger errors of a number count as this large. Default: the range's width; less means less noise.",
            rich_help_panel=DATA,
        ),
    ] = None,
    neighbours: Relation = "add-remove",
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="The ledger to charge; its cap, if it has one, holds. Default: evaluation-ledger.jsonl in RUN.",
            rich_help_panel=FOLDER,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The JSON file to write. Default: evaluation.json in RUN, or evaluation-2.json, …", rich_help_panel=FOLDER
        ),
    ] = None,
    seed: Seed = None,
) -> None:
    """Measure how good a model is on private rows: privopt evaluate RUN held_out.csv --epsilon 0.5

    Scores of private rows reveal something about them, so they get noise, and cost a budget of their own, which is charged to
    a ledger. Intervals hold both the noise and the error of a sample. Two evaluations of the same rows cost the sum of both.
    """
    from rich.console import Console

    from privopt.escaping import plain, say
    from privopt.privacy.budget import Budget
    from privopt.runs import evaluation as evaluations
    from privopt.runs.folder import RunFolder

    budget = Budget(epsilon, delta, neighbours, "example" if person is None else "person")
    folder = RunFolder.open(run)
    model = folder.model()
    charged = ledger or evaluations.ledger_path(folder)
    if charged.resolve() == folder.ledger_path.resolve():
        raise InputError(f"--ledger {charged} is what training cost; evaluations have a ledger of their own. Name another file.")
    place = out or evaluations.next_place(folder)
    if place.exists():
        raise InputError(f"--out {place} exists already. Name another file.")
    asked = folder.asked
    wanted = target or (asked.get("target") if model.encoding is not None else None)
    if person is not None and person == wanted:
        raise InputError(f"--person {person} is the target. Name the column that says whose row it is.")
    table, groups = evaluations.read_rows(model, file, wanted, person)
    if target_bounds is None and model.task == "regress":
        target_bounds = evaluations.declared_target_bounds(folder)
    explain_large_epsilon(epsilon)
    console = Console()
    with evaluations.open_ledger(charged) as opened:
        quality = evaluations.evaluate_model(
            model,
            table,
            budget,
            groups=groups,
            target_bounds=target_bounds,
            error_bound=error_bound,
            ledger=opened,
            seed=seed,
        )
        console.print(plain(str(quality)))
        evaluations.save(quality, place, model=str(folder.path), file=file.name)
        _say_spent(console, quality, opened, folder, trained_on=asked.get("file"), file=file)
    say(console, f"Evaluation: {place}   Ledger: {charged}")


def _say_spent(
    console: "Console", quality: "Quality", ledger: "Ledger", folder: "RunFolder", *, trained_on: object, file: Path
) -> None:
    """Print what this evaluation cost, what all evaluations cost, and what to add for rows that took part in training."""
    from privopt.escaping import say
    from privopt.privacy.budget import default_delta

    statement = quality.privacy.statement
    budget, training = statement.budget, folder.statement()
    units = "rows" if budget.unit == "example" else "persons"
    say(console, f"Spent on these {quality.size} {units}: ε = {statement.epsilon:.4g}, δ = {budget.delta:.3g}.", before="\n")
    evaluations = len({entry.run for entry in ledger.entries})  # each has one charge or two
    if evaluations > 1:
        delta = budget.delta
        if math.isinf(ledger.epsilon(delta, budget.neighbours)):  # an earlier one had δ > 0
            delta = default_delta(quality.size)
        total = f"ε = {ledger.epsilon(delta, budget.neighbours):.4g} at δ = {delta:.3g}"
        say(console, f"All {evaluations} evaluations in this ledger together: {total}.")
    if trained_on is not None and Path(str(trained_on)).resolve() == file.resolve():
        from privopt.errors import warn

        warn(
            f"the model was trained on {file}: its scores are too good there, and these rows have spent the budgets of both, "
            f"training (ε = {training.epsilon:.4g}) and evaluation."
        )
    else:
        say(console, f"Rows that also took part in training have spent that as well (ε = {training.epsilon:.4g}): add the two.")
