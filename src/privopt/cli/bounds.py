"""`privopt bounds`: what the theory promises at given numbers, and the noise that the papers would add. No data are read."""

import json
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privopt.cli.account import choose_delta, show_cautions
from privopt.cli.options import AsJson, Delta
from privopt.errors import InputError
from privopt.privacy.budget import cautions

if TYPE_CHECKING:
    from privopt.theory import Bound, Problem
    from privopt.theory.comparison import Row

# beyond these, arithmetic gives out: the papers' powers go up to 8, and their rounds to n²
COUNTS = (1, 10**9)
EPSILONS = (1e-4, 100.0)
CONSTANTS = (1e-6, 1e6)


def bounds(
    n: Annotated[int, typer.Option("--n", help="Number of training examples.")],
    d: Annotated[int, typer.Option("--d", help="Number of parameters of the model.")],
    epsilon: Annotated[float, typer.Option(help="The budget ε. Smaller is more private; 1 is a common choice.")],
    delta: Delta = None,
    lipschitz: Annotated[
        float,
        typer.Option(help="G: no example's gradient is longer. 1 for logistic regression on rows of norm 1."),
    ] = 1.0,
    smoothness: Annotated[
        float, typer.Option(help="L: gradients change by at most L per unit of distance. 0.25 for the same logistic regression.")
    ] = 0.25,
    gap: Annotated[
        float,
        typer.Option(help="How far the loss at the start lies above the least. At most ln 2 for logistic regression from 0."),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """What the theory promises for four private methods, and their papers' noise.

    Reads no data. Utility is the norm of the gradient where a method stops,
    0 at a minimum. Orders leave out constants: they say how methods scale.
    Proven bounds have every constant, for a loss with the --lipschitz,
    --smoothness and --gap that are given.

    Noise is that of one coordinate of a batch's mean gradient: as much as the
    accountant needs to hide that one example was replaced, and as much as the
    paper's formula adds.

    \b
      privopt bounds --n 32561 --d 123 --epsilon 0.2
      privopt bounds --n 32561 --d 123 --epsilon 0.2 --smoothness 1 --json
    """
    for option, value, (least, most) in (
        ("--n", n, COUNTS),
        ("--d", d, COUNTS),
        ("--epsilon", epsilon, EPSILONS),
        ("--lipschitz", lipschitz, CONSTANTS),
        ("--smoothness", smoothness, CONSTANTS),
        ("--gap", gap, CONSTANTS),
    ):
        if not least <= value <= most:
            raise InputError(f"{option} is {reprlib.repr(value)}; it is a number from {least:g} to {most:g} here.")
    delta = choose_delta(n, delta)

    from privopt.theory import Problem

    problem = Problem(n, d, lipschitz, smoothness, gap)
    rows = _compare_methods(problem, epsilon, delta)
    result = {
        **asdict(problem),
        "epsilon": epsilon,
        "delta": delta,
        "neighbours": "replace-one",
        "methods": [asdict(row) for row in rows],
        "notes": list(notes(rows, problem)),
        "warnings": cautions(delta, n),
    }
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        print_tables(rows, problem, epsilon, delta)
    show_cautions(result["warnings"])


def _compare_methods(problem: "Problem", epsilon: float, delta: float) -> Sequence["Row"]:
    from rich.console import Console

    from privopt.theory import compare

    console = Console(stderr=True)
    if not console.is_terminal:
        return compare(problem, epsilon=epsilon, delta=delta)
    with console.status("pricing the noise"):
        return compare(problem, epsilon=epsilon, delta=delta)


def notes(rows: Sequence["Row"], problem: "Problem") -> Iterator[str]:
    """List every condition that fails, by method, and the bounds that say nothing."""
    for row in rows:
        name = row.order.method
        for condition in row.failing:
            yield f"{name}: its theorem needs {condition}."
        for condition in row.noise.failing if row.noise else ():
            yield f"{name}: * the paper's own proof does not cover its noise. It needs {condition}."
    if any(_trivial(bound, problem) for row in rows for bound in (row.needed_bound, row.printed_bound)):
        yield f"† No gradient is longer than G = {problem.lipschitz:g}, so this bound says nothing."


def print_tables(rows: Sequence["Row"], problem: "Problem", epsilon: float, delta: float) -> None:
    """Print both tables, and the conditions that fail."""
    from rich.console import Console

    console = Console()
    title = f"ε = {epsilon:g}, δ = {delta:g} (replace-one), n = {problem.n}, d = {problem.d}, "
    title += f"G = {problem.lipschitz:g}, L = {problem.smoothness:g}, gap = {problem.gap:g}"
    console.print(title, style="bold", highlight=False)
    promised = _table(
        "", "utility,\norder", "gradients,\norder", "passes,\norder", "proven,\nneeded\nnoise", "proven,\npaper's\nnoise"
    )
    prescribed = _table("", "rounds", "batch", "step", "noise\nneeded", "noise of\nthe paper", "ratio")
    for row in rows:
        order = row.order
        promised.add_row(
            order.method,
            f"{order.utility:.3g}",
            f"{order.gradients:.3g}",
            f"{order.gradients / problem.n:.3g}",
            _cell(row.needed_bound, problem),
            _cell(row.printed_bound, problem),
        )
        if row.noise is not None:
            noise = row.noise
            printed = f"{noise.printed:.3g}" + ("*" if noise.failing else "")
            settings = (str(row.rounds), str(row.batch), f"{row.learning_rate:.3g}")
            prescribed.add_row(order.method, *settings, f"{noise.needed:.3g}", printed, f"{noise.printed / noise.needed:.2f}")
    console.print(promised)
    console.print(prescribed)
    for note in notes(rows, problem):
        console.print(f"· {note}", highlight=False, markup=False)


def _cell(bound: "Bound | None", problem: "Problem") -> str:
    if bound is None or bound.value is None:
        return "–"
    return f"{bound.value:.3g}" + (" †" if _trivial(bound, problem) else "")


def _trivial(bound: "Bound | None", problem: "Problem") -> bool:
    return bound is not None and bound.value is not None and bound.value >= problem.lipschitz


def _table(*headings: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    return table
