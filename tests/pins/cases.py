"""The pinned runs: small problems through every front end, with a fixed seed."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np

from privopt.errors import PrivoptError, PrivoptWarning
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge
from privopt.measure.samplers import poisson
from privopt.methods import METHODS
from privopt.postprocess.release import last
from privopt.privacy.budget import Budget
from privopt.recipe import Recipe
from privopt.runs.execution import start
from privopt.runs.folder import RunFolder
from privopt.runs.request import Request
from privopt.training.settings import Settings
from tests.laws.table import ROW_METHODS

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf)(?![\w.])")
BUDGET = Budget(2.0, 1e-3)
Pin = dict[str, list[float] | str]

RNG = np.random.default_rng(20)
ROWS = RNG.uniform(-1, 2, (300, 4)) * [1.0, 3.0, 0.1, 10.0]
SCORES = ROWS @ [1.0, -0.5, 4.0, 0.05]
TARGETS = {"binary": (SCORES > 0.3).astype(int), "three": np.digitize(SCORES, [-0.5, 0.8]), "amount": SCORES}
PUBLIC_ROWS = RNG.uniform(-1, 2, (60, 4)) * [1.0, 3.0, 0.1, 10.0]
PUBLIC = {name: np.resize(np.unique(values)[:3] if name != "amount" else values, 60) for name, values in TARGETS.items()}


@contextmanager
def recipes() -> Iterator[list[Recipe]]:
    """The recipes that are checked before they run; the last one is the one that runs."""
    seen: list[Recipe] = []
    check = Recipe.check

    def note(recipe: Recipe, *given: Any) -> None:
        seen.append(recipe)
        check(recipe, *given)

    with mock.patch.object(Recipe, "check", note), warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)
        yield seen


def numbers(recipe: Recipe) -> list[float]:
    """Every number of a recipe's slots, whatever the slots are called."""
    slots = (recipe.rounds, recipe.measurements, recipe.update, recipe.release, recipe.estimate)
    text = re.sub(r"0x[0-9a-f]+|key=\d+", "", repr(slots))
    return sorted({float(number) for number in NUMBER.findall(text)})


def pinned(seen: list[Recipe], parameters: Any) -> Pin:
    return {"settings": numbers(seen[-1]), "result": np.asarray(parameters, dtype=float).ravel().tolist()}


# ---------------------------------------------------------------- estimators


def estimator(method: str, problem: str, epsilon: float, **given: Any) -> Pin:
    """A linear model. A refusal is pinned by its kind."""
    build = {"binary": LogisticRegression, "three": LogisticRegression, "amount": HuberRegressor}[problem]
    options = {} if METHODS[method].private else {"without_privacy": True}
    public = (PUBLIC_ROWS, PUBLIC[problem]) if "public" in METHODS[method].needs else None
    model = build(epsilon, method=method, public=public, options=options, random_state=1, **given)
    with recipes() as seen:
        try:
            model.fit(ROWS, TARGETS[problem])
        except PrivoptError as error:
            return {"refused": type(error).__name__}
    return pinned(seen, np.append(model.coef_, model.intercept_))


def ridge(**given: Any) -> Pin:
    with recipes() as seen:
        model = Ridge(random_state=1, **given).fit(ROWS, TARGETS["amount"])
    return pinned(seen, np.append(model.coef_, model.intercept_))


def scaled(**given: Any) -> Pin:
    with recipes() as seen:
        model = LogisticRegression(2.0, method="adadps", random_state=1, **given).fit(ROWS, TARGETS["binary"])
    return pinned(seen, np.append(model.coef_, model.intercept_))


# ---------------------------------------------------------------- networks

OPTIONS: dict[str, dict[str, Any]] = {
    "dp-adam": {"stability": 1e-8},
    "dp-rmsprop": {"stability": 1e-8},
    "dp-sgd": {"momentum_decay": 0.0},
    "dp-adam-bc": {"stability": 1e-8, "floor": 0.3},
    "sagd-lap": {"decay": 0.99, "stability": 1e-8},
    "adadps": {"momentum_decay": 0.0},
    "warm-start": {"momentum_decay": 0.0, "public_learning_rate": 0.01},
    "ideal": {"momentum_decay": 0.0, "stability": 1e-5, "clean_sampling": poisson(0.2)},
    "adas": {"momentum_decay": 0.0},
    "dp-srm": {"change_bound": 0.1, "refresh": 0.2, "longest_step": np.inf},
    "spiderboost": {"period": 5, "smoothness": 1.0, "anchor_noise": 1.0},
    "dp2-rmsprop": {"phase": 5, "preconditioned_clip_bound": 1.0, "preconditioned_learning_rate": 0.01, "stability": 1e-8},
    "dp-agd": {"loss_bound": 3.0, "longest_step": 1.0},
}


def small_network() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 2))


def parameters_of(model: Any) -> Any:
    import torch

    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def tensors(rows: Any = ROWS, targets: Any = TARGETS["binary"]) -> tuple[Any, Any]:
    import torch

    return torch.tensor(rows, dtype=torch.float32), torch.tensor(targets)


def network(method: str, **given: Any) -> Pin:
    """`fit` on a small network."""
    from torch import nn

    from privopt.nets import fit

    record = METHODS[method]
    options = OPTIONS.get(method, {}) | ({} if record.private else {"without_privacy": True})
    model = small_network()
    settings: dict[str, Any] = {
        "batch_size": 60,
        "rounds": 12,
        "learning_rate": 0.05,
        "clip_bound": 1.0,
        "release": last(),
    } | given
    if method == "rrpsgd":
        del settings["release"]
    if "public" in record.needs:
        settings["public"] = tensors(PUBLIC_ROWS, PUBLIC["binary"])
    if method in ("sagd-lap", "dp-gd", "dp-agd"):
        settings["batch_size"] = len(ROWS)
    if method == "dp-agd":
        del settings["learning_rate"]
    with recipes() as seen:
        fit(
            model,
            nn.CrossEntropyLoss(),
            tensors(),
            budget=BUDGET,
            method=method,
            options=options,
            progress=False,
            seed=1,
            **settings,
        )
    return pinned(seen, parameters_of(model))


def loop() -> Pin:
    """`make_private` in a loop of the user's own."""
    import torch
    from torch import nn

    from privopt.nets import make_private

    model, loss = small_network(), nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    private = make_private(model, optimizer, tensors(), budget=BUDGET, batch_size=60, rounds=12, physical_batch_size=32, seed=1)
    for inputs, targets in private.loader:
        private.step(lambda x=inputs, y=targets: loss(model(x), y))  # type: ignore[misc]
    return {"settings": [private.noise_multiplier, float(private.rounds)], "result": parameters_of(model).tolist()}


# ---------------------------------------------------------------- the command line


def write_table(file: Path) -> None:
    """A table with text and numbers."""
    lines = ["age,dose,ward,outcome"]
    for row, target in zip(ROWS, TARGETS["binary"], strict=True):
        lines.append(f"{40 + 20 * row[0]:.1f},{row[1]:.3f},{'abc'[int(row[3]) % 3]},{'yes' if target else 'no'}")
    file.write_text("\n".join(lines) + "\n")


def train(folder: Path, **given: Any) -> RunFolder:
    """A run folder, as `privopt train` makes it."""
    write_table(folder / "table.csv")
    settings = Settings(**given.pop("settings", {}))
    return start(Request(folder / "table.csv", "outcome", 4.0, settings=settings, seed=1, **given), folder / "run")


def command(**given: Any) -> Pin:
    """The model that `privopt train` makes."""
    with TemporaryDirectory() as folder, recipes() as seen:
        model = train(Path(folder), **given).model()
        hidden = [part for layer in model.hidden for part in layer]
        values = np.concatenate([np.ravel(part) for part in (*hidden, model.slopes, model.intercepts)])
    return pinned(seen, values)


def cases() -> dict[str, Callable[[], Pin]]:
    """Every pinned run by its name."""
    found: dict[str, Callable[[], Pin]] = {}
    for method in ROW_METHODS:
        found[f"binary {method}"] = partial(estimator, method, "binary", 2.0)
        found[f"three classes, batches {method}"] = partial(estimator, method, "three", 8.0, batch_size=60, alpha=0.01)
        found[f"amounts, declared {method}"] = partial(
            estimator, method, "amount", 0.5, neighbours="replace-one", bounds=6.0, target_bounds=(-8.0, 8.0), alpha=0.1
        )
    for method in ("sagd-lap", "output-perturbation"):
        found[f"without delta {method}"] = partial(estimator, method, "binary", 2.0, delta=0.0, bounds=6.0)
    for epsilon in (0.1, 1.0, 100.0):
        found[f"ridge, epsilon {epsilon}"] = partial(ridge, epsilon=epsilon)
    found["ridge, settings"] = partial(ridge, clip_bound=0.3, learning_rate=0.02, rounds=30, fit_intercept=False)
    found["scale, declared"] = partial(scaled, options={"scale": [1.0, 2.0, 0.1, 5.0]})
    found["scale, surveyed"] = partial(scaled, options={"scale": "frequency"})
    found["command, linear"] = command
    found["command, sampled"] = partial(command, settings={"method": "dp-sgd", "batch_size": 50})
    if find_spec("torch") is not None and find_spec("numba") is not None:
        for method, record in METHODS.items():
            if "network" in record.models:
                found[f"network {method}"] = partial(network, method)
        found["network, own clip"] = partial(network, "dp-sgd", clip_bound=0.5, rounds=None, epochs=3)
        found["loop"] = loop
        for method in ("dp-adam", "dp-rmsprop", "dp-sgd", "dp-gd"):
            found[f"command, network {method}"] = partial(command, model="mlp:6,5", settings={"method": method})
    return found
