"""`privopt plan`: what to expect of each ε, and which batch size and rounds hold the least noise. No data are read.

`privopt methods`: what can be asked for with --method.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from privopt.cli.account import check_count, check_positive, choose_delta, event, show_cautions
from privopt.cli.options import AsJson, Delta, Relation
from privopt.durable import write_atomically
from privopt.errors import InputError
from privopt.limits import MOST_EXAMPLES, MOST_ROUNDS
from privopt.privacy.budget import Budget, cautions, describe_attacker, strongest_attacker

if TYPE_CHECKING:
    from privopt.report.planning import Choice

# ---------------------------------------------------------------- methods


NARROW = 100  # columns of a terminal


def methods(as_json: AsJson = False) -> None:
    """List the training methods: what each is, what it needs and what it guarantees."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from privopt.methods import METHODS

    if as_json:
        fields = ("summary", "paper", "needs", "guarantee", "private")
        found = [
            {"name": name, **{field: getattr(method, field) for field in fields}, "networks": "network" in method.models}
            for name, method in METHODS.items()
        ]
        typer.echo(json.dumps(found))
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


# ---------------------------------------------------------------- plan


ROUNDS = (50, 200, 800)
SHARES = (8, 32, 128)  # by default, batches of about n/8, n/32 and n/128
_HEADINGS = (
    "",
    "batch",
    "rounds",
    "gradients\nper round",
    "data\npasses",
    "noise\nmultiplier",
    "noise per\ncoordinate",
    "noise\nnorm",
    "at equal\nprogress",
)
CLOSE = 0.05  # rows whose noise differs by less are compared by their cost


@dataclass(frozen=True)
class Row:
    """One way to spend the budget. Noise is in units of the clip bound, on the averaged gradient."""

    batch: int
    full: bool
    rounds: int
    data_passes: float
    noise_multiplier: float
    noise_per_coordinate: float  # z/b
    noise_norm: float  # z√d/b
    noise_at_equal_progress: float  # z√d/(b√T)


def plan(
    n: Annotated[int, typer.Option("--n", help="Number of training examples, or of persons.")],
    d: Annotated[
        int, typer.Option("--d", help="Number of parameters of the model; features + 1 for a linear model of two classes.")
    ],
    epsilon: Annotated[float, typer.Option(help="The budget ε. Smaller is more private; 1 is a common choice.")],
    delta: Delta = None,
    neighbours: Relation = "add-remove",
    batches: Annotated[
        str | None,
        typer.Option(help='Batch sizes to compare, like "full,4096,1024,256"; by default all examples, n/8, n/32 and n/128.'),
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(help=f'Numbers of gradient steps to compare; by default "{",".join(map(str, ROUNDS))}".')
    ] = None,
    task: Annotated[Literal["classify", "regress"], typer.Option(help="Classes or numbers?")] = "classify",
    best: Annotated[
        float | None,
        typer.Option(help="A guess of the AUC (or R²) that is possible without privacy. Default: 0.85 (or 0.6)."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write what to expect of each ε to this file too, with plots.")] = None,
    as_json: AsJson = False,
) -> None:
    """Choose ε, a batch size and rounds, before any data are read.

    First: what a linear model can expect at each ε, and the most that an
    attacker can say. The quality is that of a made-up task with so many rows
    and parameters: believe where it falls off, not its height.

    Then: batch sizes and rounds for --epsilon. Every row has the same privacy;
    what counts is how far the noise of all rounds together moves the model
    while it makes the same progress, the last column.

    \b
      privopt plan --n 32561 --d 124 --epsilon 1 --html plan.html
      privopt plan --n 32561 --d 124 --epsilon 1 --batches full,4096
    """
    from privopt.report.planning import BEST, MEASURES, compare_epsilons, render_plan

    check_count("--n", n)
    check_count("--d", d)
    check_positive("--epsilon", epsilon)
    best = BEST[task] if best is None else best
    lowest = 0.5 if task == "classify" else 0.0
    if not lowest < best < 1:
        raise InputError(f"--best is {best:g}, but it is a number above {lowest:g} and below 1.")
    if html is not None and html.exists():
        raise InputError(f"--html {html} exists already. Name another file.")
    if html is not None and not html.parent.is_dir():
        raise InputError(f"--html {html}: there is no folder {html.parent}. Make it, or name another file.")
    budget = Budget(epsilon, choose_delta(n, delta), neighbours)
    sizes = default_batches(n) if batches is None else _parse_batches(batches, n)
    counts = ROUNDS if rounds is None else _parse_numbers("--rounds", rounds, MOST_ROUNDS)
    choices = compare_epsilons(n, d, budget, task=task, best=best)
    found = list(_show_progress(calibrate_rows(n, d, budget, sizes, counts), len(sizes) * len(counts)))
    chosen = choose_row(found)
    result: dict[str, Any] = {
        "n": n,
        "d": d,
        "epsilon": epsilon,
        "delta": budget.delta,
        "neighbours": neighbours,
        "rows": [asdict(row) for row in found],
        "recommended": asdict(chosen),
        "reason": reason(found, chosen),
        "warnings": cautions(budget.delta, n),
        "attacker": strongest_attacker(epsilon, budget.delta).to_json(),
        "meaning": describe_attacker(epsilon, budget.delta),
        "choices": [choice.to_json() for choice in choices],
    }
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_choices(choices, epsilon, MEASURES[task], best)
        _print_rows(found, chosen, result)
    if html is not None:
        write_atomically(html, render_plan(choices, budget, n, d, task, best).encode())
    show_cautions(result["warnings"])


def calibrate_rows(n: int, d: int, budget: Budget, batches: Sequence[int], rounds: Sequence[int]) -> Iterator[Row]:
    """Calibrate every batch size (n is a full batch, others are Poisson samples) with every number of rounds."""
    from privopt.privacy.calibration import calibrate

    for batch in batches:
        sampling = "full-batch" if batch == n else "poisson"
        for count in rounds:
            noise = calibrate(lambda z, b=batch, t=count, s=sampling: event(s, n, b, t, z), budget)  # type: ignore[misc]
            norm = noise * math.sqrt(d) / batch
            yield Row(batch, batch == n, count, count * batch / n, noise, noise / batch, norm, norm / math.sqrt(count))


def choose_row(rows: Sequence[Row]) -> Row:
    """Choose the cheapest row, in data passes, whose noise for the same progress is within 5 % of the least.

    T rounds of step η progress by ηT, in units of the clipped gradient. Their noises are independent, so together they move the
    model by η√T·s, where s = z√d/b is the norm of one round's noise. For the same progress P = ηT that is P·s/√T, so rows
    compare by s/√T. Full batches all come out alike: z grows as √T, and T only costs time. Sampled batches approach that from
    above as their noise z grows, at a fraction of the passes; with z near 1 they fall behind: smaller batches hide little more.

    The rule leaves out that fewer rounds need larger steps, which a badly conditioned problem may not bear, and that small
    batches have a sampling noise of their own.
    """
    least = min(row.noise_at_equal_progress for row in rows)
    close = [row for row in rows if row.noise_at_equal_progress <= (1 + CLOSE) * least]
    return min(close, key=lambda row: (row.data_passes, row.noise_at_equal_progress))


def reason(rows: Sequence[Row], best: Row) -> str:
    """Explain the choice of a row."""
    above = best.noise_at_equal_progress / min(row.noise_at_equal_progress for row in rows) - 1
    noise = f"{100 * above:.1f} % above the least" if above >= 0.001 else "the least of all"  # calibration is no finer
    return (
        f"{_describe_batch(best)} × {best.rounds} rounds: at equal progress its noise is {noise}, and of the rows within "
        f"{100 * CLOSE:.0f} % of the least it takes the fewest data passes ({best.data_passes:.3g}). If steps so large do not "
        "converge, take more rounds: at equal progress that adds no noise, only passes."
    )


def default_batches(n: int) -> list[int]:
    """List all examples, and the powers of two next to n/8, n/32 and n/128."""
    powers = (2 ** round(math.log2(n / share)) for share in SHARES if n >= 2 * share)
    return [n, *dict.fromkeys(powers)]


def _parse_batches(text: str, n: int) -> list[int]:
    found = _parse_numbers("--batches", text, MOST_EXAMPLES, words={"full": n})
    if max(found) > n:
        raise InputError(f"--batches has {max(found)}, but there are only {n} examples. 'full' is all of them.")
    return found


def _parse_numbers(option: str, text: str, most: int, words: dict[str, int] | None = None) -> list[int]:
    found = []
    for item in (item.strip() for item in text.split(",")):
        if item in (words or {}):
            found.append((words or {})[item])
        elif item.isdecimal() and len(item) <= len(str(most)) and 0 < int(item) <= most:
            found.append(int(item))
        else:
            allowed = " or ".join([f"whole numbers from 1 to {most}", *map(repr, words or {})])
            raise InputError(f"{option} has {item[:80]!r}; it lists {allowed}, between commas.")
    return list(dict.fromkeys(found))


def _describe_batch(row: Row) -> str:
    return "full batch" if row.full else f"batch {row.batch}"


def _show_progress(rows: Iterator[Row], total: int) -> Iterator[Row]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(
        rows, "calibrating", total=total, console=console, transient=True, disable=not console.is_terminal, update_period=0.5
    )


BAR = 20  # letters of the longest bar


def _print_choices(choices: "Sequence[Choice]", epsilon: float, measure: str, best: float) -> None:
    """Print a table with a bar for each ε: from guessing to the best that is possible without privacy."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from privopt.report.planning import percent

    lowest = 0.5 if measure == "AUC" else 0.0
    table = Table(title="What to expect of each ε", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    headings = ("", "ε", f"expected\n{measure}", f"not private: {best:g}", "attacker\nis right", "advan-\ntage", "how\nstrong")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", headings[3], headings[-1]) else "right", no_wrap=True)
    for one in choices:
        filled = round(BAR * max(0.0, one.expected - lowest) / (best - lowest))
        mine = one.epsilon == epsilon
        cells = [f"{one.epsilon:g}", f"{one.expected:.3f}", "█" * filled + "░" * (BAR - filled)]
        cells += [percent(one.success), f"{one.advantage:.3f}", one.strength.partition(":")[0].partition(" in ")[0]]
        table.add_row("→" if mine else "", *cells, style="bold green" if mine else None)
    console = Console()
    console.print(table)
    console.print(
        "Quality: a linear model in a made-up task with so many rows and parameters. Attacker: the strongest, who guesses "
        "whether one person took part, where a fair coin decided that.",
        highlight=False,
    )


def _print_rows(rows: Sequence[Row], best: Row, result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="ε = {epsilon:g}, δ = {delta:g} ({neighbours}), n = {n}, d = {d}".format(**result),
        caption="noise of the averaged gradient, in units of the clip bound",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        noises = (row.noise_multiplier, row.noise_per_coordinate, row.noise_norm, row.noise_at_equal_progress)
        cells = ["full" if row.full else str(row.batch), str(row.rounds), str(row.batch)]
        cells += [f"{number:.3g}" for number in (row.data_passes, *noises)]
        table.add_row("→" if row == best else "", *cells, style="bold green" if row == best else None)
    console = Console()
    console.print(table)
    console.print(f"[bold green]→[/] {result['reason']}", highlight=False)
    console.print(result["meaning"], highlight=False)
