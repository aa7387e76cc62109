"""The run of a recipe on a network, with dropout that a replay repeats."""

from collections.abc import Callable
from typing import Any

import torch

from privopt.checkpoint import Checkpoint
from privopt.loop import Result, check_finite, run
from privopt.measure.randomness import Rng
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.layout import Stored
from privopt.perexample.networks.model_state import training_mode
from privopt.perexample.networks.rng import Dropout, global_generators
from privopt.privacy.ledger import Run
from privopt.recipe import Recipe


def run_network(
    recipe: Recipe,
    oracle: TorchOracle,
    start: None = None,
    *,
    spending: Run,
    rng: Rng,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Run a recipe from where the oracle's model is. The model then has what was released, or its own parameters if that fails.

    The global generators of torch, NumPy and Python go on where they were.
    """
    repeatable = _Repeatable(oracle, Dropout.drawn(rng, replayed=checkpoint is not None))
    if checkpoint is not None and (saved := checkpoint.load()) is not None:
        repeatable.round = saved.round_

    def advance(done: int) -> None:
        repeatable.round = done
        if progress is not None:
            with torch.enable_grad():  # as in the user's own code
                progress(done)

    device = oracle.layout.device
    with Stored(oracle.flat.vector) as begun, training_mode(oracle.model), global_generators(device), torch.no_grad():
        try:
            result = run(
                recipe, repeatable, oracle.flat.vector, spending=spending, rng=rng, checkpoint=checkpoint, progress=advance
            )
            check_finite(result.parameters)
            oracle.flat.assign(result.parameters)
        except BaseException:
            oracle.flat.assign(begun.vector())  # public values, with which the same run can be asked for again
            raise
        finally:
            oracle.flat.release()
    return result


class _Repeatable:
    """An oracle with dropout that a replay repeats: each round has random numbers of its own, the same at every point."""

    def __init__(self, oracle: TorchOracle, dropout: Dropout) -> None:
        self._oracle, self._dropout = oracle, dropout
        self.round, self.size, self.dimension, self.layers = 0, oracle.size, oracle.dimension, oracle.layers
        self.counts, self.unit = getattr(oracle, "counts", True), getattr(oracle, "unit", "example")
        self.most_rows = getattr(oracle, "most_rows", None)

    def __call__(self, parameters: Any, rows: Any) -> Any:
        self._dropout.begin(self.round)
        return self._oracle(parameters, rows)

    def losses(self, parameters: Any, rows: Any) -> Any:
        self._dropout.begin(self.round)
        return self._oracle.losses(parameters, rows)
