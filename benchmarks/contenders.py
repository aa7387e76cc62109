"""One contender of the networks benchmark: a model, and one way to train it, on one batch again and again.

python benchmarks/contenders.py MODEL CONTENDER              (for each line "THREADS STEPS": does them, prints seconds per step)
python benchmarks/contenders.py MODEL CONTENDER memory       (prints the most memory that steps take beyond model and data; Linux)

A contender trains until it is stopped and calls `after()` after each step. privopt is `privopt.nets.fit` itself, on a data set
that is the batch; Opacus is `PrivacyEngine.make_private`, with the LSTM that it offers instead of torch's.
"""

import contextlib
import itertools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import resident
from privopt import Budget, run
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient, preconditioned_gradient
from privopt.measure.samplers import full_batch
from privopt.nets import fit
from privopt.perexample.networks import TorchOracle
from privopt.postprocess.release import last
from privopt.postprocess.side_information import fixed_scale
from privopt.postprocess.updates import sgd
from privopt.recipe import Recipe, always

WORDS = 10_000
RATE = 1e-3
ROUNDS = 5_000  # planned, and more than anybody will ask for


# ---------------------------------------------------------------- models


class Lstm(nn.Module):
    """A sequence of words, one class for all of it."""

    def __init__(self, recurrent: Callable[..., nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(WORDS, 64), recurrent(64, 128, batch_first=True), nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.words(x))[0][:, -1])


class Block(nn.Module):
    """Attention and two dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time_, width = x.shape
        q, k, v = (part.view(batch, time_, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Words and their places, two blocks, one class."""

    def __init__(self, width: int = 128, length: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.blocks, self.norm, self.out = (
            nn.Sequential(Block(width, 4), Block(width, 4)),
            nn.LayerNorm(width),
            nn.Linear(width, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).expand_as(x).contiguous()
        return self.out(self.norm(self.blocks(self.words(x) + self.places(places))).mean(1))


def dense(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), *dense(512, 32, 10),
    )  # fmt: skip


def cifar_cnn() -> nn.Module:
    parts: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*parts, nn.Flatten(), *dense(2048, 256, 128, 10))


def numbers(batch: int, classes: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, *shape), torch.randint(0, classes, (batch,))


def texts(batch: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, WORDS, (batch, length)), torch.randint(0, 2, (batch,))


def pictures(batch: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(batch, 784)
    return x, x


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "logistic": (lambda: nn.Linear(123, 2), lambda: numbers(256, 2, 123)),
    "linear-5m": (lambda: nn.Linear(10_000, 500), lambda: numbers(64, 500, 10_000)),
    "mlp-128": (lambda: dense(784, 128, 128, 10), lambda: numbers(128, 10, 784)),
    "mlp-512": (lambda: dense(784, 128, 128, 10), lambda: numbers(512, 10, 784)),
    "mnist-cnn": (mnist_cnn, lambda: numbers(256, 10, 1, 28, 28)),
    "autoencoder": (lambda: dense(784, 1000, 500, 250, 30, 250, 500, 1000, 784), lambda: pictures(64)),
    "lstm": (Lstm, lambda: texts(64, 256)),
    "transformer": (Transformer, lambda: texts(32, 128)),
    "cifar-cnn": (cifar_cnn, lambda: numbers(128, 10, 3, 32, 32)),
}

# ---------------------------------------------------------------- contenders

After = Callable[[], None]
Data = tuple[Tensor, Tensor]


def loss_for(data: Data) -> nn.Module:
    return nn.MSELoss() if data[1].is_floating_point() else nn.CrossEntropyLoss()


def non_private(model: nn.Module, data: Data, after: After) -> None:
    optimizer, loss = torch.optim.SGD(model.parameters(), RATE), loss_for(data)
    while True:
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        optimizer.step()
        after()


def privopt(model: nn.Module, data: Data, after: After) -> None:
    fit(
        model, loss_for(data), data, budget=Budget(10.0, 1e-5), batch_size=len(data[0]), rounds=ROUNDS,
        method="dp-sgd", clip_bound=1.0, learning_rate=RATE, release=last(), options={"momentum_decay": 0.0},
        progress=lambda done: after(),
    )  # fmt: skip


class RowMse(nn.Module):
    """What MSELoss is, one value for each example if asked: Opacus cannot make that of MSELoss."""

    reduction = "mean"

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        rows = (output - targets).square().mean(1)
        return rows if self.reduction == "none" else rows.mean()


def opacus(mode: str) -> Callable[[nn.Module, Data, After], None]:
    def train(model: nn.Module, data: Data, after: After) -> None:
        from opacus import PrivacyEngine
        from opacus.layers import DPLSTM

        if isinstance(model, Lstm):
            model = Lstm(DPLSTM)
        loss = loss_for(data)
        given: dict[str, Any] = {
            "module": model,
            "optimizer": torch.optim.SGD(model.parameters(), RATE),
            "data_loader": DataLoader(TensorDataset(*data), batch_size=len(data[0])),
            "criterion": RowMse() if isinstance(loss, nn.MSELoss) else loss,
        }
        private, optimizer, *rest = PrivacyEngine().make_private(
            noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode=mode, **given
        )
        criterion = rest[0] if mode == "ghost" else given["criterion"]
        while True:
            optimizer.zero_grad()
            criterion(private(data[0]), data[1]).backward()
            optimizer.step()
            after()

    return train


def asking(query: Any) -> Callable[[nn.Module, Data, After], None]:
    """Steps of plain gradients, or of preconditioned ones: the scale is known beforehand, and nothing else differs."""

    @torch.no_grad()  # as in `fit`
    def train(model: nn.Module, data: Data, after: After) -> None:
        oracle = TorchOracle(model, loss_for(data), *data)
        asked = Measurement(full_batch(), [query @ l2(1.0)], gaussian(1.0))
        side = fixed_scale(torch.rand_like(oracle.flat.vector) + 0.5)
        run(Recipe(ROUNDS, always(asked), sgd(RATE), side=side), oracle, oracle.flat.vector, progress=lambda done: after())

    return train


@torch.no_grad()  # as in `fit`
def difference(model: nn.Module, data: Data, after: After) -> None:
    """A clipped sum of differences between the gradients at two points."""
    oracle, clip = TorchOracle(model, loss_for(data), *data), l2(1.0)
    here = oracle.flat.vector.clone()
    there = here + 0.01 * torch.randn_like(here)
    while True:
        before: Any = oracle(there, None)
        oracle(here, None).minus(before).clipped_sum(clip)
        after()


def two_gradients(model: nn.Module, data: Data, after: After) -> None:
    """Two ordinary backward passes."""
    loss = loss_for(data)
    while True:
        for _ in range(2):
            model.zero_grad()
            loss(model(data[0]), data[1]).backward()
        after()


CONTENDERS: dict[str, Callable[[nn.Module, Data, After], None]] = {
    "non-private": non_private,
    "privopt": privopt,
    "opacus-ghost": opacus("ghost"),
    "opacus-hooks": opacus("hooks"),
    "opacus-hooks-tuned": opacus("hooks"),  # in another environment
    "plain": asking(gradient()),
    "preconditioned": asking(preconditioned_gradient()),
    "difference": difference,
    "two-gradients": two_gradients,
}

# ---------------------------------------------------------------- orders


class Enough(Exception):
    """Nobody asks for more."""


def obey() -> After:
    """Steps as they are asked for, a line for each block; the first step is the warm-up, and is not told."""
    left, steps, started = 1, 0, 0.0

    def after() -> None:
        nonlocal left, steps, started
        left -= 1
        if left:
            return
        if steps:
            print((time.perf_counter() - started) / steps, flush=True)
        if not (order := sys.stdin.readline()):
            raise Enough
        threads, steps = map(int, order.split())
        torch.set_num_threads(threads)
        left, started = steps, time.perf_counter()

    return after


def weigh(steps: int = 4) -> After:
    """The most memory of some steps beyond what there is now, in bytes."""
    resident.forget()
    before, left = resident.now(), steps

    def after() -> None:
        nonlocal left
        left -= 1
        if not left:
            print(resident.most() - before)
            raise Enough

    return after


def main(model: str, contender: str, memory: bool) -> None:
    warnings.filterwarnings("ignore")
    train = CONTENDERS[contender]
    torch.manual_seed(0)

    def once() -> None:
        raise Enough

    for network, data, after in (
        (nn.Linear(99, 99), numbers(5, 99, 99), lambda: once),  # whatever is loaded once is loaded
        (MODELS[model][0](), MODELS[model][1](), weigh if memory else obey),
    ):
        with contextlib.suppress(Enough):
            train(network, data, after())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], memory="memory" in sys.argv[3:])
