"""Excess empirical risk of output perturbation and of Bassily et al.'s SGD: the table of Zhang, Zheng, Mou, Wang.

    PRIVOPT_DATA=… python benchmarks/smooth_erm.py [--seeds 10] [--only BANK …] [--json FILE]

E F(w_priv) − min F on all rows of five UCI tables, δ = 0.001, one example replaced. Categories are indicators, numbers are scaled
to [0, 1] by their ranges, a constant is added, and rows are divided by √(columns + 1), so that none is longer than 1; targets of
a regression are scaled to [−1, 1], with Huber's loss from 0.2 on.

Output perturbation has its defaults. SGD has batches of 50 and is given its best: for each cell the better of 2 and of 10 passes
and (without ridge) of two radii, chosen by the result. Its noise is Bassily's, by strong composition, as the paper compares:
√(32 ln(n/δ) ln(1/δ))/ε on the sum of a batch for (n/50)² rounds, and in proportion to √rounds. Or it is what the accountant
asks for.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import data
from benchmarks.data import Array, Tables
from privopt import Budget, calibrate, run
from privopt.measure.randomness import generator
from privopt.methods import find_method
from privopt.methods.output_perturbation import RADIUS
from privopt.methods.problem import Problem
from privopt.perexample.design import Frame, LimitedDesign
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Huber, Logistic, Loss
from privopt.privacy.events import GaussianDpEvent
from privopt.recipe import Recipe
from privopt.training.linear import loss_facts
from privopt.training.settings import Settings

DELTA = 1e-3
EPSILONS = (0.1, 0.5, 1.0, 2.0)
BATCH = 50
PASSES = (2, 10)
RADII = (1.0, 3.0)  # × the default


@dataclass(frozen=True)
class Task:
    """Rows of length ≤ 1, their targets and a loss of them."""

    name: str
    X: Array
    y: Array
    loss: Loss

    @property
    def strengths(self) -> tuple[float, float]:
        """Of the ridge."""
        return (0.0, 0.1) if isinstance(self.loss, Logistic) else (0.0, 0.5)

    def risk(self, ridge: float) -> Callable[[Array], tuple[float, Array]]:
        """The mean loss with its ridge, and its gradient."""

        def at(w: Array) -> tuple[float, Array]:
            scores = self.X @ w
            value = self.loss.values(scores, self.y).mean() + ridge / 2 * w @ w
            return float(value), self.X.T @ self.loss.residuals(scores, self.y) / len(self.y) + ridge * w

        return at

    def least(self, ridge: float) -> float:
        """min F."""
        options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9}
        return float(minimize(self.risk(ridge), np.zeros(self.X.shape[1]), jac=True, method="L-BFGS-B", options=options).fun)


def task(table: Tables) -> Task:
    """A table as rows and targets."""
    frame, columns = table.train, []
    for name in frame.columns.drop(table.target):
        column = frame[name].to_numpy()
        if column.dtype.kind in "if":
            low, high = float(column.min()), float(column.max())
            columns.append((column - low) / ((high - low) or 1.0))
        else:
            values = sorted(set(column))
            columns += [(column == value).astype(float) for value in (values if len(values) > 2 else values[1:])]
    rows = np.stack([*columns, np.ones(len(frame))], axis=1) / math.sqrt(frame.shape[1])  # the constant for the target
    target = frame[table.target].to_numpy()
    if target.dtype.kind in "if" and len(set(target)) > 2:
        low, high = float(target.min()), float(target.max())
        return Task(table.name, rows, 2 * (target - low) / (high - low) - 1, Huber(0.2))
    return Task(table.name, rows, (target == max(set(target))).astype(float), Logistic())


def planned(job: Task, budget: Budget, settings: Settings) -> Callable[[float], Recipe]:
    """The plan of a method, by the rules of the estimators, for rows of length 1."""
    facts, noise, (size, width) = loss_facts(job.loss), calibrate(GaussianDpEvent, budget), job.X.shape
    problem = Problem("linear", settings.chosen, facts, size, width, width, 1.0, noise, ridge=settings.alpha)
    return partial(find_method(settings.method).build, problem)


def published(budget: Budget, size: int, rounds: int) -> float:
    """Bassily et al.'s noise on the sum of a batch, in units of L."""
    logs = math.log(size / budget.delta) * math.log(1 / budget.delta)
    return math.sqrt(32 * logs * rounds) * BATCH / size / budget.epsilon


def asked(recipe: Callable[[float], Recipe], budget: Budget) -> float:
    """The noise that the accountant asks for."""
    return calibrate(lambda z: recipe(z).planned_event(), budget)


def excess(job: Task, recipe: Recipe, ridge: float, least: float, seeds: int) -> tuple[float, float]:
    """Mean over seeds, and its standard error."""
    oracle = LinearOracle(LimitedDesign(job.X, Frame(intercept=0.0), 1.0), job.y, job.loss)
    risk, start = job.risk(ridge), np.zeros(job.X.shape[1])
    found = [risk(run(recipe, oracle, start, rng=generator(seed)).parameters)[0] - least for seed in range(seeds)]
    return float(np.mean(found)), float(np.std(found) / math.sqrt(seeds))


def cell(job: Task, ridge: float, least: float, epsilon: float, seeds: int) -> dict[str, Any]:
    """One row of the table."""
    budget = Budget(epsilon, DELTA, "replace-one")
    own = Settings("output-perturbation", fit_intercept=False, alpha=ridge)
    noise = calibrate(GaussianDpEvent, budget)
    started = time.perf_counter()
    ours = excess(job, planned(job, budget, own)(noise), ridge, least, seeds)
    seconds = (time.perf_counter() - started) / seeds
    printed = Settings("output-perturbation", fit_intercept=False, alpha=ridge, options={"sensitivity": "paper"})
    loose = excess(job, planned(job, budget, printed)(noise), ridge, least, seeds)
    sgd: dict[str, list[tuple[float, float]]] = {"published": [], "accounted": []}
    for passes in PASSES:
        rounds = round(passes * len(job.y) / BATCH)
        for scale in RADII if not ridge else RADII[:1]:
            default = RADIUS * (1.0 if isinstance(job.loss, Logistic) else 0.25)
            other = Settings(
                "bassily-sgd",
                fit_intercept=False,
                alpha=ridge,
                rounds=rounds,
                batch_size=BATCH,
                options={"radius": scale * default},
            )
            recipe = planned(job, budget, other)
            for kind, amount in {"published": published(budget, len(job.y), rounds), "accounted": asked(recipe, budget)}.items():
                sgd[kind].append(excess(job, recipe(amount), ridge, least, seeds))
    return {
        "data": job.name,
        "n": len(job.y),
        "d": job.X.shape[1],
        "ridge": ridge,
        "epsilon": epsilon,
        "output perturbation": ours,
        "seconds": seconds,
        "with the paper's sensitivity": loose,
        "SGD, published noise": min(sgd["published"]),
        "SGD, accounted noise": min(sgd["accounted"]),
    }


def cells(jobs: list[Task], seeds: int) -> Iterator[dict[str, Any]]:
    for job in jobs:
        for ridge in job.strengths:
            least = job.least(ridge)
            for epsilon in EPSILONS:
                yield cell(job, ridge, least, epsilon, seeds)


COLUMNS = ("output perturbation", "with the paper's sensitivity", "SGD, published noise", "SGD, accounted noise")


def line(row: dict[str, Any]) -> str:
    numbers = " | ".join(f"{row[name][0]:.2g} ± {row[name][1]:.1g}" for name in COLUMNS)
    return f"| {row['data']} ({row['n']} × {row['d']}) | {row['ridge']:g} | {row['epsilon']:g} | {numbers} |"


def won(rows: list[dict[str, Any]], against: str) -> int:
    """In how many cells output perturbation has the lower excess risk."""
    return sum(row["output perturbation"][0] < row[against][0] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these data sets; all unless told otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    chosen = parser.parse_args()
    jobs = [task(table) for table in data.whole_tables() if not chosen.only or table.name in chosen.only]
    print(f"| data | μ | ε | {' | '.join(COLUMNS)} |\n|{'---|' * (3 + len(COLUMNS))}")
    rows = []
    for row in cells(jobs, chosen.seeds):
        rows.append(row)
        print(line(row), flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps(rows, indent=1))
    for against in COLUMNS[1:]:
        print(f"\noutput perturbation is lower than {against} in {won(rows, against)} of {len(rows)} cells", end="")
    print()


if __name__ == "__main__":
    main()
