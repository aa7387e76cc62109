"""SAGD, DP-AdamBC and DP²-RMSProp beside DP-Adam and DP-RMSProp: test log-loss and accuracy on a9a, with defaults.

    PRIVOPT_DATA=… python benchmarks/sagd.py [--seeds 10] [--rows N]

The first 1000 training rows are declared public, for the methods that use such rows; the others train on the rest, and so do all.
With δ > 0 nothing is declared of the private rows. Without δ it is declared that a row has length √14, for it has 14 attributes.
Nothing was tuned here, but the default rule of DP²-RMSProp was found on these data: its rows flatter it.
"""

import argparse
import math
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sklearn import linear_model as sk

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import data
from benchmarks.data import Split
from benchmarks.report import Report, Row
from benchmarks.utility import Scores, classified, result
from privopt.errors import PrivoptWarning
from privopt.linear_model import LogisticRegression

PUBLIC = 1000
DELTA = 1e-5
EPSILONS = (0.5, 1.0)
METHODS = ("dp-adam", "dp-rmsprop", "dp-adam-bc", "dp2-rmsprop", "sagd-lap", "sagd-minibatch", "sagd-sparse")
PURE = ("output-perturbation", "sagd-lap", "sagd-minibatch", "sagd-sparse")


def score(split: Split, method: str, epsilon: float, settings: dict[str, Any], seed: int) -> Scores:
    """Train on all rows but the public ones, test on the others."""
    public = (split.X[:PUBLIC], split.y[:PUBLIC]) if method == "sagd-sparse" else None
    model = LogisticRegression(epsilon, method=method, public=public, random_state=seed, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)
        model.fit(split.X[PUBLIC:], split.y[PUBLIC:])
    return classified(split.y_test, model.predict_proba(split.X_test))


def plain(split: Split, rows: slice) -> Scores:
    """Without privacy."""
    return classified(
        split.y_test, sk.LogisticRegression(max_iter=1000).fit(split.X[rows], split.y[rows]).predict_proba(split.X_test)
    )


def rows(split: Split, seeds: int) -> Iterator[Row]:
    """The table."""
    yield result("without privacy", "the private rows", [plain(split, slice(PUBLIC, None))])
    yield result("without privacy", f"the {PUBLIC} public rows alone", [plain(split, slice(PUBLIC))])
    sections: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        (f"δ = {DELTA:g}", METHODS, {"delta": DELTA}),
        ("δ = 0", PURE, {"delta": 0.0, "bounds": math.sqrt(14)}),
    ]
    for name, methods, settings in sections:
        for epsilon in EPSILONS:
            for method in methods:
                yield result(
                    f"ε = {epsilon:g}, {name}", method, map(partial(score, split, method, epsilon, settings), range(seeds))
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, help="of the training rows; all unless told otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    chosen = parser.parse_args()
    split = data.a9a(chosen.rows)
    report = Report(f"privopt: {split.name}", chosen.json)
    report.extend(rows(split, chosen.seeds))
    report.show()


if __name__ == "__main__":
    main()
