"""What a federated round costs: CPU time of a user's local steps on its node, of the server's sum and noise, and bytes sent.

OMP_NUM_THREADS=1 python benchmarks/user_costs.py [--json benchmarks/results/user_costs.json]
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from privopt.federated.nodes import Request, answer
from privopt.measure.clips import l2
from privopt.measure.mechanisms import gaussian
from privopt.measure.randomness import generator
from privopt.perexample.losses import Logistic
from privopt.perexample.user_vectors import LinearUsers, LocalSteps, group_rows

ROWS, STEPS, ENTRIES, REPEATS = 20, 5, 50, 5


def user(columns: int, users: int = 50) -> float:
    """Median seconds of one user of 20 rows: dense up to a thousand columns, above that 50 entries a row."""
    rng = np.random.default_rng(0)
    count = users * ROWS
    matrix: Any = rng.standard_normal((count, columns)) if columns <= 1000 else None
    if matrix is None:
        matrix = sp.random(count, columns, density=ENTRIES / columns, format="csr", random_state=0)
    targets, groups = (rng.random(count) < 0.5).astype(float), group_rows(np.repeat(np.arange(users), ROWS))
    held = LinearUsers(matrix, targets, groups, Logistic(), intercept=1.0)
    request = Request(np.zeros(held.dimension), None, LocalSteps(STEPS, 0.1, 32), l2(1.0), np.arange(users))
    return _median(lambda: answer(held, request)) / users


def server(parameters: int, nodes: int = 10) -> float:
    """Median seconds of adding up the answers of ten nodes, and the noise."""
    sums = [np.zeros(parameters)] * nodes
    rng = generator(0)

    def round_() -> None:
        total = np.zeros(parameters)
        for one in sums:
            total += one
        gaussian(1.0).release(total, 1.0, rng)

    return _median(round_)


def _median(work: Any) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return float(np.median(seconds))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/user_costs.py",
        "user, microseconds of CPU by columns": {str(d): round(1e6 * user(d)) for d in (100, 1000, 10_000, 100_000)},
        "server, milliseconds of CPU by parameters, ten nodes": {
            str(d): round(1e3 * server(d), 1) for d in (10_000, 100_000, 1_000_000, 10_000_000)
        },
    }
    print(json.dumps(results, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
