"""`privopt predict`: use a trained model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privopt.errors import InputError

if TYPE_CHECKING:
    from privopt.runs.model import SavedModel


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    file: Annotated[
        Path, typer.Argument(help="Rows to predict, in the format that the model was trained on.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="Write the predictions to this CSV file instead of printing them.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The column with the true values, if the file has it: report how good the predictions are.")
    ] = None,
) -> None:
    """Predict the rows of a file: privopt predict RUN new_patients.csv --out predictions.csv

    Using a private model costs no budget. A score measured on private rows does reveal something about them: keep it to
    yourself, or measure it on rows that may be public.
    """
    import numpy as np
    import pandas as pd
    from rich.console import Console

    from privopt import datasets
    from privopt.checkpoint import write_atomically
    from privopt.escaping import printable, say
    from privopt.runs.folder import RunFolder

    if out is not None and (out.resolve() == file.resolve() or out.resolve().is_relative_to(run.resolve())):
        raise InputError(f"--out {out} would overwrite what the predictions are made from. Name another file.")
    model = RunFolder.open(run).model()
    listed = {} if model.encoding is None else model.encoding.listed
    if target is not None and model.classes:
        listed |= {target: model.classes}
    table = datasets.read(
        file, target, names=None if model.encoding is not None else model.names, text=datasets.as_written(listed)
    )
    if model.task == "classify":
        probabilities = model.probabilities(table)
        best = probabilities.argmax(axis=1)
        frame = pd.DataFrame({"prediction": np.array(model.classes, dtype=object)[best]})
        for place, name in enumerate(model.classes):
            frame[f"probability of {name}"] = probabilities[:, place].round(6)
    else:
        frame = pd.DataFrame({"prediction": model.scores(table)[:, 0]})
    text = frame.to_csv(index=False)
    if out is None:
        shown = "\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text  # a pipe gets it as it is
        sys.stdout.write(shown)  # typer's echo would take codes out of names
    else:
        write_atomically(out, text.encode())
    console = Console(stderr=True)
    if table.target is not None:
        console.print(_score(model, frame["prediction"], table.target))
    if out is not None:
        say(console, f"{len(frame)} predictions in {out}")


def _score(model: "SavedModel", predictions: Any, truth: Any) -> str:
    """How good the predictions are, and what kind of number that is."""
    import numpy as np

    from privopt import datasets

    caution = "[dim](sensitive if these rows are private)[/]"
    if model.task == "classify":
        right = datasets.codes(truth, model.classes) == datasets.codes(predictions, model.classes)
        return f"accuracy {np.mean(right):.4f} {caution}"
    if truth.dtype.kind not in "iuf":
        raise InputError("the true values are text, but this model predicts numbers.")
    return f"R² {1 - np.mean((truth - predictions.to_numpy()) ** 2) / np.var(truth):.4f} {caution}"
