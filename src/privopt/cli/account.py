"""`privopt account`: what a training run costs, or the noise that a budget asks for. No data are read."""

import json
import math
import reprlib
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from privopt.cli.options import AsJson, Delta, Relation
from privopt.errors import InputError
from privopt.limits import MOST_EXAMPLES, MOST_ROUNDS
from privopt.privacy.budget import Budget, Neighbours, cautions, default_delta, describe_neighbours, strongest_attacker

if TYPE_CHECKING:
    from privopt.privacy.events import DpEvent

Sampling = Literal["poisson", "fixed-size", "full-batch"]
Accountant = Literal["auto", "pld", "rdp"]


def account(
    n: Annotated[int, typer.Option("--n", help="Number of training examples.")],
    batch: Annotated[
        int | None, typer.Option(help="Examples in a batch (on average, with poisson sampling). Full batches need none.")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Noise multiplier: the noise on the sum of a batch's clipped gradients, in units of the clip bound. "
            "Opacus and TensorFlow Privacy use the same number."
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of --noise: the budget ε to keep within. The noise it needs is computed.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Gradient steps.")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Instead of --rounds: passes over the data, rounded down to whole steps.")
    ] = None,
    delta: Delta = None,
    neighbours: Relation = "add-remove",
    sampling: Annotated[
        Sampling,
        typer.Option(
            help="How batches are drawn: every example by its own coin (poisson), a random set of exactly --batch "
            "(fixed-size, with replace-one), or all examples every time (full-batch). Shuffling is none of these."
        ),
    ] = "poisson",
    accountant: Annotated[
        Accountant,
        typer.Option(help="How ε is computed: pld is tightest, rdp also covers fixed-size batches, auto picks."),
    ] = "auto",
    grid: Annotated[
        float | None,
        typer.Option(help="Step that pld rounds privacy losses up to; other tools use 1e-4. By default fine enough not to show."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What privacy a training run has: ε from its noise, or the noise from ε. Reads no data.

    \b
    ε of a run that you know (or of a paper):
      privopt account --n 60000 --batch 128 --noise 2 --epochs 100 --delta 1e-5
    the noise for ε = 1:
      privopt account --n 60000 --batch 128 --epsilon 1 --epochs 100
    """
    batch = _choose_batch(n, batch, sampling)
    rounds = _choose_rounds(n, batch, rounds, epochs)
    delta = choose_delta(n, delta)
    _check_noise(noise, epsilon, grid)
    build = partial(event, sampling, n, batch, rounds)
    if epsilon is not None:
        from privopt.privacy.calibration import calibrate

        noise = calibrate(build, Budget(epsilon, delta, neighbours), accountant=accountant)
    assert noise is not None
    spent, priced = _price(build(noise), delta, neighbours, accountant, grid)
    result: dict[str, Any] = {
        "epsilon": spent if math.isfinite(spent) else None,
        "delta": delta,
        "noise_multiplier": noise,
        "rounds": rounds,
        "data_passes": rounds * batch / n,
        "n": n,
        "batch": batch,
        "sampling": sampling,
        "neighbours": neighbours,
        **priced,
        "reading": reading(spent, delta, neighbours),
        "warnings": cautions(delta, n),
        **({} if epsilon is None else {"budget": epsilon}),
    }
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_result(result)
    show_cautions(result["warnings"])


def _check_noise(noise: float | None, epsilon: float | None, grid: float | None) -> None:
    """Validate what is given, the noise or the budget, and the grid."""
    if (noise is None) == (epsilon is None):
        raise InputError("give either --noise, to learn ε, or --epsilon, to learn the noise.")
    if grid is not None and noise is None:
        raise InputError("--grid prices a given --noise; with --epsilon the grid is chosen automatically. Leave it out.")
    for option, value in (("--noise", noise), ("--epsilon", epsilon), ("--grid", grid)):
        if value is not None:
            check_positive(option, value)


def _price(
    planned: "DpEvent", delta: float, neighbours: Neighbours, accountant: Accountant, grid: float | None
) -> tuple[float, dict[str, Any]]:
    """Compute the ε of an event; return it with the accountant's part of the result."""
    from privopt.privacy.accountants import choose, epsilon
    from privopt.privacy.events import describe, to_json

    chosen = choose(planned, neighbours, accountant)
    spent = epsilon(planned, delta, neighbours, accountant=chosen, grid=grid)
    return spent, {"accountant": chosen, "event": to_json(planned), "description": describe(planned)}


def event(sampling: Sampling, n: int, batch: int, rounds: int, noise: float) -> "DpEvent":
    """The event of this many rounds of noisy clipped sums, for an accountant."""
    from privopt.measure.samplers import Sampler, fixed_size, full_batch, poisson
    from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent

    sampler: Sampler = full_batch()
    if sampling == "poisson":
        sampler = poisson(batch / n)
    elif sampling == "fixed-size":
        sampler = fixed_size(batch, n)
    return SelfComposedDpEvent(sampler.amplify(GaussianDpEvent(noise), 0), rounds)


def reading(epsilon: float, delta: float, neighbours: Neighbours) -> str:
    """The guarantee as a bet with even odds."""
    chance = strongest_attacker(epsilon, delta).success
    question = "whether one example was used" if neighbours == "add-remove" else "which of two records one example was"
    best = f"{100 * chance:.1f} %" if chance < 0.9995 else "practically 100 %"
    return f"Whoever sees the model and flips a coin over {question} is right half the time; nobody can do better than {best}."


def check_count(option: str, value: int, most: int = MOST_EXAMPLES) -> int:
    """Validate a whole number from 1."""
    if not 1 <= value <= most:
        raise InputError(f"{option} is {reprlib.repr(value)}; it is a whole number from 1 to {most}.")
    return value


def check_positive(option: str, value: float) -> float:
    """Validate a number above 0, and not so large that arithmetic overflows."""
    if not 0 < value <= 1e9:
        raise InputError(f"{option} is {value}; it is a number above 0, and at most 1e9.")
    return value


def choose_delta(n: int, delta: float | None) -> float:
    """Validate δ; without one, take the default for n examples."""
    if delta is None:
        return default_delta(n)
    if not 0 < delta < 1:
        raise InputError(f"--delta is {delta}; it is a probability above 0 (Gaussian noise has no guarantee at 0) and below 1.")
    return delta


def _choose_batch(n: int, batch: int | None, sampling: Sampling) -> int:
    check_count("--n", n)
    if sampling == "full-batch":
        return n
    if batch is None:
        raise InputError(f"{sampling} sampling needs --batch. If every step uses all examples: --sampling full-batch.")
    if check_count("--batch", batch) > n:
        raise InputError(f"--batch is {batch}, but there are only {n} examples. --sampling full-batch uses them all.")
    return batch


def _choose_rounds(n: int, batch: int, rounds: int | None, epochs: float | None) -> int:
    if (rounds is None) == (epochs is None):
        raise InputError("give either --rounds, the number of gradient steps, or --epochs, the passes over the data.")
    if epochs is not None:
        rounds = math.floor(check_positive("--epochs", epochs) * n / batch + 1e-9)
        if rounds < 1:
            raise InputError(f"--epochs {epochs:g} is less than one step of {batch} of {n} examples. Use --rounds.")
    return check_count("--rounds", rounds or 0, MOST_ROUNDS)


def _print_result(result: dict[str, Any]) -> None:
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    spent = "∞" if result["epsilon"] is None else f"{result['epsilon']:.4g}"
    passes = f"{result['data_passes']:.4g} data passes"
    accountant = {"pld": "pld (privacy loss distributions)", "rdp": "rdp (Rényi)"}[result["accountant"]]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in (
        ("ε", spent + (f" of {result['budget']:g}" if "budget" in result else "")),
        ("δ", f"{result['delta']:g}"),
        ("noise", f"{result['noise_multiplier']:.6g} × the clip bound"),
        ("rounds", f"{result['rounds']} ({passes})"),
        ("neighbours", describe_neighbours(result["neighbours"])),
        ("event", result["description"]),
        ("accountant", accountant),
    ):
        table.add_row(label, Text(value))
    title = f"ε = {spent}, δ = {result['delta']:g}"
    if "budget" in result:
        title = f"noise multiplier {result['noise_multiplier']:.5g} for ε = {result['budget']:g}, δ = {result['delta']:g}"
    console = Console()
    console.print(Panel(Group(table, "", Text(result["reading"], style="italic")), title=title, expand=False))


def show_cautions(warnings: list[str]) -> None:
    """Print warnings on standard error, in a red frame."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    for warning in warnings:
        Console(stderr=True).print(Panel(Text(warning), title="WARNING", border_style="bold red", expand=False))
