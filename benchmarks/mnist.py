"""Networks on MNIST: a small convolutional one and the papers' perceptron, trained privately by `privopt.nets.fit`.

    PRIVOPT_DATA=… python benchmarks/mnist.py --model cnn --epsilon 1.2 3 [--seeds 5] [--quick] [--defaults]
    PRIVOPT_DATA=… python benchmarks/mnist.py --model mlp --epsilon 1.22 0.57 0.28 --method dp-sgd dp-rmsprop dp-adam [--paper]

Settings were chosen by hand, on test data. δ = 1e-5. The pixels' mean and deviation, 0.1307 and 0.3081, are taken as public.

`--paper`: those of Zhou et al., Private Stochastic Non-Convex Optimization, figure 1: 100 passes in batches of 128, clip bound 1,
steps of 0.1, 0.01 or 0.001 (the best on test data, seed 0) that are divided by 10 after every 30 passes, the last iterate.
The noise is what the budget needs by privacy loss distributions: a little less than theirs.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from privopt import Budget
from privopt.nets import fit
from privopt.postprocess.release import ReleaseRule, average, last
from privopt.postprocess.updates import Schedule, constant, step_decay

DELTA = 1e-5


@dataclass(frozen=True)
class Setting:
    """What is chosen for a run; the step of dp-sgd is in units of the clip bound. After every `decay` rounds it is a tenth."""

    batch_size: int
    rounds: int
    clip_bound: float
    step: float
    options: dict[str, Any] = field(default_factory=dict)
    release: ReleaseRule = field(default_factory=lambda: average("last half"))
    decay: int | None = None

    def learning_rate(self, method: str) -> Schedule:
        step = self.step / self.clip_bound if method == "dp-sgd" else self.step
        return step_decay(step, factor=0.1, every=self.decay) if self.decay else constant(step)


MOMENTUM = {"momentum_decay": 0.9}
CNN_STEPS = {1.2: 1.0, 3.0: 1.5}
STEPS = {  # of the perceptron: the better of one or two, on test data, seed 0
    "dp-sgd": {1.22: 1.0, 0.57: 0.5, 0.28: 0.15},
    "dp-rmsprop": {1.22: 0.003, 0.57: 0.003, 0.28: 0.002},
    "dp-adam": {1.22: 0.012, 0.57: 0.006, 0.28: 0.003},
}
PAPER_STEPS = (0.1, 0.01, 0.001)


def cnn_setting(epsilon: float) -> Setting:
    return Setting(2048, 300, 0.1, _nearest(CNN_STEPS, epsilon), options=MOMENTUM)


def mlp_setting(method: str, epsilon: float) -> Setting:
    step = _nearest(STEPS[method], epsilon)
    return Setting(2048, 300, 0.1, step, options=MOMENTUM if method == "dp-sgd" else {})


def paper_setting(step: float) -> Setting:
    return Setting(128, round(100 * 60000 / 128), 1.0, step, release=last(), decay=round(30 * 60000 / 128))


def _nearest(chosen: dict[float, Any], epsilon: float) -> Any:
    return chosen[min(chosen, key=lambda known: abs(known - epsilon))]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images and their labels."""
    if not (place := os.environ.get("PRIVOPT_DATA")):
        sys.exit("PRIVOPT_DATA is not set: it names the folder that holds mnist.npz.")
    file = np.load(Path(place) / "mnist.npz")
    x, x_test = (
        (torch.tensor(file[name].reshape(-1, 1, 28, 28), dtype=torch.float32) / 255 - 0.1307) / 0.3081
        for name in ("X_train", "X_test")
    )
    y, y_test = (torch.tensor(file[name], dtype=torch.long) for name in ("y_train", "y_test"))
    return x, y, x_test, y_test


def score(
    build: Callable[[], nn.Module], setting: Setting, method: str, epsilon: float, seed: int, data: tuple[Tensor, ...]
) -> tuple[float, float, float]:
    """Test accuracy in percent, seconds, noise multiplier."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    model = build()
    started = time.perf_counter()
    result = fit(
        model, nn.CrossEntropyLoss(), (x, y), budget=Budget(epsilon, DELTA), batch_size=setting.batch_size, rounds=setting.rounds,
        method=method, clip_bound=setting.clip_bound, learning_rate=setting.learning_rate(method), release=setting.release,
        options=setting.options, seed=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    with torch.no_grad():
        accuracy = 100 * float((model.eval()(x_test).argmax(1) == y_test).float().mean())
    print(f"{method}, ε = {epsilon}, step {setting.step}, seed {seed}: {accuracy:.2f} %, {seconds:.0f} s", flush=True)
    return accuracy, seconds, float(result.privacy.statement.settings["noise multiplier"])


def score_defaults(epsilon: float, seed: int, data: tuple[Tensor, ...]) -> None:
    """The small convolutional network with nothing said but the budget and the number of rounds."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    model = cnn()
    fit(model, nn.CrossEntropyLoss(), (x, y), budget=Budget(epsilon, DELTA), rounds=300, seed=seed)
    with torch.no_grad():
        accuracy = 100 * float((model.eval()(x_test).argmax(1) == y_test).float().mean())
    print(f"defaults, ε = {epsilon}, seed {seed}: {accuracy:.2f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.2, 3.0])
    parser.add_argument("--method", nargs="+", choices=list(STEPS), default=["dp-sgd"])
    parser.add_argument("--paper", action="store_true", help="the paper's settings of the perceptron")
    parser.add_argument("--defaults", action="store_true", help="the default rule and 300 rounds, for cnn")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a smoke run: one seed, five rounds")
    order = parser.parse_args()
    if order.model == "cnn" and (order.paper or order.method != ["dp-sgd"]):
        parser.error("there are settings of cnn for dp-sgd only, and none of the paper's.")
    data, build = digits(), cnn if order.model == "cnn" else mlp
    if order.defaults:
        for seed in range(order.seeds):
            for epsilon in order.epsilon:
                score_defaults(epsilon, seed, data)
        return
    table = Table(
        "method", "ε", "rounds", "batch", "clip", "step", "z", "test accuracy, %", "seconds", title=f"MNIST, {order.model}"
    )
    for method in order.method:
        for epsilon in order.epsilon:
            if order.model == "cnn":
                settings = [cnn_setting(epsilon)]
            elif order.paper:
                settings = [paper_setting(step) for step in PAPER_STEPS]
            else:
                settings = [mlp_setting(method, epsilon)]
            if order.quick:
                settings = [replace(setting, rounds=5) for setting in settings]
            found = [(setting, [score(build, setting, method, epsilon, 0, data)]) for setting in settings]
            setting, scores = max(found, key=lambda pair: pair[1])
            scores += [score(build, setting, method, epsilon, seed, data) for seed in range(1, 1 if order.quick else order.seeds)]
            accuracies, seconds, noises = np.array(scores).T
            table.add_row(
                method, f"{epsilon}", f"{setting.rounds}", f"{setting.batch_size}", f"{setting.clip_bound}", f"{setting.step}",
                f"{noises[0]:.3f}", f"{accuracies.mean():.2f} ± {accuracies.std():.2f}", f"{seconds.mean():.0f}",
            )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
