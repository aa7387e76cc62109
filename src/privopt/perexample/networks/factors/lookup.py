"""Gradients of an embedding: each row of δ belongs to a row of the table, and several may belong to the same."""

import torch
from torch import Tensor

from privopt.perexample.networks.factors.factor import Factor, absolutes, squares
from privopt.perexample.networks.factors.sum import Sum


class Lookup:
    """gᵢ = Σ over entries e of example i: values[e] in row ids[e] of a table of `shape`."""

    def __init__(self, owners: Tensor, ids: Tensor, values: Tensor, examples: int, shape: torch.Size) -> None:
        self.owners, self.ids, self.values, self.shape = owners, ids, values, shape
        self._examples = examples
        self._merged: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def examples(self) -> int:
        return self._examples

    def _segments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Owner, id and summed value of each (example, id) pair."""
        if self._merged is None:
            keys, order = torch.sort(self.owners * self.shape[0] + self.ids)
            pairs, counts = torch.unique_consecutive(keys, return_counts=True)
            if len(pairs) == len(keys):
                sums = self.values[order]
            else:
                sums = torch.segment_reduce(self.values[order], "sum", lengths=counts, unsafe=True)
            self._merged = torch.div(pairs, self.shape[0], rounding_mode="floor"), pairs % self.shape[0], sums
        return self._merged

    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """The entries; merged ones if norms were computed, so that sum and norms round in the same way."""
        return self._merged or (self.owners, self.ids, self.values)

    def _by_example(self, numbers: Tensor, owners: Tensor) -> Tensor:
        return numbers.new_zeros(self.examples).index_add_(0, owners, numbers)

    def squared_norms(self, diagonal: Tensor | None = None) -> Tensor:
        owners, ids, sums = self._segments()
        return self._by_example(squares(sums if diagonal is None else sums * diagonal[ids]), owners)

    def absolute_norms(self, diagonal: Tensor | None = None) -> Tensor:
        owners, ids, sums = self._segments()
        return self._by_example(absolutes(sums if diagonal is None else sums * diagonal[ids]), owners)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        owners, ids, values = self._entries()
        out.index_add_(0, ids, values * weights[owners].unsqueeze(1))

    def dots(self, vector: Tensor) -> Tensor:
        owners, ids, values = self._entries()
        return self._by_example(torch.linalg.vecdot(values, vector[ids]), owners)

    def dense(self) -> Tensor:
        owners, ids, values = self._entries()
        rows = values.new_zeros(self.examples * self.shape[0], self.shape[1])
        rows.index_add_(0, owners * self.shape[0] + ids, values)
        return rows.view(self.examples, *self.shape)

    def take(self, index: Tensor) -> "Lookup":
        owners, ids, values = self._entries()
        place = torch.full((self.examples,), -1, device=owners.device)
        place[index] = torch.arange(len(index), device=owners.device)
        owners = place[owners]
        kept = owners >= 0
        return Lookup(owners[kept], ids[kept], values[kept], len(index), self.shape)

    def minus(self, other: Factor, weight: float) -> Factor:
        if not isinstance(other, Lookup):
            return Sum([self, other], [1.0, -weight])
        if torch.equal(self.ids, other.ids) and torch.equal(self.owners, other.owners):
            return Lookup(self.owners, self.ids, self.values - weight * other.values, self.examples, self.shape)
        return self._concatenate(other, -weight)

    def plus(self, other: Factor) -> Factor:
        return self._concatenate(other, 1.0) if isinstance(other, Lookup) else Sum([self, other], [1.0, 1.0])

    def _concatenate(self, other: "Lookup", weight: float) -> "Lookup":
        owners, ids = torch.cat([self.owners, other.owners]), torch.cat([self.ids, other.ids])
        return Lookup(owners, ids, torch.cat([self.values, weight * other.values]), self.examples, self.shape)
