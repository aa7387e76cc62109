"""Options that several commands share, each with one name and one help text, and how their values are read."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from privopt.errors import InputError, warn
from privopt.privacy.budget import WEAK, Neighbours, describe_attacker

# the headings under which --help lists the options of commands that have many
DATA, PRIVACY, MODEL, EVALUATION, FOLDER = "Data", "Privacy", "Model (defaults need no tuning)", "Evaluation", "Run folder"

Run = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
Target = Annotated[
    str | None, typer.Option(help="The column to predict. LIBSVM and npz files say it themselves.", rich_help_panel=DATA)
]
Person = Annotated[
    str | None,
    typer.Option(
        help="The column that says whose row it is: protects people, with all their rows. It is never a feature.",
        rich_help_panel=DATA,
    ),
]
RowsPerPerson = Annotated[
    int | None, typer.Option(help="Rows of a person that count, drawn at random. Default: at most 32.", rich_help_panel=DATA)
]
Delta = Annotated[
    float | None,
    typer.Option(
        help="The probability that the guarantee may fail with. Default: 1/(10 n), rounded down to a power of ten.",
        rich_help_panel=PRIVACY,
    ),
]
Relation = Annotated[
    Neighbours,
    typer.Option(
        help="What is hidden: whether a row counts at all (add-remove), or what it says (replace-one). n is public.",
        rich_help_panel=PRIVACY,
    ),
]
Task = Annotated[
    Literal["classify", "regress"] | None,
    typer.Option(help="Classes or numbers? Needed for whole numbers of more than two values.", rich_help_panel=DATA),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="What is publicly known of the columns, as JSON: ranges of numbers, lists of categories, columns to ignore. "
        "What it leaves out is estimated privately and paid from the budget.",
        rich_help_panel=DATA,
    ),
]
Drop = Annotated[list[str] | None, typer.Option(help="A column that is not used. Repeatable.", rich_help_panel=DATA)]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="An option of the method's own, as name=value; its page in docs/methods lists them. Repeatable.",
        rich_help_panel=MODEL,
    ),
]
ClipBound = Annotated[float | None, typer.Option(help="How far one row, or one user, can pull a step.", rich_help_panel=MODEL)]
LearningRate = Annotated[float | None, typer.Option(help="Step size.", rich_help_panel=MODEL)]
NewRun = Annotated[
    Path | None, typer.Option("--out", help="The run folder to make. Default: runs/NAME-DATE.", rich_help_panel=FOLDER)
]
Resume = Annotated[
    Path | None, typer.Option(help="Go on with the run in this folder, within its budget.", rich_help_panel=FOLDER)
]
Seed = Annotated[
    int | None,
    typer.Option(help="Fixed noise, for tests only: whoever knows the seed can remove the noise.", rich_help_panel=PRIVACY),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def explain_large_epsilon(epsilon: float) -> None:
    """Warn of a budget that by itself protects hardly anybody, with what it means."""
    if epsilon > WEAK:
        warn(describe_attacker(epsilon))


def new_run_folder(file: Path) -> Path:
    """Name a folder for a run on this file."""
    return Path("runs") / f"{file.name.split('.')[0]}-{time.strftime('%Y%m%d-%H%M%S')}"


def refuse_settings(context: typer.Context, allowed: Sequence[str]) -> None:
    """Refuse what was typed beside --resume: a run goes on as it was asked for."""
    typed = [name for name in context.params if _was_typed(context, name) and name not in ("resume", *allowed)]
    if typed:
        but = f" (but for {', '.join(f'--{name}' for name in allowed)})" if allowed else ""
        raise InputError(f"--resume goes on with the run as it was asked for: leave FILE and the other options out{but}.")


def _was_typed(context: typer.Context, name: str) -> bool:
    """Whether the user typed this option, be it with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def parse_options(texts: Sequence[str] | None) -> dict[str, Any]:
    """Parse options of a method, by name: name=value, where the value is JSON (a number, true, a list), or else text."""
    found: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--option is {text[:80]!r}, but it is name=value, as in --option rule=adam.")
        found[name] = parse_value(value)
    return found


def parse_value(text: str) -> Any:
    """Parse JSON; anything else is text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
