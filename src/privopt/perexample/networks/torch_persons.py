"""Persons of a network: one vector per person, the mean of the gradients of that person's rows.

    vₚ = (1/kₚ) Σₜ gₚₜ        over the kₚ rows t of person p

One forward and one backward pass treat rows, each as one example; a model that mixes rows is refused. Then the rows of a person
become time steps of one example, so of a weight that multiplies vₚ is (1/kₚ) Σₜ δₚₜ ⊗ aₚₜ, whose norm the factors know in closed
form. Gradients of rows that were formed (biases, layers without a closed form) are added up by person. Persons with about as many
rows are computed together: time steps that a person lacks repeat one of the person's own rows with weight 0.

**Guarantee** Query: vₚ, from the rows of p and public numbers only. Unit: a person, who has one vector, is drawn by one coin and
clipped once. Sensitivity: p moves Σ clipped vₚ by at most the bound, however many rows p has. Sampling and event are those of the
measurement, with persons where it says examples. A norm is not understated: rows that cancel are time steps that cancel
(`factors`). A person with a row that is not finite, or without rows, is absent. A batch is computed in pieces of whole persons,
so nobody is clipped in parts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privopt.errors import CompositionError
from privopt.perexample.grads import ClipFactors, Vector
from privopt.perexample.networks.factors.factor import Members
from privopt.perexample.networks.layout import FlatParameters, Layout
from privopt.perexample.networks.torch_grads import ChunkedGrads, TorchGrads
from privopt.perexample.networks.torch_oracle import TorchOracle
from privopt.perexample.persons import Persons, cut_between_persons

STEPS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])  # persons with so many rows, or a few less, are computed together


class PersonGrads:
    """vₚ of each person, in parts: persons with about as many rows together. Not private: these are raw gradients."""

    def __init__(self, parts: Sequence[tuple[Tensor, TorchGrads]], examples: int, layout: Layout) -> None:
        self._parts, self.examples, self._layout = parts, examples, layout

    @classmethod
    def of_rows(cls, grads: TorchGrads, counts: Vector, layout: Layout) -> "PersonGrads":
        """From the gradients of rows, which stand one person after another, so many each."""
        if int(counts.sum()) != grads.examples:
            raise CompositionError(f"the persons have {int(counts.sum())} rows, but there are gradients of {grads.examples}.")
        starts, parts = np.cumsum(counts) - counts, []
        for steps, places in _alike(counts):
            each = np.arange(steps)
            own = each < counts[places, None]
            rows = torch.from_numpy(starts[places, None] + np.where(own, each, 0)).to(layout.device)
            weights = torch.from_numpy(own / counts[places, None]).to(layout.device, layout.dtype)
            parts.append((torch.from_numpy(places).to(layout.device), grads.fold(Members(rows, weights))))
        return cls(parts, len(counts), layout)

    def norms(self, order: int = 2) -> Tensor:
        """The l1 or l2 norm of each; infinite for a person without rows."""
        return self._in_place([part.norms(order) for _, part in self._parts])

    def layer_norms(self, order: int = 2) -> dict[str, Tensor]:
        """The norm of each person's vector by parameter."""
        found = [part.layer_norms(order) for _, part in self._parts]
        return {name: self._in_place([norms[name] for norms in found]) for name in self._layout.slices}

    def weighted_sum(self, weights: Any, out: Tensor | None = None) -> Tensor:
        """Σ wₚ vₚ, flat; added to `out` if that is given."""
        total = self._layout.zeros() if out is None else out
        for places, part in self._parts:
            if isinstance(weights, dict):
                own: Any = {name: torch.as_tensor(each)[places] for name, each in weights.items()}
            else:
                own = torch.as_tensor(weights)[places]
            part.weighted_sum(own, total)
        return total

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
        """weight × Σ of the clipped vectors; each parameter is a layer."""
        total = self._layout.zeros() if out is None else out
        for _, part in self._parts:
            part.clipped_sum(clip, weight, total)
        return total

    def count_within(self, bound: float) -> int:
        """How many vectors have an l2 norm of at most `bound`."""
        return sum(part.count_within(bound) for _, part in self._parts)

    def minus(self, other: "PersonGrads", weight: float = 1.0) -> "PersonGrads":
        """vₚ − weight · v′ₚ for the same persons at another point."""
        pairs = zip(self._parts, other._parts, strict=True)
        return self._replace([(places, part.minus(its, weight)) for (places, part), (_, its) in pairs])

    def scaled(self, diagonal: Tensor) -> "PersonGrads":
        """vₚ ⊙ diagonal."""
        return self._replace([(places, part.scaled(diagonal)) for places, part in self._parts])

    def shifted(self, vector: Tensor, weight: float = 1.0) -> "PersonGrads":
        """vₚ + weight · vector."""
        return self._replace([(places, part.shifted(vector, weight)) for places, part in self._parts])

    def _in_place(self, found: Sequence[Tensor]) -> Tensor:
        norms = torch.full((self.examples,), torch.inf, dtype=self._layout.dtype, device=self._layout.device)
        for (places, _), own in zip(self._parts, found, strict=True):
            norms[places] = own
        return norms

    def _replace(self, parts: Sequence[tuple[Tensor, TorchGrads]]) -> "PersonGrads":
        return PersonGrads(parts, self.examples, self._layout)


def _alike(counts: Vector) -> Iterator[tuple[int, Vector]]:
    """The places of persons with about as many rows, and how many steps those take; not of persons without rows."""
    ladder = STEPS if counts.max(initial=0) <= STEPS[-1] else np.union1d(STEPS, counts)
    steps = ladder.take(ladder.searchsorted(counts)) * (counts > 0)
    for length in np.unique(steps[steps > 0]):
        yield int(length), np.flatnonzero(steps == length)


class TorchPersonOracle:
    """A network on the data of persons: (θ, persons) → one vector per person, from an oracle of the rows.

    >>> from torch import nn
    >>> persons = Persons.of(["a", "b", "a"], 3)
    >>> rows = TorchOracle(nn.Linear(2, 1), nn.MSELoss(), torch.ones(3, 2), torch.zeros(3, 1))
    >>> oracle = TorchPersonOracle(rows, persons)
    >>> oracle.size, oracle.unit, oracle(rows.flat.vector, None).norms().shape
    (2, 'person', torch.Size([2]))
    """

    unit = "person"

    def __init__(self, rows: TorchOracle, persons: Persons) -> None:
        self._rows, self._persons, self.model = rows, persons, rows.model
        self.size, self.dimension, self.layers = persons.size, rows.dimension, rows.layers

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in θ."""
        return self._rows.layout

    @property
    def flat(self) -> FlatParameters:
        """θ: the model's trainable parameters as one vector, of which they become views."""
        return self._rows.flat

    def __call__(self, parameters: Tensor | None, persons: Any) -> PersonGrads | ChunkedGrads:
        """The vectors of these persons (None: all) at these parameters (None: the current ones)."""
        chosen = self._persons if persons is None else self._persons.take(np.asarray(persons))
        chunk = self._rows.chunk
        if chunk is None or len(chosen.rows) <= chunk:
            return self._of_rows(parameters, chosen)
        at = parameters if isinstance(parameters, Tensor | None) else torch.as_tensor(parameters)
        point = self.flat.vector.clone() if at is None else at.detach().clone()  # chunks may be computed again later

        def compute(start: int, stop: int) -> PersonGrads:
            return self._of_rows(point, chosen.take(np.arange(start, stop)))

        return ChunkedGrads(compute, cut_between_persons(chosen.counts, chunk), self.layout)

    def _of_rows(self, parameters: Tensor | None, chosen: Persons) -> PersonGrads:
        grads = self._rows.at_once(parameters, chosen.rows)
        return PersonGrads.of_rows(grads, chosen.counts, self.layout)
