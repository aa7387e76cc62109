"""Saved models: JSON and safetensors. Reading one, whoever wrote it, runs no code; using one needs no torch."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.special import expit, softmax

from privopt import datasets
from privopt.datasets import Encoding, Table
from privopt.datasets.readers import read_json
from privopt.datasets.schema import shortened
from privopt.durable import write_atomically
from privopt.errors import InputError
from privopt.perexample.columns import Basis, basis_from_json
from privopt.perexample.grads import Vector

FORMAT = "privopt-model-1"
Task = Literal["classify", "regress"]


@dataclass(frozen=True)
class SavedModel:
    """A linear model, or a network: scores are units × slopes + intercepts.

    Units are the rows themselves or, in a network, what its hidden layers make of them: tanh(units × weights + biases), one
    layer after the other. Rows are a table's columns through `encoding`, or, without one, its features as they are; then
    `columns`, if there are any, clip them or make hats of them. `names` are the features that come of it.
    """

    task: Task
    slopes: Vector  # outputs × units
    intercepts: Vector
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    encoding: Encoding | None = None
    columns: Basis | None = None
    hidden: tuple[tuple[Vector, Vector], ...] = ()  # weights (units × units of the layer before) and biases

    def text_columns(self, target: str | None) -> list[str]:
        """The columns of a file that have to be read as text."""
        classes = datasets.as_written({target: self.classes}) if target is not None and self.classes else []
        return [*([] if self.encoding is None else self.encoding.text), *classes]

    def scores(self, table: Table) -> Vector:
        """(rows, outputs)."""
        if self.encoding is not None:
            if table.frame is None:
                raise InputError(
                    f"this model was trained on named columns, which {table.name} does not have: give a CSV or Parquet file."
                )
            matrix = self.encoding.matrix(table.frame)
        elif table.matrix is None:
            raise InputError(
                f"this model was trained on a plain matrix, but {table.name} has named columns: give a LIBSVM or npz file."
            )
        else:
            matrix = table.matrix
            if matrix.shape[1] != self.inputs:
                raise InputError(f"{table.name} has {matrix.shape[1]} features, but this model was trained on {self.inputs}.")
        units: Any = matrix if self.columns is None else self.columns.transform(matrix)
        for weights, biases in self.hidden:
            units = np.tanh(np.asarray(units @ weights.T) + biases)
        return np.asarray(units @ self.slopes.T) + self.intercepts

    @property
    def inputs(self) -> int:
        """The number of columns before they are clipped or become hats."""
        return len(self.names) if self.columns is None else self.columns.inputs

    def probabilities(self, table: Table) -> Vector:
        """(rows, classes)."""
        scores = self.scores(table)
        return np.hstack([expit(-scores), expit(scores)]) if scores.shape[1] == 1 else softmax(scores, axis=1)

    def save(self, folder: Path) -> None:
        """Write the numbers, then what they mean."""
        arrays = {"slopes": self.slopes, "intercepts": self.intercepts}
        for place, (weights, biases) in enumerate(self.hidden):
            arrays |= {f"hidden.{place}.weights": weights, f"hidden.{place}.biases": biases}
        numbers = save({name: np.ascontiguousarray(array, float) for name, array in arrays.items()})
        meaning = {
            "format": FORMAT,
            "task": self.task,
            "classes": list(self.classes),
            "names": list(self.names),
            "encoding": None if self.encoding is None else self.encoding.to_json(),
            **({} if self.columns is None else {"columns": self.columns.to_json()}),
            "hidden": [len(biases) for _, biases in self.hidden],
            "activation": "tanh" if self.hidden else None,
            "sha256": hashlib.sha256(numbers).hexdigest(),
        }
        write_atomically(folder / "model.safetensors", numbers)
        write_atomically(folder / "model.json", json.dumps(meaning, indent=2).encode())

    @classmethod
    def load(cls, folder: Path) -> "SavedModel":
        """Read it back; anything that does not fit is an error, never a guess."""
        try:
            meaning: dict[str, Any] = read_json(folder / "model.json")
            content = (folder / "model.safetensors").read_bytes()
            if meaning["format"] != FORMAT:
                raise InputError(f"{folder / 'model.json'} has the format {shortened(meaning['format'])}, not {FORMAT!r}.")
            if hashlib.sha256(content).hexdigest() != meaning["sha256"]:
                raise InputError(f"{folder / 'model.safetensors'} is damaged: it is not the file that model.json describes.")
            arrays = load(content)
            encoding = None if meaning["encoding"] is None else Encoding.from_json(meaning["encoding"])
            model = cls(
                meaning["task"],
                arrays["slopes"],
                arrays["intercepts"],
                tuple(meaning["names"]),
                tuple(meaning["classes"]),
                encoding,
                None if (columns := meaning.get("columns")) is None else basis_from_json(columns),
                tuple(
                    (arrays[f"hidden.{place}.weights"], arrays[f"hidden.{place}.biases"])
                    for place in range(len(meaning["hidden"]))
                ),
            )
            widths = [len(model.names), *meaning["hidden"], 1 if len(model.classes) in (0, 2) else len(model.classes)]
            activation = meaning["activation"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {shortened(str(error))}"
            raise InputError(f"the model in {folder} cannot be read: {why}") from error
        layers = [*model.hidden, (model.slopes, model.intercepts)]
        if (
            model.task not in ("classify", "regress")
            or not all(isinstance(name, str) for name in (*model.names, *model.classes))
            or not all(isinstance(width, int) for width in widths)
            or (model.task == "classify") != (len(model.classes) >= 2)
            or (encoding is not None and len(encoding.names) != model.inputs)
            or (encoding is not None and encoding.features(model.columns) != model.names)
            or (model.columns is not None and model.columns.width != len(model.names))
            or activation != ("tanh" if model.hidden else None)
            or len(arrays) != 2 * len(layers)
            or any(
                weights.shape != (after, before) or biases.shape != (after,)
                for (weights, biases), before, after in zip(layers, widths, widths[1:], strict=False)
            )
        ):
            raise InputError(f"the model in {folder} is damaged: its parts do not fit together.")
        if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays.values()):
            raise InputError(f"the model in {folder} is damaged: its parameters are not all finite numbers.")
        return model
