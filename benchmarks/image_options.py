"""What De et al. recommend for private training of images, one at a time: group norm, weight standardisation, several views,
batches, averages. The default rule chooses the rest.

    PRIVOPT_DATA=… python benchmarks/image_options.py [--seeds 2] [--json FILE]

5,000 training images of MNIST and all test images, a CNN with ReLU and about 13,000 parameters, ε = 3, δ = 1e-5: about four CPU
minutes for each seed. Runs that are in the file of results already are not repeated.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.mnist import digits
from privopt import Budget
from privopt.nets import Views, fit, standardize_weights
from privopt.postprocess.release import last, moving_average

BUDGET, SIZE = Budget(3.0, 1e-5), 5000


def cnn(*, grouped: bool = True) -> nn.Module:
    """Two convolutions and a linear layer."""
    norms = [nn.GroupNorm(4, 16), nn.GroupNorm(8, 32)] if grouped else [nn.Identity(), nn.Identity()]
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), norms[0], nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), norms[1], nn.ReLU(),
        nn.Flatten(), nn.Linear(800, 10),
    )  # fmt: skip


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to two pixels in each direction."""
    size, device = images.shape[-1], images.device
    rows, columns = (torch.randint(-2, 3, (len(images), 1), device=device) + torch.arange(size, device=device) for _ in range(2))
    rows, columns = rows.clamp(0, size - 1), columns.clamp(0, size - 1)
    return images.gather(2, rows[:, None, :, None].expand_as(images)).gather(3, columns[:, None, None, :].expand_as(images))


@dataclass(frozen=True)
class Option:
    """One thing that differs from group norm, 100 rounds of 1000, one view and the mean of the last half."""

    build: Callable[[], nn.Module] = cnn
    views: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


OPTIONS = {
    "group norm, 100 rounds of 1000, mean of the last half": Option(),
    "no group norm": Option(lambda: cnn(grouped=False)),
    "group norm and weight standardisation": Option(lambda: standardize_weights(cnn())),
    "4 shifted views of each image": Option(views=4),
    "the last iterate": Option(settings={"release": last()}),
    "moving average, 0.95": Option(settings={"release": moving_average(0.95)}),
    "400 rounds of 250": Option(settings={"batch_size": 250, "rounds": 400}),
    "100 rounds of all 5000": Option(settings={"batch_size": SIZE}),
}


def train(option: Option, data: tuple[Tensor, ...], seed: int) -> dict[str, Any]:
    """One run: accuracy in percent, CPU seconds."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    network, loss = option.build(), nn.CrossEntropyLoss()
    views = Views(network, shifted, option.views) if option.views else None
    settings = {"batch_size": 1000, "rounds": 100, **option.settings}
    started = time.process_time()
    result = fit(
        views or network, views.loss(loss) if views else loss, (x[:SIZE], y[:SIZE]), budget=BUDGET, seed=seed, **settings
    )  # fmt: skip
    seconds = time.process_time() - started
    with torch.no_grad():
        scores = torch.cat([network.eval()(part) for part in torch.split(x_test, 1000)])
    accuracy = 100 * float((scores.argmax(1) == y_test).float().mean())
    return {"accuracy": round(accuracy, 2), "cpu_seconds": round(seconds), "spent": result.privacy.statement.epsilon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    data, runs = digits(), []
    if asked.json is not None and asked.json.exists():
        runs = json.loads(asked.json.read_text())["runs"]
    for seed in range(asked.seeds):
        for name, option in OPTIONS.items():
            if any((run["option"], run["seed"]) == (name, seed) for run in runs):
                continue
            runs.append({"option": name, "seed": seed, **train(option, data, seed)})
            print(runs[-1], flush=True)
            if asked.json is not None:
                about = {"command": "python benchmarks/image_options.py", "epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
                asked.json.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
