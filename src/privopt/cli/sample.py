"""`privopt sample`: a made-up table of hospital stays, to try privopt on.

It has what real tables have: several rows per patient, an id column, numbers and text, values that are missing.
"""

import csv
import io
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

COLUMNS = ("patient", "age", "region", "insurance", "department", "admission", "stay_days", "earlier_stays", "readmitted")
REGIONS = {"north": 0.4, "south": 0.3, "east": 0.2, "west": 0.1}
INSURANCES = {"public": 0.55, "private": 0.25, "self-pay": 0.1, "": 0.1}  # an empty field is a missing value
DEPARTMENTS = {"internal": 0.45, "surgery": 0.3, "neurology": 0.15, "other": 0.1}
ADMISSIONS = {"planned": 0.45, "emergency": 0.35, "referral": 0.1, "": 0.1}
RETURNS = 0.45  # probability that the table holds one more stay of a patient


def sample(
    file: Annotated[Path, typer.Argument(help="The CSV file to write; it must not exist.", show_default=False)],
    rows: Annotated[int, typer.Option(help="How many hospital stays.", min=1, max=1_000_000)] = 4000,
    seed: Annotated[int, typer.Option(help="Another number gives other patients; the same one the same file.")] = 0,
) -> None:
    """Write a made-up table of hospital stays, to try privopt on."""
    from rich.console import Console

    from privopt.cli.terminal import say
    from privopt.durable import write_atomically
    from privopt.errors import InputError

    if file.suffix != ".csv":
        raise InputError(f"{file} is written as CSV: name a file that ends in .csv.")
    if file.exists():
        raise InputError(f"{file} exists already; name another file.")
    stays = list(_draw_stays(rows, random.Random(seed)))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *stays])
    write_atomically(file, text.getvalue().encode())
    patients = len({stay[0] for stay in stays})
    console = Console()
    say(console, f"{file}: {rows} hospital stays of {patients} patients. All of it is made up; nobody's data are in it.")
    say(console, f"Next: privopt train {file} --target readmitted --epsilon 1")


def _draw_stays(rows: int, rng: random.Random) -> Iterator[tuple[object, ...]]:
    """Patients with one stay or more each, until there are enough rows.

    Only `rng.random()` is used, whose numbers are the same in every version of Python.
    """
    patient = written = 0
    while True:
        patient += 1
        age = 18 + int(73 * rng.random() ** 0.8)
        region, insurance = _choose(REGIONS, rng), _choose(INSURANCES, rng)
        earlier = 0
        while earlier == 0 or rng.random() < RETURNS:
            if written == rows:
                return
            department, admission = _choose(DEPARTMENTS, rng), _choose(ADMISSIONS, rng)
            days = min(30, 1 + int((2 + age / 20) * 1.2 * rng.random() / (1.05 - rng.random())))
            score = -3.6 + 0.06 * (age - 55) + 0.12 * days + 0.8 * min(earlier, 4)
            score += {"emergency": 1.4, "referral": 0.5}.get(admission, 0.0) + (0.6 if insurance == "self-pay" else 0.0)
            readmitted = "yes" if rng.random() < 1 / (1 + math.exp(-score)) else "no"
            yield f"P{patient:06d}", age, region, insurance, department, admission, days, earlier, readmitted
            written, earlier = written + 1, earlier + 1


def _choose(shares: dict[str, float], rng: random.Random) -> str:
    """A value, by its share of all."""
    place = rng.random()
    for value, share in shares.items():
        if (place := place - share) < 0:
            return value
    return next(iter(shares))  # the shares add up to 1 but for rounding
