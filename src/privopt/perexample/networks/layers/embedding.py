"""nn.Embedding and nn.EmbeddingBag (sum and mean).

Each row of δ belongs to a row of the table, and several may belong to the same.
"""

import itertools

import torch
from torch import Tensor, nn

from privopt.perexample.networks.factors.factor import Factor, Members, absolutes, squares
from privopt.perexample.networks.factors.outer import Outer, Signal
from privopt.perexample.networks.factors.rank_one import RankOne
from privopt.perexample.networks.factors.sums import Sum
from privopt.perexample.networks.tape import NamedFactors, Site
from privopt.perexample.networks.unsupported import UnsupportedLayer


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

    def inner(self, other: Factor) -> Tensor | None:
        """⟨gᵢ, g′ᵢ⟩ with Σₜ δₜ ⊗ aₜ of the same table: Σₑₜ δₜ[idₑ] ⟨valueₑ, aₜ⟩; None for another kind of factor."""
        if isinstance(other, RankOne):
            inputs, deltas = other.inputs.unsqueeze(1), other.gradients.values.unsqueeze(1)
        elif isinstance(other, Outer) and other.groups == len(other.terms) == 1 and isinstance(other.terms[0].source, Signal):
            inputs, deltas = other.terms[0].source.values, other.terms[0].gradients
        else:
            return None
        owners, ids, values = self._segments()
        bounds = torch.searchsorted(owners, torch.arange(self.examples + 1, device=owners.device)).tolist()
        found = [
            torch.sum((values[start:stop] @ inputs[i].T) * deltas[i][:, ids[start:stop]].T)
            for i, (start, stop) in enumerate(itertools.pairwise(bounds))
        ]
        return torch.stack(found) if found else values.new_zeros(0)

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

    def fold(self, members: Members) -> "Lookup":
        """Entries go to their person; those of rows that are not of these persons are left out."""
        owners, ids, values = self._entries()
        kept = members.weights.flatten() != 0
        rows, persons = members.rows.flatten()[kept], torch.arange(members.persons, device=ids.device)
        place = torch.full((self.examples,), -1, device=ids.device)
        place[rows] = persons.repeat_interleave(members.steps)[kept]
        weights = values.new_zeros(self.examples)
        weights[rows] = members.weights.flatten()[kept].to(values.dtype)
        inside = place[owners] >= 0
        owners, ids, values = owners[inside], ids[inside], values[inside]
        return Lookup(place[owners], ids, values * weights[owners].unsqueeze(1), members.persons, self.shape)

    def _concatenate(self, other: "Lookup", weight: float) -> "Lookup":
        owners, ids = torch.cat([self.owners, other.owners]), torch.cat([self.ids, other.ids])
        return Lookup(owners, ids, torch.cat([self.values, weight * other.values]), self.examples, self.shape)


def embedding_factors(module: nn.Embedding, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """Each δ belongs to the row of its id."""
    _check(module, site)
    if not module.weight.requires_grad:
        return
    ids, deltas = site.examples_first(inputs[0]), site.examples_first(gradients)
    yield "weight", lookup_factor(ids, deltas, module.weight.shape, module.padding_idx)


def lookup_factor(ids: Tensor, gradients: Tensor, shape: torch.Size, padding: int | None) -> Lookup:
    """Each δ belongs to the row of its id; examples come first."""
    owners = torch.arange(len(ids), device=ids.device).repeat_interleave(ids[0].numel())
    return _without_padding(shape, padding, owners, ids.reshape(-1), gradients.reshape(len(owners), -1), len(ids))


def embedding_bag_factors(module: nn.EmbeddingBag, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """Each bag's δ belongs to the rows of all its ids."""
    _check(module, site)
    if not module.weight.requires_grad:
        return
    ids = inputs[0]
    offsets = inputs[1] if len(inputs) > 1 and ids.ndim == 1 else None
    weights = inputs[-1] if len(inputs) > 1 and inputs[-1].is_floating_point() else None
    if ids.ndim == 2:
        counts = torch.full((ids.shape[0],), ids.shape[1], device=ids.device)
        ids = ids.flatten()
    else:
        assert offsets is not None  # torch has checked it
        ends = offsets[1:] if module.include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([ids.numel()])])
        counts = ends - offsets[: len(ends)]
    bags = torch.arange(len(counts), device=ids.device).repeat_interleave(counts)
    if module.mode == "mean":
        if module.padding_idx is not None:
            counts = counts - torch.zeros_like(counts).index_add_(0, bags, torch.eq(ids, module.padding_idx).to(counts.dtype))
        gradients = gradients / counts.clamp_min(1).unsqueeze(1)
    deltas = gradients[bags]
    if weights is not None:
        deltas = deltas * weights.reshape(-1, 1)
    site.examples_first(gradients)
    owners = torch.div(bags, max(1, len(counts) // max(1, site.examples)), rounding_mode="floor")
    yield "weight", _without_padding(module.weight.shape, module.padding_idx, owners, ids, deltas, site.examples)


def _without_padding(
    shape: torch.Size, padding: int | None, owners: Tensor, ids: Tensor, deltas: Tensor, examples: int
) -> Lookup:
    if padding is not None:
        real = ids != padding
        owners, ids, deltas = owners[real], ids[real], deltas[real]
    return Lookup(owners, ids, deltas, examples, shape)


def _check(module: nn.Embedding | nn.EmbeddingBag, site: Site) -> None:
    for setting, remedy in (("scale_grad_by_freq", "False"), ("max_norm", "None")):
        if getattr(module, setting):
            raise UnsupportedLayer(
                f"{site.name} ({site.kind}) has {setting}, which makes one example's gradient depend on the others. "
                f"Use {setting}={remedy}."
            )
