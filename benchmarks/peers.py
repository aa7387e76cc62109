"""Peers: the same model in Opacus, with Opacus' own settings wherever it has any."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.data import Array, Split

Step = Callable[[Any, Any], None]


def installed() -> bool:
    """Whether Opacus and torch are there (`make bench` installs them)."""
    try:
        import opacus  # noqa: F401
    except ImportError:
        return False
    return True


class OpacusLogistic:
    """torch.nn.Linear with a logistic loss through `PrivacyEngine.make_private`: hooks, flat clipping, Poisson sampling, SGD."""

    def __init__(
        self,
        X: Array,
        y: Array,
        *,
        batch_size: int,
        learning_rate: float,
        clip_bound: float,
        budget: dict[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset  # type: ignore[import-not-found, unused-ignore]

        warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG|Optimal order")
        torch.manual_seed(seed)
        self._torch = torch
        data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None])
        model = torch.nn.Linear(X.shape[1], 1)
        parts: dict[str, Any] = {
            "module": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=learning_rate),
            "data_loader": DataLoader(data, batch_size=batch_size),
            "max_grad_norm": clip_bound,
        }
        engine = PrivacyEngine()
        if budget is None:
            self.model, self.optimizer, self.loader = engine.make_private(noise_multiplier=1.0, **parts)
        else:
            self.model, self.optimizer, self.loader = engine.make_private_with_epsilon(**budget, **parts)
        self._loss = torch.nn.BCEWithLogitsLoss()

    def with_threads(self, threads: int | None, task: Callable[[], int]) -> int:
        """Do something with so many torch threads, or as many as torch chooses."""
        usual = self._torch.get_num_threads()
        self._torch.set_num_threads(threads or usual)
        try:
            return task()
        finally:
            self._torch.set_num_threads(usual)

    def step(self, X: Any, y: Any) -> None:
        self.optimizer.zero_grad()
        self._loss(self.model(X), y).backward()
        self.optimizer.step()

    def epoch(self, steps: int | None = None) -> int:
        """An epoch as users write it, or so many steps of one: batches are drawn, loaded and used. Returns the steps."""
        count = 0
        for X, y in itertools.islice(self.loader, steps):
            self.step(X, y)
            count += 1
        return count

    def steps(self, batches: list[tuple[Any, Any]]) -> int:
        """A step on each of these batches. Returns the steps."""
        for X, y in batches:
            self.step(X, y)
        return len(batches)

    def batches(self, count: int) -> list[tuple[Any, Any]]:
        """Batches that are drawn and loaded already."""
        return list(itertools.islice(itertools.cycle(self.loader), count))

    def scores(self, X: Array) -> Array:
        with self._torch.no_grad():
            return np.asarray(self.model(self._torch.tensor(X, dtype=self._torch.float32)))[:, 0]


def opacus_scores(split: Split, epsilon: float, delta: float, *, epochs: int = 20, seed: int = 0) -> Array:
    """Test scores of Opacus' DP-SGD. It has no default for the step, batch or epochs: these are usual ones, not tuned."""
    budget = {"target_epsilon": epsilon, "target_delta": delta, "epochs": epochs}
    peer = OpacusLogistic(split.X.toarray(), split.y, batch_size=512, learning_rate=0.5, clip_bound=1.0, budget=budget, seed=seed)
    for _ in range(epochs):
        peer.epoch()
    return peer.scores(split.X_test.toarray())
