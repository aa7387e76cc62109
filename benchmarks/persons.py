"""Persons in networks: a step that clips persons beside a step that clips the same number of rows, in CPU time of one thread.

Both steps are of Poisson batches with nine in ten: gradients, clipped sum, noise. A person has 4 rows, 1 to 8, or mostly 1 and
up to 32. `table` is a network of 64 units on 60 columns.

OMP_NUM_THREADS=1 python benchmarks/persons.py [--json benchmarks/results/persons.json]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
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
from privopt.measure.samplers import poisson
from privopt.measure.units import each_person
from privopt.perexample.grads import Vector
from privopt.perexample.networks import TorchOracle, TorchPersonOracle
from privopt.perexample.persons import Persons
from privopt.state import PublicState

NAMES = ("table", "mlp-512", "mnist-cnn", "autoencoder", "lstm", "transformer", "cifar-cnn")
BUSY, REPEATS = 0.2, 5
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


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/persons.py",
        "step of persons / step of rows, by rows of a person": {
            name: {kind: round(ratio(name, kind), 2) for kind in ("4", "1 to 8", "1 to 32")} for name in NAMES
        },
    }
    print(json.dumps(results, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
