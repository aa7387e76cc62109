"""What `fit` holds of a large embedding, and how long its step takes beside the plain one.

    python benchmarks/network_memory.py [--only held|ratio] [--json benchmarks/results/network_memory.json]

The network is a table of a million rows of 64 numbers and a linear layer; a batch has 1024 examples of 8 ids. Each fit runs in
a process of its own: `held` is the most memory that it takes, the network's own included, in multiples of the parameters.
`ratio` is the CPU time of a private step, noise and update included, to that of the plain step with the same update rule in
torch (SGD or Adam, a dense gradient), in one process, interleaved; medians. Linux only.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import privopt
from benchmarks import resident
from benchmarks.report import machine
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_sgd import dp_sgd
from privopt.nets.network_run import run_network
from privopt.perexample.networks import TorchOracle
from privopt.privacy.ledger import Ledger

ROWS, WIDTH, IDS, BATCH, EXAMPLES = 1_000_000, 64, 8, 1024, 4096
METHODS: dict[str, Any] = {"dp-adam": torch.optim.Adam, "dp-sgd": torch.optim.SGD}


class Table(nn.Module):
    """A table of embeddings, and a linear layer on their mean."""

    def __init__(self, rows: int = ROWS, *, sparse: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(rows, WIDTH, sparse=sparse), nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(ids).mean(1))
        return found


def make(*, sparse: bool = False) -> tuple[Table, Tensor, Tensor]:
    """The network and its data."""
    torch.manual_seed(0)
    return Table(sparse=sparse), torch.randint(0, ROWS, (EXAMPLES, IDS)), torch.randint(0, 2, (EXAMPLES,))


def hold(method: str, sparse: bool) -> float:
    """The most that a fit holds, in multiples of the parameters."""
    small = Table(100, sparse=sparse)
    few = torch.randint(0, 100, (64, IDS)), torch.randint(0, 2, (64,))
    options = {"options": {"momentum_decay": 0.0}} if method == "dp-sgd" else {}
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "rounds": 3, "method": method, "progress": False, **options}
    privopt.fit(small, nn.CrossEntropyLoss(), few, batch_size=32, **settings)  # whatever is loaded once is loaded
    model, ids, labels = make(sparse=sparse)
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    resident.forget()
    before = resident.now()
    privopt.fit(model, nn.CrossEntropyLoss(), (ids, labels), batch_size=BATCH, learning_rate=0.01, clip_bound=1.0, **settings)
    return (resident.most() - before) / size + 1


def ratio(method: str, sparse: bool, repeats: int) -> dict[str, float]:
    """CPU seconds of a plain and of a private step."""
    model, ids, labels = make(sparse=sparse)
    plain_model, _, _ = make()
    optimizer = METHODS[method](plain_model.parameters(), lr=0.01)

    def plain() -> None:
        chosen = torch.randint(0, EXAMPLES, (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(plain_model(ids[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    oracle = TorchOracle(model, nn.CrossEntropyLoss(), ids, labels, check=False)
    times: dict[str, list[float]] = {"plain": [], "private": []}
    began = 0.0

    def stepped(done: int) -> None:
        nonlocal began
        times["private"].append(time.process_time() - began)
        began = time.process_time()
        plain()
        times["plain"].append(time.process_time() - began)
        began = time.process_time()

    recipe: Callable[..., Any] = dp_adam if method == "dp-adam" else dp_sgd
    steps = recipe(
        rounds=repeats + 2, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.01, sampling=poisson(BATCH / EXAMPLES)
    )
    began = time.process_time()
    run_network(steps, oracle, spending=Ledger().run(), rng=generator(0), progress=stepped)
    plain_seconds, private = (median(own[2:]) for own in (times["plain"], times["private"]))
    return {"plain_seconds": round(plain_seconds, 3), "ratio": round(private / plain_seconds, 2)}


def hold_apart(method: str, kind: str, _: int) -> dict[str, float]:
    """What a fit in a process of its own holds."""
    again = [sys.executable, __file__, "--hold", method, kind]
    return {"held": round(float(subprocess.run(again, check=True, capture_output=True, text=True).stdout), 2)}


def main() -> None:
    """Measure, print and write; what the file holds of the other part stays."""
    parts = {"held": hold_apart, "ratio": lambda method, kind, repeats: ratio(method, kind == "sparse", repeats)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hold", nargs=2, metavar=("METHOD", "sparse|dense"), help="run one fit and print what it held")
    parser.add_argument("--only", choices=list(parts), help="this part; both unless told otherwise")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    if given.hold:
        print(hold(given.hold[0], given.hold[1] == "sparse"))
        return
    before = given.json is not None and given.json.exists()
    found: dict[str, Any] = json.loads(given.json.read_text())["fits"] if before else {}
    for method in METHODS:
        for kind in ("dense", "sparse"):
            row = found.setdefault(f"{method}, {kind}", {})
            for part in [given.only] if given.only else parts:
                row.update(parts[part](method, kind, given.repeats))
            print(f"{method:8s} {kind:6s} {row}", flush=True)
            if given.json is not None:
                command = f"python benchmarks/network_memory.py --repeats {given.repeats}"
                given.json.write_text(json.dumps({"command": command, "machine": machine(), "fits": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
