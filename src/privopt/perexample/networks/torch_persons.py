"""Persons of a network: one vector per person, the mean of the gradients of that person's rows.

    vₚ = (1/kₚ) Σₜ gₚₜ        over the kₚ rows t of person p

One forward and one backward pass treat rows, each as one example; a model that mixes rows is refused. Then the rows of a person
become time steps of one example, so of a weight that multiplies vₚ is (1/kₚ) Σₜ δₚₜ ⊗ aₚₜ, whose norm the factors know in closed
form. Gradients of rows that were formed (biases, layers without a closed form) are added up by person. Persons with about as many
rows are computed together: time steps that a person lacks repeat one of the person's own rows with weight 0. If every layer sees
a row once (dense layers on rows), nothing is gathered: norms take the products of a person's rows with each other, and a weighted
sum of persons is one of rows, Σₚ (wₚ/kₚ) Σₜ gₚₜ.

**Guarantee** Query: vₚ, from the rows of p and public numbers only. Unit: a person, who has one vector, is drawn by one coin and
clipped once. Sensitivity: p moves Σ clipped vₚ by at most the bound, however many rows p has. Sampling and event are those of the
measurement, with persons where it says examples. A norm is not understated: rows that cancel are time steps that cancel
(`factors`). A person with a row that is not finite, or without rows, is absent. A batch is computed in pieces of whole persons,
so nobody is clipped in parts.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from privopt.errors import CompositionError
from privopt.perexample.networks.layout import FlatParameters, Layout
from privopt.perexample.networks.torch_grads import ChunkedGrads, PersonGrads, TorchGrads
from privopt.perexample.networks.torch_oracle import TorchOracle
from privopt.perexample.persons import Persons, cut_between_persons


class _OfPersons:
    """What the two oracles have of the oracle of the rows."""

    unit = "person"

    def __init__(self, rows: TorchOracle, size: int) -> None:
        self._rows, self.model, self.size = rows, rows.model, size
        self.dimension, self.layers = rows.dimension, rows.layers

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in θ."""
        return self._rows.layout

    @property
    def flat(self) -> FlatParameters:
        """θ: the model's trainable parameters as one vector, of which they become views."""
        return self._rows.flat


class TorchRowsOfPersons(_OfPersons):
    """A network on the rows of persons: (θ, rows) → one vector per row, of those that count.

    `size` is the number of all rows, which is public; rows that do not count have no vector. **Guarantee** A person has at most
    `most_rows` rows that count. What a measurement of such rows costs a person: `privopt.measure.samplers.several_rows`.
    """

    def __init__(self, rows: TorchOracle, persons: Persons, most: int) -> None:
        if int(persons.counts.max(initial=0)) > most:
            raise CompositionError(f"some person has more than {most} rows.")
        super().__init__(rows, rows.size)
        self.most_rows = most
        self._counted = np.zeros(rows.size, dtype=bool)
        self._counted[persons.rows] = True

    def __call__(self, parameters: Tensor | None, rows: Any) -> TorchGrads | ChunkedGrads:
        """The vectors of those of these rows (None: all) that count, at these parameters."""
        chosen = np.arange(self.size) if rows is None else np.asarray(rows)
        return self._rows(parameters, chosen[self._counted.take(chosen)])


class TorchPersonOracle(_OfPersons):
    """A network on the data of persons: (θ, persons) → one vector per person, from an oracle of the rows.

    >>> from torch import nn
    >>> persons = Persons.of(["a", "b", "a"], 3)
    >>> rows = TorchOracle(nn.Linear(2, 1), nn.MSELoss(), torch.ones(3, 2), torch.zeros(3, 1))
    >>> oracle = TorchPersonOracle(rows, persons)
    >>> oracle.size, oracle.unit, oracle(rows.flat.vector, None).norms().shape
    (2, 'person', torch.Size([2]))
    """

    def __init__(self, rows: TorchOracle, persons: Persons) -> None:
        super().__init__(rows, persons.size)
        self._persons = persons

    def __call__(self, parameters: Tensor | None, rows: Any) -> PersonGrads | ChunkedGrads:
        """The vectors of these persons (the rows of a round are persons here; None: all) at these parameters."""
        chosen = self._persons if rows is None else self._persons.take(np.asarray(rows))
        chunk = self._rows.chunk
        if chunk is None or len(chosen.rows) <= chunk:
            return self._of_rows(parameters, chosen)
        at = parameters if isinstance(parameters, Tensor | None) else torch.as_tensor(parameters)
        point = self.flat.vector.clone() if at is None else at.detach().clone()  # chunks may be computed again later

        def compute(start: int, stop: int) -> PersonGrads:
            return self._of_rows(point, chosen.take(np.arange(start, stop)))

        return ChunkedGrads(compute, cut_between_persons(chosen.counts, chunk), self.layout)

    def _of_rows(self, parameters: Tensor | None, chosen: Persons) -> PersonGrads:
        return self._rows.at_once(parameters, chosen.rows).of_persons(chosen.counts)
