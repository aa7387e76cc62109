"""Utility: how good private models are with defaults, beside the non-private model and what is required.

    python benchmarks/utility.py [--quick] [--seeds 10] [--only SECTION] [--json FILE]

Nothing here was tuned on these data, except in the section that says so. Numbers are means ± standard deviations over seeds.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn import linear_model as sk
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import data, peers
from benchmarks.data import Array, Split, Tables
from benchmarks.report import Report, Row
from privopt import Budget, calibrate, datasets, run
from privopt.errors import PrivoptWarning
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge
from privopt.measure.randomness import generator
from privopt.methods import METHODS
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.design import Design, Frame
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Logistic
from privopt.postprocess.release import average
from privopt.recipe import Recipe
from privopt.runs import execution as runs
from privopt.runs.request import Request

DELTA = 1e-5
A9A = {0.2: {"loss": 0.345, "accuracy": 0.845}, 0.5: {"loss": 0.335}}  # at most, at least
IMDB = {"accuracy": 0.855}
HIGHER = {"accuracy", "R²"}  # is better
ALONE = [name for name, method in METHODS.items() if method.private and "public" not in signature(method.recipe).parameters]


@dataclass(frozen=True)
class Size:
    """How much to run."""

    seeds: int
    rows: int | None = None  # of the largest data sets; all of them unless told otherwise


Scores = dict[str, float]


# ---------------------------------------------------------------- how good a model is


def classified(truth: Array, probabilities: Array) -> Scores:
    """Test log-loss and accuracy of class probabilities (of the second class, if there are two)."""
    both = np.stack([1 - probabilities, probabilities], axis=1) if probabilities.ndim == 1 else probabilities
    classes, codes = np.unique(truth, return_inverse=True)
    return {
        "loss": float(log_loss(codes, np.clip(both, 1e-15, 1), labels=range(len(classes)))),
        "accuracy": float(accuracy_score(codes, both.argmax(axis=1))),
    }


def fitted(model: Any, split: Split) -> Scores:
    """Train on one part and test on the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)
        model.fit(split.X, split.y)
    if hasattr(model, "predict_proba"):
        return classified(split.y_test, model.predict_proba(split.X_test))
    return {"R²": float(r2_score(split.y_test, model.predict(split.X_test)))}


def result(
    section: str, name: str, scores: Iterable[Scores], required: Scores | None = None, beside: Scores | None = None
) -> Row:
    """One row: means and deviations over seeds, what is required of the means, and the non-private model's."""
    every = list(scores)
    means = {key: float(np.mean([one[key] for one in every])) for key in every[0]}
    deviations = {key: float(np.std([one[key] for one in every])) for key in every[0]}
    required = required or {}
    met = all(means[key] >= bound if key in HIGHER else means[key] <= bound for key, bound in required.items())
    return Row(
        section,
        name,
        ", ".join(f"{key} {means[key]:.4f} ± {deviations[key]:.4f}" for key in means),
        ", ".join(f"{key} {'≥' if key in HIGHER else '≤'} {bound}" for key, bound in required.items()),
        met if required else None,
        "non-private: " + ", ".join(f"{key} {value:.4f}" for key, value in beside.items()) if beside else "",
        {"mean": means, "deviation": deviations, "seeds": len(every), "non-private": beside},
    )


def over_seeds(size: Size, score: Callable[[int], Scores]) -> Iterator[Scores]:
    return (score(seed) for seed in range(size.seeds))


# ---------------------------------------------------------------- defaults


def a9a(size: Size) -> Iterator[Row]:
    """Who earns more than 50 000 dollars: indicators, sparse and dense, every method."""
    split = data.a9a(size.rows)
    plain = fitted(sk.LogisticRegression(max_iter=1000), split)
    for epsilon in (0.2, 0.5, 1.0, 3.0):
        section = f"{split.name}, defaults, ε = {epsilon}, δ = {DELTA}"
        required = A9A.get(epsilon) if data.folder() else None
        for method in ALONE:
            score = partial(_default, split, epsilon, DELTA, method, None)
            yield result(section, f"{method}, CSR", over_seeds(size, score), required if method == "dp-adam" else None, plain)
        score = partial(_default, split.dense(), epsilon, DELTA, "dp-adam", None)
        yield result(section, "dp-adam, dense", over_seeds(size, score), required, plain)
        if peers.installed():
            scores = [
                classified(split.y_test, expit(peers.opacus_scores(split, epsilon, DELTA, seed=seed)))
                for seed in range(min(size.seeds, 3))
            ]
            yield result(section, "Opacus (batch 512, 20 epochs, step 0.5, clip 1)", scores, None, plain)


def imdb(size: Size) -> Iterator[Row]:
    """What a film review thinks: ten thousand words, every method; rows are known to have length 1, or that is estimated."""
    split = data.imdb(size.rows)
    delta = 1 / len(split.y)
    plain = fitted(sk.LogisticRegression(max_iter=1000), split)
    section = f"{split.name}, defaults, ε = 1.5, δ = 1/{len(split.y)}"
    required = IMDB if data.folder() else None
    for method in ALONE:
        for name, bounds in (("rows of length 1 declared", 1.0), ("nothing declared", None)):
            score = partial(_default, split, 1.5, delta, method, bounds)
            wanted = required if method == "dp-adam" else None
            yield result(section, f"{method}, {name}", over_seeds(size, score), wanted, plain)


def _default(split: Split, epsilon: float, delta: float | None, method: str, bounds: Any, seed: int) -> Scores:
    return fitted(LogisticRegression(epsilon, delta=delta, method=method, bounds=bounds, random_state=seed), split)


def tables(size: Size) -> Iterator[Row]:
    """Tables that nobody described: ranges and categories are estimated within the budget, as by `privopt train`."""
    for table in data.tables():
        truth = datasets.texts(table.test[table.target].to_numpy())
        with tempfile.TemporaryDirectory() as place:
            train, test = Path(place) / "train.csv", Path(place) / "test.csv"
            table.train.to_csv(train, index=False)
            table.test.to_csv(test, index=False)
            plain: Scores | None = None
            for epsilon in (0.5, 1.0, 3.0):
                scores = []
                for seed in range(size.seeds):
                    order = Request(file=train, target=table.target, epsilon=epsilon, seed=seed)
                    model = runs.start(order, Path(place) / f"run-{epsilon}-{seed}").model()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", PrivoptWarning)
                        scores.append(classified(truth, model.probabilities(datasets.read(test, table.target))))
                        plain = plain or _plain_table(table, model.encoding)
                yield result("tables from files, no schema, δ by default", f"{table.name}, ε = {epsilon}", scores, None, plain)


def _plain_table(table: Tables, encoding: Any) -> Scores:
    """The non-private model of the same columns."""
    parts = [
        (encoding.matrix(part.drop(columns=table.target)), datasets.texts(part[table.target]))
        for part in (table.train, table.test)
    ]
    return fitted(sk.LogisticRegression(C=np.inf, max_iter=2000), Split(table.name, *parts[0], *parts[1]))


def packaged(size: Size) -> Iterator[Row]:
    """Small data sets that scikit-learn and statsmodels ship; nothing is declared."""
    for split in data.packaged():
        plain = fitted(make_pipeline(StandardScaler(), sk.LogisticRegression(max_iter=2000)), split)
        for epsilon in (1.0, 3.0):
            score = partial(_default, split, epsilon, None, "dp-adam", None)
            name = f"{split.name} ({len(split.y)} × {split.X.shape[1]}), ε = {epsilon}"
            yield result("packaged data, nothing declared, δ by default", name, over_seeds(size, score), None, plain)


def mnist(size: Size) -> Iterator[Row]:
    """Ten digits, by their pixels; that a pixel lies in 0 … 1 is public."""
    if (split := data.mnist()) is None:
        return
    plain = fitted(make_pipeline(MaxAbsScaler(), sk.LogisticRegression(max_iter=100)), split)
    few = Size(min(size.seeds, 3))
    for epsilon in (1.0, 3.0):
        score = partial(_default, split, epsilon, DELTA, "dp-adam", (0.0, 1.0))
        yield result(
            f"{split.name}, multinomial, δ = {DELTA}", f"ε = {epsilon}, bounds declared", over_seeds(few, score), None, plain
        )


def regressions(size: Size) -> Iterator[Row]:
    """Numbers to predict; nothing is declared."""
    for split in data.regressions():
        for private, plain in ((Ridge, sk.Ridge()), (HuberRegressor, sk.HuberRegressor(max_iter=2000))):
            beside = fitted(make_pipeline(StandardScaler(), plain), split)
            for epsilon in (1.0, 3.0):
                scores = [fitted(private(epsilon, random_state=seed), split) for seed in range(size.seeds)]
                name = f"{split.name} ({len(split.y)} × {split.X.shape[1]}), {private.__name__}, ε = {epsilon}"
                yield result("regression, nothing declared, δ by default", name, scores, None, beside)


# ---------------------------------------------------------------- chosen by hand


@dataclass(frozen=True)
class Chosen:
    """A recipe with settings that somebody chose, the constant feature of its intercept, and what is expected of it."""

    name: str
    recipe: Callable[..., Recipe]  # without its noise
    intercept: float
    epsilon: float
    required: Scores


def _adam(epsilon: float, loss: float) -> Chosen:
    recipe = partial(dp_adam, rounds=300, clip_bound=2.8926, learning_rate=0.02545, release=average("last half"))
    return Chosen("dp_adam, 300 rounds, mean of the last half", recipe, 0.9354, epsilon, {"loss": loss})


CHOSEN_A9A = [_adam(0.2, 0.333), _adam(0.5, 0.329)]
CHOSEN_IMDB = [
    Chosen(
        "dp_sgd, momentum 0.9, 150 rounds",
        partial(dp_sgd, rounds=150, clip_bound=0.3517, learning_rate=132.39 * 0.1, momentum_decay=0.9),
        0.1,
        1.5,
        {"accuracy": 0.870},
    ),
    Chosen(
        "dp_adam, 150 rounds",
        partial(dp_adam, rounds=150, clip_bound=0.3015, learning_rate=0.08124),
        0.1,
        1.5,
        {"accuracy": 0.870},
    ),
]


def chosen(size: Size) -> Iterator[Row]:
    """Settings chosen by hand, through the slots: an upper end of what defaults could reach. The choice is not paid for."""
    for split, delta, recipes in ((data.a9a(size.rows), DELTA, CHOSEN_A9A), (data.imdb(size.rows), 1 / 25000, CHOSEN_IMDB)):
        for one in recipes:
            section = f"{split.name}, settings chosen by hand, δ = {delta}"
            required = one.required if data.folder() else None
            yield result(
                section, f"{one.name}, ε = {one.epsilon}", over_seeds(size, partial(_chosen, split, one, delta)), required
            )


def _chosen(split: Split, one: Chosen, delta: float, seed: int) -> Scores:
    noise = calibrate(lambda z: one.recipe(noise_multiplier=z).planned_event(), Budget(one.epsilon, delta))
    frame = Frame(intercept=one.intercept)
    oracle = LinearOracle(Design(split.X, frame), split.y, Logistic())
    found = run(one.recipe(noise_multiplier=noise), oracle, np.zeros(oracle.dimension), rng=generator(seed))
    slopes, constant = frame.unfold(found.parameters)
    return classified(split.y_test, expit(split.X_test @ slopes + constant))


SECTIONS = {
    "a9a": a9a,
    "imdb": imdb,
    "chosen": chosen,
    "tables": tables,
    "packaged": packaged,
    "regressions": regressions,
    "mnist": mnist,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, and without MNIST")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=list(SECTIONS), action="append", help="these sections; all unless told otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    chosen_ = parser.parse_args()
    report = Report("privopt: utility", chosen_.json)
    size = Size(2 if chosen_.quick else chosen_.seeds)
    for name in chosen_.only or [name for name in SECTIONS if name != "mnist" or not chosen_.quick]:
        report.extend(SECTIONS[name](size))
    report.show()


if __name__ == "__main__":
    main()
