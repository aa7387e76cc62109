"""`privopt predict`: use a trained model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privopt.cli.options import Run
from privopt.errors import InputError

if TYPE_CHECKING:
    from privopt.runs.model import SavedModel


def predict(
    run: Run,
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
    yourself, measure it on rows that may be public, or let privopt evaluate measure it with noise.
    """
    import numpy as np
    import pandas as pd
    from rich.console import Console

    from privopt import datasets
    from privopt.durable import write_atomically
    from privopt.escaping import printable, say
    from privopt.runs.folder import RunFolder

    if out is not None and (out.resolve() == file.resolve() or out.resolve().is_relative_to(run.resolve())):
        raise InputError(f"--out {out} would overwrite what the predictions are made from. Name another file.")
    model = RunFolder.open(run).model()
    names = None if model.encoding is not None else model.names
    table = datasets.read(file, target, names=names, text=model.text_columns(target))
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
        scores = probabilities if model.task == "classify" else frame["prediction"].to_numpy()
        say(console, f"{_score(model, scores, table.target)} (sensitive if these rows are private)")
    if out is not None:
        say(console, f"{len(frame)} predictions in {out}")


def _score(model: "SavedModel", predicted: Any, truth: Any) -> str:
    """Describe how good the predictions are, beside constant ones: exact numbers, for rows that may be public."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from privopt import datasets

    if model.task == "regress":
        if truth.dtype.kind not in "iuf":
            raise InputError("the true values are text, but this model predicts numbers.")
        error, spread = np.sqrt(np.mean((truth - predicted) ** 2)), np.std(truth)
        r2 = f"R² {1 - error**2 / spread**2:.4f}, " if spread else ""
        return f"{r2}RMSE {error:.5g}, MAE {np.mean(np.abs(truth - predicted)):.5g}; RMSE of the mean {spread:.5g}"
    places = datasets.codes(truth, model.classes)
    known = places >= 0
    right = f"accuracy {np.mean(places == predicted.argmax(axis=1)):.4f}"
    if not known.any():
        return right
    counts = np.bincount(places[known], minlength=len(model.classes))
    most = f"always '{model.classes[int(counts.argmax())]}' {counts.max() / len(places):.4f}"
    losses = -np.log(np.maximum(predicted[known, places[known]], 1e-15))
    area = f", AUC {roc_auc_score(places[known], predicted[known, 1]):.4f}" if len(counts) == 2 and counts.all() else ""
    return f"{right}{area}, log loss {losses.mean():.4f}; {most}"
