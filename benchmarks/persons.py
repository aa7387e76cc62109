"""Persons: a step that clips persons beside a step that clips the same number of rows, in CPU time of one thread.

Both steps are of Poisson batches: gradients, clipped sum, noise. A person has 4 rows, 1 to 8, or mostly 1 and up to 32.

Networks, on batches of nine in ten. `table` is a network of 64 units on 60 columns.

`--linear` measures linear models, on everybody and on batches of 64 or 256 persons: 20 000 rows, dense with 30 and with 120
columns, and CSR with 5000 columns of which a row has 40; with one output and with five.

`--noise` computes, by price, how much noise drawing rows one by one needs beside drawing persons, for as many expected rows;
below 1 it needs less. All persons have as many rows, at δ = 1e-6. Nothing is timed.

OMP_NUM_THREADS=1 python benchmarks/persons.py [--json benchmarks/results/persons.json]
OMP_NUM_THREADS=1 python benchmarks/persons.py --linear [--json benchmarks/results/persons_linear.json]
python benchmarks/persons.py --noise [--json benchmarks/results/persons_noise.json]
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contenders import MODELS, dense, loss_for, numbers
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import Sampler, full_batch, poisson, several_rows
from privopt.measure.units import each_person
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Oracle, Vector
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Logistic, Loss, Multinomial
from privopt.perexample.networks import TorchOracle, TorchPersonOracle
from privopt.perexample.person_oracle import PersonOracle
from privopt.perexample.persons import Persons
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import DpEvent, SelfComposedDpEvent
from privopt.state import PublicState

NAMES = ("table", "mlp-512", "mnist-cnn", "autoencoder", "lstm", "transformer", "cifar-cnn")
RATIOS = "step of persons / step of rows, by rows of a person"
BUSY, REPEATS = 0.1, 5
SHARES = ((0.001, 1000), (0.003, 1000), (0.01, 1000), (0.03, 1000), (0.1, 1000))
ALL = MODELS | {"table": (lambda: dense(60, 64, 2), lambda: numbers(8192, 2, 60))}


KINDS = ("4", "1 to 8", "1 to 32")  # rows of a person
LINEAR_ROWS = 20_000
MATRICES = ("dense 30", "dense 120", "csr")
BATCHES = {"everybody": None, "256": 256, "64": 64}
LOSSES: dict[str, Callable[[], Loss]] = {"1 output": Logistic, "5 outputs": lambda: Multinomial(5)}


def counts(kind: str, rows: int) -> Vector:
    """How many rows each person has."""
    rng = np.random.default_rng(0)
    found: list[int] = []
    while sum(found) < rows:
        drawn = {"4": 4, "1 to 8": int(rng.integers(1, 9)), "1 to 32": min(32, int(rng.zipf(1.7)))}[kind]
        found.append(min(drawn, rows - sum(found)))
    return np.array(found)


def network_ratio(name: str, kind: str) -> float:
    """How much longer the step of persons takes."""
    torch.manual_seed(0)
    make, draw = ALL[name]
    data, model = draw(), make()
    rows = TorchOracle(model, loss_for(data), *data, check=False)
    of = counts(kind, rows.size)
    persons = TorchPersonOracle(rows, Persons(np.random.default_rng(1).permutation(rows.size), of))
    with torch.no_grad():
        return _ratio(rows, persons, PublicState(rows.flat.vector), poisson(0.9))


@cache
def matrix(name: str) -> Vector | sp.csr_array:
    """Made-up rows."""
    rng = np.random.default_rng(0)
    if name.startswith("dense"):
        return rng.standard_normal((LINEAR_ROWS, int(name.removeprefix("dense "))))
    columns = np.sort(np.stack([rng.choice(5000, 40, replace=False) for _ in range(LINEAR_ROWS)]), axis=1)
    starts = np.arange(0, 40 * LINEAR_ROWS + 1, 40)
    return sp.csr_array((rng.uniform(0, 1, columns.size), columns.ravel(), starts), (LINEAR_ROWS, 5000))


def linear_ratio(name: str, outputs: str, batch: int | None, kind: str) -> float:
    """How much longer the step of persons takes."""
    loss, of, rng = LOSSES[outputs](), counts(kind, LINEAR_ROWS), np.random.default_rng(1)
    targets = rng.integers(0, max(2, loss.outputs), LINEAR_ROWS).astype(float)
    design = Design(matrix(name), Frame())
    rows = LinearOracle(design, targets, loss)
    persons = PersonOracle(design, targets, loss, Persons(np.arange(LINEAR_ROWS), of))
    at = PublicState(rng.standard_normal(rows.dimension) / 10)
    share = batch and batch / len(of)
    return _ratio(rows, persons, at, poisson(share) if share else full_batch())


def linear_ratios() -> Iterator[tuple[str, dict[str, float]]]:
    """The ratios by rows, outputs and batch, and by rows of a person."""
    for name, outputs, (batch, size) in itertools.product(MATRICES, LOSSES, BATCHES.items()):
        yield f"{name}, {outputs}, {batch}", {kind: round(linear_ratio(name, outputs, size, kind), 2) for kind in KINDS}


def _ratio(rows: Oracle, persons: Oracle, at: PublicState, sampler: Sampler) -> float:
    """The median ratio of blocks of steps in turn."""
    rng, terms = generator(0), [gradient() @ l2(1.0)]
    of_rows = Measurement(sampler, terms, gaussian(1.0))
    of_persons = of_rows.protecting(each_person())

    def plain() -> object:
        return of_rows.measure(rows, at, 0, rng)

    def step() -> object:
        return of_persons.measure(persons, at, 0, rng)

    times = max(1, round(BUSY / _seconds(plain, 1)))
    return float(np.median([_seconds(step, times) / _seconds(plain, times) for _ in range(REPEATS)]))


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
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--noise", action="store_true")
    kind.add_argument("--linear", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = "OMP_NUM_THREADS=1 python benchmarks/persons.py"
    if arguments.noise:
        results: dict[str, object] = {
            "command": "python benchmarks/persons.py --noise",
            "noise of rows / noise of persons": noise_ratios(),
        }
    elif arguments.linear:
        results = {"command": f"{command} --linear", RATIOS: dict(linear_ratios())}
    else:
        results = {
            "command": command,
            RATIOS: {name: {kind: round(network_ratio(name, kind), 2) for kind in KINDS} for name in NAMES},
        }
    print(json.dumps(results, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
