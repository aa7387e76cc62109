"""The default rule of networks beside settings that were chosen by hand: `privopt.fit` with nothing but a budget.

    PRIVOPT_DATA=… python benchmarks/default_networks.py [--epsilon 1.2 3] [--seeds 3] [--only digits …] [--json FILE]

By hand: for each pair of network and data, and each ε, every candidate of `Pair.by_hand` is trained with seed 0, and the one that
is best on *test* data gets the other seeds. So what is chosen by hand is given the test data, and the defaults are not. δ = 1e-5.
Runs that are in the file of results already are not repeated.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.data import a9a, folder, regressions
from benchmarks.mnist import cnn, mlp
from benchmarks.mnist import digits as mnist_digits
from privopt import Budget
from privopt.nets import fit
from privopt.postprocess.release import average

DELTA = 1e-5
Data = tuple[Tensor, Tensor, Tensor, Tensor]  # to train on and to test on, each with its targets


@dataclass(frozen=True)
class Setting:
    """What is chosen by hand: 300 rounds of 2048, a small clip bound, and the step, for dp-sgd in units of the clip bound."""

    method: str
    step: float
    clip_bound: float = 0.1

    def arguments(self) -> dict[str, Any]:
        descent = self.method == "dp-sgd"
        return {
            "method": self.method,
            "clip_bound": self.clip_bound,
            "learning_rate": self.step / self.clip_bound if descent else self.step,
            "options": {"momentum_decay": 0.9} if descent else {},
            "release": average("last half"),
            "rounds": 300,
            "batch_size": 2048,
        }

    def __str__(self) -> str:
        return f"{self.method}, step {self.step:g}{' × C' if self.method == 'dp-sgd' else ''}, C = {self.clip_bound:g}"


DESCENT = tuple(Setting("dp-sgd", step) for step in (0.05, 0.15, 0.5, 1.5))
ADAPTIVE = (Setting("dp-rmsprop", 0.003), Setting("dp-adam", 0.003), Setting("dp-adam", 0.01))
FEW = (DESCENT[2], ADAPTIVE[0])  # of pairs whose runs take minutes


@dataclass(frozen=True)
class Pair:
    """A network and data, and what is tried by hand; `goal` is the range of the targets of a regression."""

    data: Callable[[], Data]
    build: Callable[[], nn.Module]
    goal: tuple[float, float] | None = None
    by_hand: tuple[Setting, ...] = DESCENT + ADAPTIVE


# ---------------------------------------------------------------- data


def small_digits() -> Data:
    """1437 + 360 digits of 8 × 8 pixels, which come with scikit-learn."""
    found = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 8 - 1, torch.tensor(found.target, dtype=torch.long)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    train, test = order[360:], order[:360]
    return x[train], y[train], x[test], y[test]


def people() -> Data:
    """The table a9a: 123 indicators of a person, and whether the income is high."""
    split = a9a().dense()
    x, x_test = (torch.tensor(part, dtype=torch.float32) for part in (split.X, split.X_test))
    y, y_test = (torch.tensor(part, dtype=torch.long) for part in (split.y, split.y_test))
    return x, y, x_test, y_test


def reviews() -> Data:
    """Film reviews, 256 words each, by public vocabulary."""
    place = folder()
    assert place is not None, "PRIVOPT_DATA names the folder of the data sets"
    parts = []
    for name in ("train", "test"):
        file = np.load(place / f"imdb_{name}_seq256_pubvocab.npz")
        parts += [torch.tensor(file["S"], dtype=torch.long), torch.tensor(file["y"], dtype=torch.long)]
    x, y, x_test, y_test = parts
    return x, y, x_test, y_test


def bicycles() -> Data:
    """How many bicycles are hired in an hour: 12 numbers, on [−1, 1] by ranges that are public."""
    split = regressions()[-1]
    low, high = split.X.min(0), split.X.max(0)
    x, x_test = (torch.tensor(2 * (part - low) / (high - low) - 1, dtype=torch.float32) for part in (split.X, split.X_test))
    y, y_test = (torch.tensor(part, dtype=torch.float32).unsqueeze(1) for part in (split.y, split.y_test))
    return x, y, x_test, y_test


# ---------------------------------------------------------------- networks


class Mean(nn.Module):
    """The mean of word vectors, without padding, and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10002, 16), nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        scores: Tensor = self.head((self.words(ids) * there).sum(1) / there.sum(1).clamp_min(1))
        return scores


def relu_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.GroupNorm(8, 32), nn.ReLU(),
        nn.Flatten(), nn.Linear(800, 10),
    )  # fmt: skip


def perceptron(inputs: int, hidden: int, outputs: int, bend: type[nn.Module] = nn.ReLU) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, hidden), bend(), nn.Linear(hidden, outputs))


PAIRS = {
    "digits, perceptron 64-64-10": Pair(small_digits, perceptron(64, 64, 10)),
    "a9a, perceptron 123-64-2": Pair(people, perceptron(123, 64, 2, nn.Tanh)),
    "bicycles, perceptron 12-64-1": Pair(bicycles, perceptron(12, 64, 1), goal=(0, 1000)),
    "MNIST, perceptron 784-128-128-10": Pair(mnist_digits, mlp, by_hand=FEW),
    "IMDB, mean of embeddings": Pair(reviews, Mean, by_hand=FEW),
    "MNIST, ReLU CNN with GroupNorm": Pair(mnist_digits, relu_cnn, by_hand=DESCENT[2:]),
    "MNIST, tanh CNN": Pair(mnist_digits, cnn, by_hand=DESCENT[2:]),
}


# ---------------------------------------------------------------- runs


def train(pair: Pair, data: Data, epsilon: float, seed: int, setting: Setting | None) -> dict[str, Any]:
    """One run: its score, accuracy in percent or 100 R²."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    model, loss = pair.build(), nn.CrossEntropyLoss() if pair.goal is None else nn.MSELoss()
    chosen = {} if setting is None else setting.arguments()
    started = time.process_time()
    result = fit(model, loss, (x, y), budget=Budget(epsilon, DELTA), target_range=pair.goal, seed=seed, **chosen)
    seconds = time.process_time() - started
    with torch.no_grad():
        output = torch.cat([result.model.eval()(part) for part in torch.split(x_test, 1000)])
    if pair.goal is None:
        score = 100 * float((output.argmax(1) == y_test).float().mean())
    else:
        score = 100 * (1 - float((output - y_test).square().mean() / (y_test - y.mean()).square().mean()))
    settings = result.privacy.statement.settings
    return {
        "score": round(score, 2),
        "cpu_seconds": round(seconds, 1),
        "rounds": settings["rounds"],
        "batch": settings["batch size"],
        "clip": settings["clip bound"],
        "rate": settings["learning rate"],
        "spent": result.privacy.statement.epsilon,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.2, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="pairs whose names begin so")
    parser.add_argument("--no-hand", action="store_true", help="the defaults alone")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    runs: list[dict[str, Any]] = []
    if asked.json is not None and asked.json.exists():
        runs = json.loads(asked.json.read_text())["runs"]

    def run(name: str, data: Data, epsilon: float, seed: int, setting: Setting | None) -> float:
        said = "default" if setting is None else str(setting)
        about: dict[str, Any] = {"pair": name, "epsilon": epsilon, "settings": said, "seed": seed}
        known = next((own for own in runs if about.items() <= own.items()), None)
        if known is None:
            known = about | train(PAIRS[name], data, epsilon, seed, setting)
            print(known, flush=True)
            runs.append(known)
            if asked.json is not None:
                found = {"command": "python benchmarks/default_networks.py", "delta": DELTA, "runs": runs}
                asked.json.write_text(json.dumps(found, indent=1) + "\n")
        return float(known["score"])

    for name, pair in PAIRS.items():
        if asked.only and not name.startswith(tuple(asked.only)):
            continue
        data = pair.data()
        for epsilon in asked.epsilon:
            for seed in range(asked.seeds):
                run(name, data, epsilon, seed, None)
            if asked.no_hand:
                continue
            best = max(pair.by_hand, key=lambda setting: run(name, data, epsilon, 0, setting))
            for seed in range(1, asked.seeds):
                run(name, data, epsilon, seed, best)


if __name__ == "__main__":
    main()
