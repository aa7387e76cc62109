"""`privopt train`: a private model from a file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privopt.cli.options import (
    DATA,
    EVALUATION,
    MODEL,
    PRIVACY,
    ClipBound,
    Delta,
    Drop,
    LearningRate,
    MethodOptions,
    NewRun,
    Person,
    Relation,
    Resume,
    RowsPerPerson,
    SchemaFile,
    Seed,
    Target,
    Task,
    explain_large_epsilon,
    new_run_folder,
    parse_options,
    refuse_settings,
)
from privopt.errors import InputError

if TYPE_CHECKING:
    from privopt.runs.request import HoldOut, Request

TrainingFile = Annotated[
    Path | None,
    typer.Argument(help="CSV, Parquet, LIBSVM/svmlight or .npz (X and y, or a CSR matrix and y).", show_default=False),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        help="The privacy budget for everything this command learns: 1 is strong, 3 common, 10 weak.", rich_help_panel=PRIVACY
    ),
]
MethodName = Annotated[
    str, typer.Option(help="How to train; `privopt methods` lists them. Your own: module:name.", rich_help_panel=MODEL)
]
Model = Annotated[
    str,
    typer.Option(
        help="auto chooses by the numbers of rows and columns and epsilon, and the statement says what; linear; or a network: "
        "mlp:128,128 has two hidden layers of 128 tanh units. Networks need torch: pip install 'privopt\\[torch]'.",
        rich_help_panel=MODEL,
    ),
]
Public = Annotated[
    Path | None,
    typer.Option(
        help="A file like FILE whose rows are not private, for methods that use public data (adadps).", rich_help_panel=DATA
    ),
]
RowNorm = Annotated[
    float | None, typer.Option(help="A public bound on the length of rows, for LIBSVM and npz files.", rich_help_panel=DATA)
]
Rounds = Annotated[
    int | None,
    typer.Option(help="Gradient steps. Default: a rule that needs no tuning, as for the next three.", rich_help_panel=MODEL),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Expected rows per step. Default: all of them; 2048 for a network.", rich_help_panel=MODEL)
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="Processes of this machine that train a network together, started by torchrun. The guarantee stays.",
        rich_help_panel=MODEL,
    ),
]
HeldOutShare = Annotated[
    float | None,
    typer.Option(
        help="A share of the rows (or persons), such as 0.2, set aside at random to evaluate the model on at the end.",
        rich_help_panel=EVALUATION,
    ),
]
EvaluationBudget = Annotated[
    float | None,
    typer.Option(
        help="The budget of that evaluation; a row, or person, spends either it or --epsilon.", rich_help_panel=EVALUATION
    ),
]


def train(
    context: typer.Context,
    file: TrainingFile = None,
    target: Target = None,
    person: Person = None,
    rows_per_person: RowsPerPerson = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    method: MethodName = "dp-adam",
    model: Model = "auto",
    option: MethodOptions = None,
    public: Public = None,
    task: Task = None,
    schema: SchemaFile = None,
    drop: Drop = None,
    row_norm: RowNorm = None,
    neighbours: Relation = "add-remove",
    rounds: Rounds = None,
    batch_size: BatchSize = None,
    clip_bound: ClipBound = None,
    learning_rate: LearningRate = None,
    alpha: Annotated[float, typer.Option(help="Strength of ridge regularisation.", rich_help_panel=MODEL)] = 0.0,
    nproc: Processes = None,
    holdout: HeldOutShare = None,
    evaluate_epsilon: EvaluationBudget = None,
    out: NewRun = None,
    resume: Resume = None,
    seed: Seed = None,
) -> None:
    """Train a private model: privopt train patients.csv --target readmitted --epsilon 1

    Columns of text become indicators, numbers are scaled. Neither is learnt from the data for free: ranges and categories
    come from --schema, or are estimated privately within the same budget, and the statement says which.

    The run folder holds the model, the privacy statement and the ledger of what was spent. A run that is killed goes on
    with --resume, without spending more.

    \b
    Often needed:
      --person patient                        people have several rows
      --schema schema.json                    what is publicly known
                                              (privopt schema writes a form)
      --holdout 0.2 --evaluate-epsilon 0.5    is it any good?
    """
    from privopt import datasets
    from privopt.cli.processes import resumed_processes
    from privopt.runs.request import Request
    from privopt.training.settings import Settings

    sys.path.insert(0, "")  # --method module:name finds modules of the current folder, as `python -m` does
    if resume is not None:
        refuse_settings(context, allowed=["nproc"])
        run_folder(context, None, resume, resumed_processes(resume, nproc), [])
        return
    if file is None:
        raise InputError("no file to train on. For example: privopt train patients.csv --target readmitted --epsilon 1")
    if epsilon is None:
        raise InputError("--epsilon is missing: how much may be learnt about one row? 1 is a common choice.")
    request = Request(
        file=file,
        target=target,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        task=task,
        model=model,
        settings=Settings(
            method=method,
            clip_bound=clip_bound,
            rounds=rounds,
            batch_size=batch_size,
            learning_rate=learning_rate,
            bounds=row_norm,
            alpha=alpha,
            options=parse_options(option),
        ),
        schema=None if schema is None else datasets.load(schema),
        public=public,
        seed=seed,
        processes=nproc,
        person=person,
        rows_per_person=rows_per_person,
        holdout=_holdout(holdout, evaluate_epsilon, nproc, seed),
        drop=tuple(drop or ()),
    )
    if nproc is not None and not request.hidden:
        raise InputError("--nproc is for networks, such as --model mlp:128,128: a linear model trains in one process.")
    if nproc is not None and person is not None:
        raise InputError("--person is for one process: among several, the rows of a person could be in two. Leave --nproc out.")
    explain_large_epsilon(epsilon)
    place = out or new_run_folder(file)
    run_folder(context, request, place, nproc, [] if out else ["--out", str(place)])


def run_folder(
    context: typer.Context,
    request: "Request | None",
    place: Path,
    nproc: int | None,
    more: list[str],
    announce: Callable[[str], None] | None = None,
) -> None:
    """Start a run in this folder, or go on with the one that is there, and show what came of it.

    With `nproc`, this process starts so many others, which are given `more` options. `announce` is told what a search costs.
    """
    from rich.console import Console

    from privopt.cli.processes import processes
    from privopt.cli.show import print_run, report
    from privopt.escaping import bar_console, plain, say
    from privopt.progress import Bar
    from privopt.runs import execution as runs
    from privopt.runs.evaluation import evaluate_held_out

    console = Console()
    with explain_resume(place), processes(context, nproc, more), Bar(bar_console(), "training") as bar:
        folder = runs.resume(place, bar) if request is None else runs.start(request, place, bar, announce)
    evaluated = evaluate_held_out(folder)  # before the report, which shows it
    report(folder)
    print_run(console, folder)
    if evaluated is not None:
        quality, file = evaluated
        console.print(plain(str(quality)))
        statement = quality.privacy.statement
        units = "rows" if statement.budget.unit == "example" else "persons"
        spent = f"ε = {statement.epsilon:.4g}, δ = {statement.budget.delta:.3g}"
        say(console, f"Measured on {quality.size} {units} set aside, which have spent {spent}, and nothing of training's budget.")
        say(console, f"Evaluation: {file}")


def _holdout(share: float | None, epsilon: float | None, nproc: int | None, seed: int | None) -> "HoldOut | None":
    """What is set aside, by a key that is drawn before any row is read."""
    from privopt.measure.randomness import generator, key
    from privopt.runs.request import HoldOut

    if share is None and epsilon is None:
        return None
    if share is None or epsilon is None:
        raise InputError("--holdout SHARE and --evaluate-epsilon E belong together, as in --holdout 0.2 --evaluate-epsilon 0.1.")
    if nproc is not None:
        raise InputError("--holdout is for one process: leave --nproc out, or evaluate the model with privopt evaluate.")
    return HoldOut(share, epsilon, key(generator(seed)))


@contextmanager
def explain_resume(place: Path, command: str = "train") -> Iterator[None]:
    """Say how a run goes on that somebody stops, or that a full disk ends."""
    try:
        yield
    except (KeyboardInterrupt, OSError, MemoryError):
        if (place / "run.json").exists():
            from privopt.escaping import say, standard_error

            message = f"What was paid for is kept. The run goes on, and pays nothing twice: privopt {command} --resume {place}"
            say(standard_error(), message)
        raise
