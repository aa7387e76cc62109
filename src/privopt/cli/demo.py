"""`privopt demo`: what privacy costs, on a real and sensitive data set that statsmodels ships.

`privopt sample`: a made-up table of hospital stays, to try privopt on. It has what real tables have: several rows per patient, an
id column, numbers and text, values that are missing.
"""

import csv
import io
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privopt.errors import InputError

if TYPE_CHECKING:
    from privopt.datasets import Schema


# ---------------------------------------------------------------- sample


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

    from privopt.durable import write_atomically
    from privopt.errors import InputError
    from privopt.escaping import say

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
    say(console, f"  or: privopt federate {file} --users patient --target readmitted --epsilon 3")


def _draw_stays(rows: int, rng: random.Random) -> Iterator[tuple[object, ...]]:
    """Draw patients with one stay or more each, until there are enough rows.

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
    """Draw a value; `shares` are the probabilities."""
    place = rng.random()
    for value, share in shares.items():
        if (place := place - share) < 0:
            return value
    return next(iter(shares))  # the shares add up to 1 but for rounding


# ---------------------------------------------------------------- demo


BUDGETS = (0.5, 1.0, 3.0)


def demo(out: Annotated[Path | None, typer.Option(help="The folder to make. Default: runs/demo-DATE.")] = None) -> None:
    """Train private models of a real survey on extramarital affairs, and compare them with the non-private one.

    Fair (1978) asked 6,366 women, in confidence, about their marriage. The models predict who had an affair from age, years
    married, religiousness and so on. The questionnaire prints the ranges of the answers, so they are public.
    """
    import numpy as np
    from rich.console import Console
    from rich.table import Table
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, roc_auc_score

    from privopt import datasets
    from privopt.cli.show import print_run, report
    from privopt.escaping import bar_console, say
    from privopt.privacy.accountants import epsilon
    from privopt.privacy.events import compose
    from privopt.progress import Bar
    from privopt.runs import execution as runs
    from privopt.runs.request import Request

    console = Console()
    place = out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    if place.exists():
        raise InputError(f"{place} exists already; name another folder with --out.")
    training, test = _write_survey(place)
    asked, rows = datasets.read(test, "affair"), datasets.read(training, "affair")
    truth = asked.target
    table = Table("model", "ε", "δ", "accuracy", "AUC", "seconds", title="Who had an affair? (test rows)", title_justify="left")

    def add(name: str, budget: str, delta: str, predicted: Any, seconds: float) -> None:
        accuracy = accuracy_score(truth == "yes", predicted > 0.5)
        table.add_row(name, budget, delta, f"{accuracy:.3f}", f"{roc_auc_score(truth == 'yes', predicted):.3f}", f"{seconds:.2f}")

    folders = []
    for budget in BUDGETS:
        order = Request(file=training, target="affair", epsilon=budget, schema=_schema())
        started = time.perf_counter()
        with Bar(bar_console(), f"private, ε = {budget}") as bar:
            folders.append(runs.start(order, place / f"epsilon-{budget}", bar))
        seconds = time.perf_counter() - started
        report(folders[-1])
        statement, model = folders[-1].statement(), folders[-1].model()
        predicted = model.probabilities(asked)[:, 1]
        add("private", f"{statement.epsilon:.3f}", f"{statement.budget.delta:.0e}", predicted, seconds)
    if truth is None or model.encoding is None or rows.frame is None or asked.frame is None:
        raise InputError("the demo needs tables with named columns and a target.")
    started = time.perf_counter()
    plain = LogisticRegression(C=np.inf).fit(model.encoding.matrix(rows.frame), rows.target)
    add("non-private", "∞", "–", plain.predict_proba(model.encoding.matrix(asked.frame))[:, 1], time.perf_counter() - started)

    print_run(console, folders[1])
    console.print(table)
    everything = compose([folder.statement().event for folder in folders])
    delta = statement.budget.delta
    console.print(
        f"Each private model has a budget of its own. Publishing all three would cost ε = {epsilon(everything, delta):.2f}.\n"
        f"The accuracies above are measured on {len(truth)} private test rows: fine for a demonstration, a leak in real life.",
        soft_wrap=True,
    )
    page = (place / "epsilon-1.0" / "report.html").absolute()
    say(console, f"Open {page} in a browser for the report of the model with ε = 1.")


def _schema() -> "Schema":
    """Return the ranges that the questionnaire allows (Fair 1978; statsmodels' description of the data)."""
    from privopt.datasets import Numeric, Schema

    ranges = {
        "rate_marriage": (1, 5),
        "age": (17.5, 42),
        "yrs_married": (0.5, 23),
        "children": (0, 5.5),
        "religious": (1, 4),
        "educ": (9, 20),
        "occupation": (1, 6),
        "occupation_husb": (1, 6),
    }
    return Schema({name: Numeric(low, high) for name, (low, high) in ranges.items()}, classes=("no", "yes"))


def _write_survey(place: Path) -> tuple[Path, Path]:
    """Write a file of training rows, and one of every fourth row for testing."""
    try:
        from statsmodels.datasets import fair
    except ImportError:
        raise InputError("the demo's data come with statsmodels: pip install 'privopt[demo]'") from None
    import numpy as np

    from privopt.durable import write_atomically

    frame = fair.load_pandas().data
    frame["affair"] = np.where(frame.pop("affairs") > 0, "yes", "no")
    place.mkdir(parents=True)
    tested = np.arange(len(frame)) % 4 == 0
    files = place / "training.csv", place / "test.csv"
    for file, rows in zip(files, (~tested, tested), strict=True):
        write_atomically(file, frame[rows].to_csv(index=False).encode())
    return files
