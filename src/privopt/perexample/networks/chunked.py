"""Chunks: a batch that is too large for memory, a few examples at a time.

Only the norms of a chunk are kept. `clipped_sum` passes over the data once; `norms` and then `weighted_sum` pass twice,
with the same random numbers.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privopt.perexample.grads import ClipFactors
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.rng import RngState, seed_torch
from privopt.perexample.networks.torch_grads import TorchGrads


class ChunkedGrads:
    """The vectors of a batch, computed by `compute(start, stop)` each time they are needed."""

    def __init__(self, compute: Callable[[int, int], TorchGrads], examples: int, chunk: int, layout: Layout) -> None:
        self._compute, self.examples, self._chunk, self._layout = compute, examples, chunk, layout
        self._seed = int(torch.randint(2**62, (1,)))  # of dropout: the same for two points in one round
        self._norms: dict[int, Tensor] = {}

    def _spans(self) -> list[tuple[int, int]]:
        """Chunks of almost the same size: a last chunk of a few examples would take almost as long as the others."""
        chunks = -(-self.examples // self._chunk)
        edges = [self.examples * chunk // chunks for chunk in range(chunks + 1)]
        return list(itertools.pairwise(edges))

    def part(self, start: int, stop: int) -> TorchGrads:
        """One chunk, with the same random numbers each time."""
        with RngState(self._layout.device).replay():
            seed_torch(self._seed + start)
            return self._compute(start, stop)

    def norms(self, order: int = 2) -> Tensor:
        """The l1 or l2 norm of each."""
        if order not in self._norms:
            self._norms[order] = torch.cat([self.part(*span).norms(order) for span in self._spans()])
        return self._norms[order]

    def layer_norms(self, order: int = 2) -> dict[str, Tensor]:
        """The norm of each example's gradient of each parameter."""
        parts = [self.part(*span).layer_norms(order) for span in self._spans()]
        return {name: torch.cat([part[name] for part in parts]) for name in self._layout.slices}

    def weighted_sum(self, weights: Any, out: Tensor | None = None) -> Tensor:
        """Σ wᵢ gᵢ, flat; added to `out` if that is given."""
        total = self._total(out)
        for start, stop in self._spans():
            if isinstance(weights, dict):
                own: Any = {name: torch.as_tensor(own)[start:stop] for name, own in weights.items()}
            else:
                own = torch.as_tensor(weights)[start:stop]
            self.part(start, stop).weighted_sum(own, total)
        return total

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
        """weight × Σ of the clipped vectors, in one pass over the examples."""
        total = self._total(out)
        for span in self._spans():
            self.part(*span).clipped_sum(clip, weight, total)
        return total

    def minus(self, other: "ChunkedGrads", weight: float = 1.0) -> "ChunkedGrads":
        """gᵢ − weight · g′ᵢ."""
        return self._replace(lambda start, stop: self.part(start, stop).minus(other.part(start, stop), weight))

    def scaled(self, diagonal: Tensor) -> "ChunkedGrads":
        """gᵢ ⊙ diagonal."""
        return self._replace(lambda start, stop: self.part(start, stop).scaled(diagonal))

    def shifted(self, vector: Tensor, weight: float = 1.0) -> "ChunkedGrads":
        """gᵢ + weight · vector."""
        return self._replace(lambda start, stop: self.part(start, stop).shifted(vector, weight))

    def _replace(self, compute: Callable[[int, int], TorchGrads]) -> "ChunkedGrads":
        return ChunkedGrads(compute, self.examples, self._chunk, self._layout)

    def _total(self, out: Tensor | None) -> Tensor:
        return torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._layout.device) if out is None else out
