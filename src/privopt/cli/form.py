"""`privopt schema`: a form to say what is publicly known of a table's columns."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from privopt.errors import InputError


def schema_form(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask about each column, in a dialogue.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of printing; it must not exist.")] = None,
) -> None:
    """Write a schema to fill in: privopt schema patients.csv > schema.json

    The form has the names and types of the columns, and nothing about their values. What stays unfilled is estimated privately
    when a model is trained, so it can be used as it is: privopt train FILE --schema schema.json
    """
    from privopt import datasets
    from privopt.durable import write_atomically

    if out is not None and out.exists():
        raise InputError(f"--out {out} exists already. Name another file.")
    frame = datasets.read(file, None).frame
    if frame is None:
        raise InputError(f"{file} has no named columns, so a schema can say nothing about them. Use --row-norm when training.")
    form = datasets.blank_form(frame, target)
    if ask:
        _say(f"{file}: {len(form['columns'])} columns. Answer from public knowledge, not from the data. Enter: unknown.")
        if target is not None:
            _ask_target(form["target"])
        form["columns"] = {name: _ask_column(name, entry) for name, entry in form["columns"].items()}
    text = _write(form)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(out, text.encode())


def _write(form: dict[str, Any]) -> str:
    """JSON with a line for each line of a note and for each column."""

    def lines(items: list[str]) -> str:
        return ",\n".join(f"    {item}" for item in items)

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = [f'  "note": [\n{lines(list(map(line, form["note"])))}\n  ]']
    parts += [f'  "target": {line(form["target"])}'] if "target" in form else []
    columns = [f"{line(name)}: {line(entry)}" for name, entry in form["columns"].items()]
    return "{\n" + ",\n".join([*parts, f'  "columns": {{\n{lines(columns)}\n  }}']) + "\n}\n"


# ---------------------------------------------------------------- the dialogue, on standard error

_QUESTIONS = {  # for each type of column: the question, and the type that each answer gives it
    "number": ("an [a]mount, or a [c]ode", {"a": "number", "c": "category"}),
    "category": ("[c]ategories, or [d]ates", {"c": "category", "d": "date"}),
    "date": ("[d]ates", {"d": "date"}),
}


def _ask_column(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Ask the user about a column, and return its entry of the schema."""
    if "type" not in entry:
        kind = _choose(
            f"{name!r}, {entry['note'].partition(';')[0]}",
            "a [c]ategory, or something to [l]eave out",
            {"c": "category", "l": ""},
            "l",
        )
    elif entry.get("values"):  # truth values
        return entry
    else:
        what, answers = _QUESTIONS[entry["type"]]
        kind = _choose(f"{name!r}", f"{what}, or something to [l]eave out", answers | {"l": ""}, next(iter(answers)))
    if not kind:
        return {"ignore": True}
    while True:
        said: dict[str, Any] = {"type": kind}
        if kind == "category":
            said["values"] = _ask("  its values, separated by commas", _parse_values)
        else:
            years = "year" if kind == "date" else "value"
            said["low"] = _ask(f"  the smallest possible {years}", _parse_number)
            said["high"] = None if said["low"] is None else _ask(f"  the largest possible {years}", _parse_number)
            counts = "date (2020-01-31)" if kind == "date" else "number"
            said["missing"] = _ask(f'  a {counts} that missing ones count as, or "indicator" to mark them', _parse_missing)
        if _accept(said):
            return said


def _ask_target(entry: dict[str, Any]) -> None:
    if "classes" in entry:
        entry["classes"] = _ask("the classes of the target, separated by commas", _parse_values)
    else:
        entry["low"] = _ask("the smallest possible value of the target", _parse_number)
        entry["high"] = None if entry["low"] is None else _ask("the largest possible value of the target", _parse_number)


UNNAMED = repr("")  # how an error names the column without a name


def _accept(said: dict[str, Any]) -> bool:
    """Check that a schema may say this; if not, print the reason."""
    from privopt.datasets import Schema

    try:
        Schema.from_json({"columns": {"": said}})
    except InputError as error:
        _say(f"  {str(error).partition(UNNAMED)[2].strip(' :')} Once more:")
        return False
    return True


def _choose(what: str, choices: str, answers: dict[str, str], usual: str) -> str:
    while True:
        answer = typer.prompt(f"{what}: {choices}?", default=usual, err=True).strip().lower()[:1]
        if answer in answers:
            return answers[answer]


def _ask(question: str, parse: Any) -> Any:
    while True:
        answer = typer.prompt(question, default="", show_default=False, err=True).strip()
        if not answer:
            return None
        try:
            return parse(answer)
        except ValueError:
            _say("  That is no number.")


def _parse_number(answer: str) -> float:
    number = float(answer)
    return int(number) if number.is_integer() else number


def _parse_values(answer: str) -> list[str]:
    return [value.strip() for value in answer.split(",") if value.strip()]


def _parse_missing(answer: str) -> float | str:
    try:
        return _parse_number(answer)
    except ValueError:
        return answer


def _say(text: str) -> None:
    from rich.console import Console

    from privopt.escaping import say

    say(Console(stderr=True, highlight=False), text)
