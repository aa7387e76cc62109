"""Persons in networks: a step that clips persons beside a step that clips the same number of rows, in CPU time of one thread.

Both steps are of Poisson batches with nine in ten: gradients, clipped sum, noise. A person has 4 rows, 1 to 8, or mostly 1 and
up to 32. `table` is a network of 64 units on 60 columns.

`--noise` computes, by price, how much noise drawing rows one by one needs beside drawing persons, for as many expected rows;
below 1 it needs less. All persons have as many rows, at δ = 1e-6. Nothing is timed.

OMP_NUM_THREADS=1 python benchmarks/persons.py [--json benchmarks/results/persons.json]
python benchmarks/persons.py --noise [--json benchmarks/results/persons_noise.json]
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contenders import MODELS, dense, loss_for, numbers
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson, several_rows
from privopt.measure.units import each_person
from privopt.perexample.grads import Vector
from privopt.perexample.networks import TorchOracle, TorchPersonOracle
from privopt.perexample.persons import Persons
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import DpEvent, SelfComposedDpEvent
from privopt.state import PublicState

NAMES = ("table", "mlp-512", "mnist-cnn", "autoencoder", "lstm", "transformer", "cifar-cnn")
BUSY, REPEATS = 0.2, 5
SHARES = ((0.001, 1000), (0.003, 1000), (0.01, 1000), (0.03, 1000), (0.1, 1000))
ALL = MODELS | {"table": (lambda: dense(60, 64, 2), lambda: numbers(8192, 2, 60))}


def counts(kind: str, rows: int) -> Vector:
    """How many rows each person has."""
    rng = np.random.default_rng(0)
    draws = {"4": lambda: 4, "1 to 8": lambda: rng.integers(1, 9), "1 to 32": lambda: min(32, rng.zipf(1.7))}[kind]
    found: list[int] = []
    while sum(found) < rows:
        found.append(min(int(draws()), rows - sum(found)))
    return np.array(found)


def ratio(name: str, kind: str) -> float:
    """How much longer the step of persons takes: the median ratio of blocks in turn."""
    torch.manual_seed(0)
    make, draw = ALL[name]
    data, model = draw(), make()
    rows = TorchOracle(model, loss_for(data), *data, check=False)
    of = counts(kind, rows.size)
    persons = TorchPersonOracle(rows, Persons(np.random.default_rng(1).permutation(rows.size), of))
    plain, rng = Measurement(poisson(0.9), [gradient() @ l2(1.0)], gaussian(1.0)), generator(0)
    at = PublicState(rows.flat.vector)
    steps: list[Callable[[], object]] = [
        lambda: plain.measure(rows, at, 0, rng),
        lambda: plain.protecting(each_person()).measure(persons, at, 0, rng),
    ]
    with torch.no_grad():
        times = max(1, round(BUSY / _seconds(steps[0], 1)))
        return float(np.median([_seconds(steps[1], times) / _seconds(steps[0], times) for _ in range(REPEATS)]))


def _seconds(step: Callable[[], object], times: int) -> float:
    step()
    began = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - began) / times


def noise_ratios() -> dict[str, dict[str, float]]:
    """The noise of rows over that of persons, by ε, rounds and share of the persons in a batch, and by rows of a person."""
    found: dict[str, dict[str, float]] = {}
    for budget, (share, rounds) in itertools.product((Budget(1.0, 1e-6), Budget(3.0, 1e-6), Budget(8.0, 1e-6)), SHARES):
        noise = {most: calibrate(partial(_drawn, share, rounds, most), budget) for most in (1, 2, 4, 8)}
        name = f"epsilon {budget.epsilon:g}, {share:g} of the persons, {rounds} rounds"
        found[name] = {"noise of persons": round(noise[1], 3)} | {
            f"{k} rows": round(noise[k] / k / noise[1], 2) for k in (2, 4, 8)
        }
    return found


def _drawn(share: float, rounds: int, most: int, noise: float) -> DpEvent:
    return SelfComposedDpEvent(several_rows(share, most, noise), rounds)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--noise", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, object] = {"command": "OMP_NUM_THREADS=1 python benchmarks/persons.py"}
    if arguments.noise:
        results = {"command": "python benchmarks/persons.py --noise", "noise of rows / noise of persons": noise_ratios()}
    else:
        results["step of persons / step of rows, by rows of a person"] = {
            name: {kind: round(ratio(name, kind), 2) for kind in ("4", "1 to 8", "1 to 32")} for name in NAMES
        }
    print(json.dumps(results, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
