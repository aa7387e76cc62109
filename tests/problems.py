"""Toy problems: small data, oracles and networks, the same in every run. All tests take theirs from here.

torch is an extra: what needs it imports it when it is called.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from privopt.datasets import Categorical, Ignored, Numeric, Schema
from privopt.perexample.design import Design, Frame, LimitedDesign
from privopt.perexample.grads import Materialized, Rows, Vector
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Logistic, Loss
from privopt.runs.request import Request

if TYPE_CHECKING:
    from torch import Tensor, nn

# ---------------------------------------------------------------- rows of a linear model


def binary_rows(size: int = 2000, columns: int = 5, seed: int = 0) -> tuple[Any, Any]:
    """Uniform rows, and classes of a logistic model."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (size, columns))
    return X, (X @ np.linspace(-3, 3, columns) + rng.logistic(size=size) > 0).astype(int)


def regression_rows(size: int = 2000, columns: int = 5, seed: int = 0) -> tuple[Any, Any]:
    """Uniform rows, and targets of a linear model around 10."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (size, columns))
    return X, 10 + X @ np.linspace(-3, 3, columns) + 0.1 * rng.standard_normal(size)


def sign_rows(size: int, columns: int = 3) -> tuple[Any, Any]:
    """Uniform rows, and the sign of their first column as 0 or 1."""
    X = np.random.default_rng(0).uniform(-1, 1, (size, columns))
    return X, (X[:, 0] > 0).astype(int)


def scaled_rows(
    size: int = 60,
    scales: tuple[float, ...] = (1.0, 2.0, 0.5, 1.0),
    *,
    noise: float = 1.0,
    longest: float = np.inf,
    seed: int = 8,
) -> tuple[Vector, Vector]:
    """Four columns of different scales and noisy labels; rows longer than `longest` are shortened."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((size, 4)) * scales
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1) / longest)[:, None]
    return X, (X @ [1.0, -1.0, 2.0, 0.0] + noise * rng.standard_normal(size) > 0).astype(float)


def linear_oracle(
    rows: Any, targets: Vector, loss: Loss | None = None, *, intercept: float = 0.0, limit: float | None = None
) -> LinearOracle:
    """A linear model on rows as they are, or shortened to `limit`; logistic unless a loss is given."""
    frame = Frame(intercept=intercept)
    design = Design(rows, frame) if limit is None else LimitedDesign(rows, frame, limit)
    return LinearOracle(design, targets, loss or Logistic())


# ---------------------------------------------------------------- oracles without a model


class Given:
    """An oracle with the same per-example vectors at every point; infinitely far away they are 0."""

    smoothness = 0.0

    def __init__(self, vectors: Vector) -> None:
        self._vectors = np.asarray(vectors)

    @property
    def lipschitz(self) -> float:
        return float(np.linalg.norm(self._vectors, axis=1).max())

    @property
    def size(self) -> int:
        return len(self._vectors)

    def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
        vectors = self._vectors if rows is None else self._vectors[rows]
        return Materialized(0 * vectors if np.isinf(parameters).any() else vectors)

    def losses(self, parameters: Vector, rows: Rows) -> Vector:
        """What these vectors are the gradients of."""
        return (self._vectors if rows is None else self._vectors[rows]) @ parameters


class Unreadable:
    """An oracle that must not be asked: data that nobody may read yet."""

    size = 12

    def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
        raise AssertionError("the data were read")


class Public:
    """A public gradient with the same value, 0 by default, in every coordinate at every point."""

    epoch = 2

    def __init__(self, size: float = 0.0) -> None:
        self._size = size

    def __call__(self, parameters: Vector, round_: int) -> Vector:
        return 0 * parameters + self._size


# ---------------------------------------------------------------- networks


def first_column(x: "Tensor") -> "Tensor":
    """A score that one column decides."""
    return x[:, 0]


def difference(x: "Tensor") -> "Tensor":
    """A linear score of two columns."""
    return x[:, 0] - x[:, 1]


def product(x: "Tensor") -> "Tensor":
    """A score that no linear model can learn."""
    return x[:, 0] * x[:, 1]


def tensor_rows(
    size: int = 300, columns: int = 6, score: Callable[["Tensor"], "Tensor"] = first_column, *, seed: int = 0
) -> tuple["Tensor", "Tensor"]:
    """Normal rows, and the sign of their score as class 0 or 1."""
    import torch

    x = torch.randn(size, columns, generator=torch.Generator().manual_seed(seed))
    return x, (score(x) > 0).long()


def tanh_network(
    inputs: int = 6, hidden: int = 8, outputs: int = 2, *, dropout: float | None = None, seed: int = 0
) -> "nn.Module":
    """One hidden layer, with dropout behind it if a share is given."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    between = [] if dropout is None else [nn.Dropout(dropout)]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), *between, nn.Linear(hidden, outputs))


def cross_entropies(output: "Tensor", targets: "Tensor") -> "Tensor":
    """The loss of each example."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(output, targets.long(), reduction="none")


def accuracy(model: "nn.Module", x: "Tensor", y: "Tensor") -> float:
    """The share of rows that a model classifies correctly; the model is in evaluation mode afterwards."""
    import torch

    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def flat_parameters(model: "nn.Module") -> "Tensor":
    """A copy of all parameters as one vector."""
    import torch

    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


# ---------------------------------------------------------------- files


def patients(path: Path, size: int = 3000, seed: int = 0) -> Path:
    """Write a table of patients: numbers, categories, a class `readmitted` and a number `cost`."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, size),
            "income": rng.lognormal(10, 0.5, size).round(2),
            "region": rng.choice(["north", "south", "east"], size, p=[0.5, 0.3, 0.2]),
            "smoker": rng.random(size) < 0.3,
        }
    )
    score = (frame["age"] - 54) / 15 + 2 * frame["smoker"] - (frame["region"] == "north") + rng.logistic(size=size)
    frame["readmitted"] = np.where(score > 0, "yes", "no")
    frame["cost"] = 1000 + 50 * frame["age"] + 2000 * frame["smoker"] + 300 * rng.standard_normal(size)
    frame.to_csv(path, index=False)
    return path


PATIENTS = Schema(
    {
        "age": Numeric(18, 90),
        "income": Numeric(0, 200_000),
        "region": Categorical(("north", "south", "east")),
        "smoker": Categorical(("True", "False")),
        "cost": Ignored(),
    },
    classes=("no", "yes"),
)


def patients_request(file: Path, **changes: object) -> Request:
    """A request to learn who is readmitted, with a seed."""
    settings: dict[str, object] = {"file": file, "target": "readmitted", "epsilon": 2.0, "schema": PATIENTS, "seed": 1, **changes}
    return Request(**settings)  # type: ignore[arg-type]


def write_rows(folder: Path, kind: str, X: Any, y: Any) -> tuple[Path, str | None]:
    """Write rows as npz (dense), csr (npz), svm or parquet; return the file and the name of its target, if it has one."""
    path = folder / f"rows.{'npz' if kind == 'csr' else kind}"
    if kind == "npz":
        np.savez(path, X=X, y=y)
    elif kind == "csr":
        matrix = sp.csr_matrix(X)
        np.savez(path, data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, shape=matrix.shape, y=y)
    elif kind == "svm":
        from sklearn.datasets import dump_svmlight_file

        dump_svmlight_file(X, y, str(path), zero_based=False)
    else:
        pd.DataFrame(X).add_prefix("x").assign(y=y).to_parquet(path)
        return path, "y"
    return path, None
