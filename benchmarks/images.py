"""MNIST without a public network: what `privopt.nets.fit_images` does, with the features computed once for all runs.

    PRIVOPT_DATA=… python benchmarks/images.py --epsilon 3 1.2 [--seeds 5] [--held-out] [--keep FOLDER] [--json FILE]

δ = 1e-5. The features look at no private image; `--keep` holds them between runs. With `--held-out`, the last 10,000 of the
training images take the place of the test images: settings are chosen by that.
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
from privopt.nets import fit
from privopt.nets.images import METHOD, ImageClassifier

DELTA = 1e-5


def features(keep: Path | None) -> tuple[tuple[Tensor, ...], float | None]:
    """Features and labels for training and for the test, and the seconds that features took."""
    if not (place := os.environ.get("PRIVOPT_DATA")):
        sys.exit("PRIVOPT_DATA is not set: it names the folder that holds mnist.npz.")
    file, find, seconds = np.load(Path(place) / "mnist.npz"), None, None
    found: list[Tensor] = []
    for part in ("train", "test"):
        kept = None if keep is None else keep / f"scattering_{part}.pt"
        if kept is None or not kept.exists():
            started = time.process_time()
            find = find or ImageClassifier(28, 1, 10).features
            own = find(torch.tensor(file[f"X_{part}"].reshape(-1, 1, 28, 28), dtype=torch.float32) / 255)
            seconds = (seconds or 0.0) + time.process_time() - started
            if kept is not None:
                torch.save(own, kept)
        else:
            own = torch.load(kept)
        found += [own, torch.tensor(file[f"y_{part}"], dtype=torch.long)]
    return tuple(found), seconds


def score(data: tuple[Tensor, ...], epsilon: float, seed: int) -> dict[str, Any]:
    """One run."""
    x, y, x_test, y_test = data
    model = nn.Linear(x.shape[1], 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    started = time.process_time()
    result = fit(model, nn.CrossEntropyLoss(), (x, y), budget=Budget(epsilon, DELTA), method=METHOD, seed=seed)
    with torch.no_grad():
        accuracy = 100 * float((model(x_test).argmax(1) == y_test).float().mean())
    statement = result.privacy.statement
    found = {
        "epsilon": epsilon,
        "spent": statement.epsilon,
        "learning rate": statement.settings["learning rate"],
        "seed": seed,
        "accuracy": round(accuracy, 2),
        "cpu seconds": round(time.process_time() - started),
    }
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 1.2])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path)
    order = parser.parse_args()
    data, seconds = features(order.keep)
    if order.held_out:
        x, y, *_ = data
        data = (x[:50_000], y[:50_000], x[50_000:], y[50_000:])
    runs = []
    for seed in range(order.seeds):
        for epsilon in order.epsilon:
            runs.append(score(data, epsilon, seed))
            if order.json is not None:
                asked = f"python benchmarks/images.py --epsilon {' '.join(map(str, order.epsilon))} --seeds {order.seeds}"
                asked += " --held-out" if order.held_out else ""
                found = {"command": asked, "delta": DELTA, "cpu seconds of features": seconds and round(seconds), "runs": runs}
                order.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
