"""Ranks: examples per second of two processes against one, with one thread each, in real torchrun jobs on this machine.

    python -m benchmarks.ranks

Both are jobs of `torchrun` with the same sums, bit for bit; so the ratio is what the second process is worth. The rounds of
calibration, checks and start-up are not counted: time is taken between two rounds of one run.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "ranks.json"
COMMAND = "python -m benchmarks.ranks"
MODELS = ("mlp-512", "cnn")
BATCH, EXAMPLES, SKIPPED, REPEATS = 2048, 20_000, 3, 3
ROUNDS = {"mlp-512": 23, "cnn": 13}  # and the first are not counted


def train(model: str, out: str) -> None:
    """One rank of a job; rank 0 writes the examples per second."""
    import torch
    from torch import nn

    from privopt import Budget, fit

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if model == "cnn":
        x = torch.randn(EXAMPLES, 1, 28, 28)
        network = nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
        )  # fmt: skip
    else:
        x = torch.randn(EXAMPLES, 784)
        network = nn.Sequential(nn.Linear(784, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    y = torch.randint(10, (EXAMPLES,))
    times: dict[int, float] = {}
    fit(
        network,
        nn.CrossEntropyLoss(),
        (x, y),
        budget=Budget(3.0, 1e-5),
        rounds=ROUNDS[model],
        batch_size=BATCH,
        learning_rate=0.01,
        accountant="rdp",
        seed=0,
        progress=lambda done: times.setdefault(done, time.perf_counter()) and None,
    )
    if os.environ["RANK"] == "0":
        seconds = times[ROUNDS[model]] - times[SKIPPED]
        Path(out).write_text(json.dumps(BATCH * (ROUNDS[model] - SKIPPED) / seconds))


def measure(model: str, ranks: int) -> float:
    """Examples per second of a job with so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rate.json")
        launcher = f"--nnodes=1 --nproc-per-node={ranks} --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0 --local-addr=127.0.0.1"
        order = [sys.executable, "-m", "torch.distributed.run", *launcher.split(), "-m", "benchmarks.ranks", model, str(out)]
        subprocess.run(order, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return float(json.loads(out.read_text()))


def main() -> None:
    """Measure jobs of one and of two processes in turn, and write the results."""
    found, load = {}, os.getloadavg()[0]
    for model in MODELS:
        pairs = [(measure(model, 1), measure(model, 2)) for _ in range(REPEATS)]
        ratios = sorted(two / one for one, two in pairs)
        found[model] = {
            "one process, examples a second": [round(one) for one, _ in pairs],
            "two processes, examples a second": [round(two) for _, two in pairs],
            "ratio": round(ratios[len(ratios) // 2], 2),
            "ratios": [round(ratio, 2) for ratio in ratios],
        }
        print(model, found[model])
    conditions = {
        "batch size": BATCH,
        "threads of each process": 1,
        "processors": os.cpu_count(),
        "load before": load,
    }
    RESULTS.write_text(json.dumps({"command": COMMAND, "conditions": conditions, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    train(*sys.argv[1:]) if len(sys.argv) > 1 else main()
