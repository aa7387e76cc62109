"""Gradients that are sums of outer products: every weight that multiplies.

gᵢ = Σₜ δᵢₜ ⊗ aᵢₜ, where t runs over time, pixels, calls of the module, or the two points of a difference. There are two ways to
compute their norms: the Gram matrices of a and δ (T² (p + q) products), or forming gᵢ (T p q products, which the weighted sum
need not repeat). The cheaper one is taken, by sizes that are public.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol, Self

import torch
from torch import Tensor

from privopt.perexample.networks.factors.factor import (
    BLOCK,
    CANCELLED,
    HUGE,
    Buffers,
    Dense,
    Factor,
    Members,
    absolutes,
    add_tensors,
    multiply_squares,
    norms_in_blocks,
    scaled_product,
    squares,
)
from privopt.perexample.networks.factors.kernels import squared_lengths_of_steps, squared_lengths_of_two, usable
from privopt.perexample.networks.factors.sums import VANISHED, Cancelled, Sum, recompute_doubtful

TRAFFIC = 24  # products that take as long as writing one element of a formed gradient, or two of Gram matrices, and reading it
KEEP = 1 << 22  # elements of formed gradients that may always be kept for the weighted sum
SHARE = 2  # … or this many times the elements of a and δ

SHORT = 32  # steps whose products a compiled loop takes faster than many small matrix products
CUT = 1 << 18  # elements of patches that are cut at a time: they fit a cache
ALIGNED = 32  # bytes: adding a product to memory with a smaller alignment takes twice as long
SMALL = 1 << 15  # elements for which that does not matter


class Source(Protocol):
    """The inputs a of Σ δ ⊗ a: a tensor, or patches that are cut when they are needed."""

    @property
    def shape(self) -> torch.Size:
        """(rows, time, width)"""
        ...

    @property
    def stored(self) -> int:
        """The number of elements in memory."""
        ...

    def block(self, start: int, stop: int, space: Tensor | None = None) -> Tensor:
        """These rows: (stop − start, time, width). They may be written into `space`."""
        ...

    def lengths(self) -> Tensor:
        """(rows,): ‖a‖ over time and width, or an upper bound of it."""
        ...

    def take(self, index: Tensor) -> Self:
        """These rows."""
        ...

    def less(self, other: Self) -> Self:
        """a − a′."""
        ...

    def contract(self, gradients: Tensor, groups: int) -> Tensor:
        """Σᵢₜ δᵢₜ ⊗ aᵢₜ for each group: (groups · q, width)."""
        ...

    def multiply(self, gradients: Tensor, start: int, stop: int) -> Tensor | None:
        """Σₜ δₜ ⊗ aₜ for each of these rows, (rows, q, width), if that is faster than by blocks."""
        ...


class Signal:
    """A source that is a tensor (rows, time, width)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def stored(self) -> int:
        return self.values.numel()

    def block(self, start: int, stop: int, space: Tensor | None = None) -> Tensor:
        return self.values if stop - start == self.values.shape[0] else self.values[start:stop]

    def lengths(self) -> Tensor:
        return torch.linalg.vector_norm(self.values, dim=(1, 2))

    def take(self, index: Tensor) -> "Signal":
        return Signal(self.values[index])

    def less(self, other: "Signal") -> "Signal":
        return Signal(self.values - other.values)

    def contract(self, gradients: Tensor, groups: int) -> Tensor:
        return contract_rows(self.values, gradients, groups)

    def multiply(self, gradients: Tensor, start: int, stop: int) -> None:
        return None


def fold_source(source: Source, members: Members, groups: int) -> Source:
    """The rows of each person as time steps. Rows are examples × groups, and become persons × groups."""
    if isinstance(source, Signal):
        return Signal(steps_of_persons(members.take(by_group(source.values, groups))))
    rows = members.rows.reshape(-1, 1) * groups + torch.arange(groups, device=members.rows.device)
    return Folded(source.take(rows.flatten()), members.steps, groups)


def by_group(values: Tensor, groups: int) -> Tensor:
    """(examples × groups, …) → (examples, groups, …)"""
    return values.reshape(-1, groups, *values.shape[1:])


def steps_of_persons(values: Tensor) -> Tensor:
    """(persons, rows, groups, time, width) → (persons × groups, rows × time, width)"""
    return values.transpose(1, 2).flatten(2, 3).flatten(0, 1)


class Folded:
    """A source whose rows are cut when they are needed, with the rows of each person as time steps."""

    def __init__(self, source: Source, steps: int, groups: int) -> None:
        self._source, self._steps, self._groups = source, steps, groups

    @property
    def shape(self) -> torch.Size:
        rows, time, width = self._source.shape
        return torch.Size((rows // self._steps, time * self._steps, width))

    @property
    def stored(self) -> int:
        return self._source.stored

    def block(self, start: int, stop: int, space: Tensor | None = None) -> Tensor:
        values = self._source.block(start * self._steps, stop * self._steps, space)
        return steps_of_persons(values.reshape(-1, self._steps, self._groups, *values.shape[1:]))

    def lengths(self) -> Tensor:
        each = self._source.lengths().view(-1, self._steps, self._groups)
        return torch.linalg.vector_norm(each, dim=1).flatten()

    def take(self, index: Tensor) -> "Folded":
        persons = torch.div(index[:: self._groups], self._groups, rounding_mode="floor").unsqueeze(1)
        each = torch.arange(self._steps * self._groups, device=index.device)
        return Folded(self._source.take((persons * len(each) + each).flatten()), self._steps, self._groups)

    def less(self, other: "Folded") -> "Folded":
        return Folded(self._source.less(other._source), self._steps, self._groups)

    def contract(self, gradients: Tensor, groups: int) -> Tensor:
        each = gradients.reshape(-1, groups, self._steps, self._source.shape[1], gradients.shape[2])
        return self._source.contract(each.transpose(1, 2).flatten(0, 2), groups)

    def multiply(self, gradients: Tensor, start: int, stop: int) -> None:
        return None


def contract_rows(inputs: Tensor, gradients: Tensor, groups: int) -> Tensor:
    """Σᵢₜ δᵢₜ ⊗ aᵢₜ for each group, where rows are examples × groups."""
    if groups == 1:
        return gradients.reshape(-1, gradients.shape[2]).T @ inputs.reshape(-1, inputs.shape[2])
    a = inputs.reshape(-1, groups, *inputs.shape[1:]).transpose(0, 1).flatten(1, 2)
    d = gradients.reshape(-1, groups, *gradients.shape[1:]).transpose(0, 1).flatten(1, 2)
    return torch.bmm(d.transpose(1, 2), a).flatten(0, 1)


def accumulate(out: Tensor, gradients: Tensor, inputs: Tensor) -> None:
    """out += δᵀ a, given δᵀ, where `out` is a part of a flat vector that may not be aligned."""
    if out.is_cpu and out.numel() > SMALL and out.data_ptr() % ALIGNED:
        out.add_(gradients @ inputs)
    else:
        out.addmm_(gradients, inputs)


@dataclass(frozen=True)
class Term:
    """δ ⊗ a, summed over time. δ is (rows, time, q); a is (rows, time, p); rows are examples × groups."""

    source: Source
    gradients: Tensor

    @property
    def time(self) -> int:
        return self.gradients.shape[1]


class Outer:
    """gᵢ = Σ over terms and time of δᵢₜ ⊗ aᵢₜ, a weight of `shape`."""

    def __init__(self, terms: Sequence[Term], shape: torch.Size, groups: int = 1) -> None:
        self.terms, self.shape, self.groups = tuple(terms), shape, groups
        self.cancelled: Cancelled | None = None
        self._formed: Tensor | None = None
        self.buffers: Buffers | None = None

    @classmethod
    def of(cls, inputs: Tensor, gradients: Tensor, shape: torch.Size) -> "Outer":
        """From a and δ of shape (examples, width) or (examples, time, width)."""
        if inputs.ndim == 2:
            inputs, gradients = inputs.unsqueeze(1), gradients.unsqueeze(1)
        return cls([Term(Signal(inputs), gradients)], shape)

    @property
    def _rows(self) -> int:
        return self.terms[0].gradients.shape[0]

    @property
    def examples(self) -> int:
        return self._rows // self.groups

    @property
    def _time(self) -> int:
        return sum(term.time for term in self.terms)

    @property
    def _sides(self) -> tuple[int, int]:
        return self.terms[0].source.shape[2], self.terms[0].gradients.shape[2]

    @property
    def elements(self) -> int:
        p, q = self._sides
        return self.groups * p * q

    def _is_rank_one(self) -> bool:
        return len(self.terms) == 1 and self._time == 1

    def _may_keep(self) -> bool:
        stored = sum(term.source.stored + term.gradients.numel() for term in self.terms)
        return self.examples * self.elements <= max(KEEP, SHARE * stored)

    def _gram_is_cheaper(self) -> bool:
        p, q = self._sides
        time = self._time
        again = 0 if self._may_keep() else time * p * q
        return time * time * (p + q + TRAFFIC) + time * p * q < p * q * (time + TRAFFIC) + again

    def squared_norms(self, diagonal: Tensor | None = None) -> Tensor:
        if diagonal is not None:
            return self._scaled_squared_norms(diagonal)
        if self._is_rank_one():
            term = self.terms[0]
            return self._over_groups(multiply_squares(squares(term.source.block(0, self._rows)), squares(term.gradients)))
        if self._formed is None and self.groups == 1 and self._time == len(self.terms):
            return self._norms_of_single_steps()
        if self._formed is None and self._gram_is_cheaper():
            return self._norms_of_few_steps() if self._is_short() else self._gram_norms()
        if self._formed is None and self._may_keep():
            self._formed = self._form(self.buffers)
        if self._formed is not None:
            return squares(self._formed)
        return self._norms_in_blocks()

    def _scaled_squared_norms(self, diagonal: Tensor) -> Tensor:
        if self._is_rank_one() and self.groups == 1:
            term = self.terms[0]
            a, d = term.source.block(0, self._rows).squeeze(1), term.gradients.squeeze(1)
            return scaled_product(d, diagonal.view(self.shape[0], -1), a)
        if self._formed is None and self._may_keep():
            self._formed = self._form(self.buffers)
        if self._formed is not None:
            return squares(self._formed * diagonal.reshape(1, -1, self._formed.shape[2]))
        return self._without_vanishing(norms_in_blocks(self, self.elements, squares, diagonal), 2, diagonal)

    def _over_groups(self, rows: Tensor) -> Tensor:
        return rows if self.groups == 1 else rows.view(-1, self.groups).sum(1)

    def _norms_of_single_steps(self) -> Tensor:
        """‖Σₖ δₖ aₖᵀ‖² = Σₖₘ ⟨aₖ, aₘ⟩ ⟨δₖ, δₘ⟩, for terms of one time step each: the two points of a difference."""
        inputs = [term.source.block(0, self._rows).squeeze(1) for term in self.terms]
        outputs = [term.gradients.squeeze(1) for term in self.terms]
        if len(self.terms) == 2 and usable(outputs[0], inputs[0]):
            values, below = squared_lengths_of_two((outputs[0], outputs[1]), (inputs[0], inputs[1]), CANCELLED)
            return values if below is None else recompute_doubtful(self, values, below, 2, None)
        own = [multiply_squares(squares(a), squares(d)) for a, d in zip(inputs, outputs, strict=True)]
        crossed = [
            torch.linalg.vecdot(inputs[k], inputs[m]) * torch.linalg.vecdot(outputs[k], outputs[m])
            for k, m in itertools.combinations(range(len(own)), 2)
        ]
        values, possible = (
            add_tensors(own).add(add_tensors(crossed), alpha=2),
            add_tensors([squared.sqrt() for squared in own]).square(),
        )
        return recompute_doubtful(self, values, values < CANCELLED * possible, 2, None)

    def _is_short(self) -> bool:
        """Whether there are only a few steps: the rows of a person."""
        source, gradients = self.terms[0].source, self.terms[0].gradients
        few = len(self.terms) == self.groups == 1 and self._time <= SHORT
        return few and isinstance(source, Signal) and usable(gradients, source.values)

    def _norms_of_few_steps(self) -> Tensor:
        source, gradients = self.terms[0].source, self.terms[0].gradients
        values, doubtful = squared_lengths_of_steps(gradients, source.block(0, self._rows), CANCELLED)
        return values if doubtful is None else recompute_doubtful(self, values, doubtful, 2, None)

    def _gram_norms(self) -> Tensor:
        p = self._sides[0]
        # Gram matrices and, if they have to be unfolded, the inputs themselves
        step = max(self.groups, BLOCK // max(1, self._time * (self._time + p)) // self.groups * self.groups)
        blocks = [self._gram_block(start, min(start + step, self._rows)) for start in range(0, self._rows, step)]
        values, possible = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        return recompute_doubtful(self, values, values < CANCELLED * possible, 2, None)

    def _gram_block(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        inputs = [term.source.block(start, stop) for term in self.terms]
        outputs = [term.gradients[start:stop] for term in self.terms]
        values, sizes = [], []
        for k, (a, d) in enumerate(zip(inputs, outputs, strict=True)):
            gram_a, gram_d = torch.bmm(a, a.transpose(1, 2)), torch.bmm(d, d.transpose(1, 2))
            own_a, own_d = gram_a.diagonal(dim1=1, dim2=2), gram_d.diagonal(dim1=1, dim2=2)
            huge = own_a.sum(1) + own_d.sum(1) > HUGE[a.dtype]
            values.append(torch.linalg.vecdot(gram_a.flatten(1), gram_d.flatten(1)).masked_fill_(huge, torch.inf))
            sizes.append((own_a * own_d).clamp_min(0).sqrt().sum(1))
            for a2, d2 in zip(inputs[:k], outputs[:k], strict=True):
                cross_a, cross_d = torch.bmm(a, a2.transpose(1, 2)), torch.bmm(d, d2.transpose(1, 2))
                values.append(2 * torch.linalg.vecdot(cross_a.flatten(1), cross_d.flatten(1)))
        return self._over_groups(add_tensors(values)), self._over_groups(add_tensors(sizes)).square()

    def _form(self, buffers: Buffers | None = None) -> Tensor:
        """(examples, groups · q, p)"""
        p, q = self._sides
        rows = self._rows
        like = self.terms[0].gradients
        formed = like.new_empty(rows, q, p) if buffers is None else buffers.lend(self, (rows, q, p), like)
        for place, term in enumerate(self.terms):
            self._add_products(term, 0, rows, formed, first=place == 0)
        return formed.view(-1, self.groups * q, p)

    def _add_products(self, term: Term, start: int, stop: int, out: Tensor, *, first: bool) -> None:
        """out += Σₜ δₜ ⊗ aₜ for each of these rows; the `first` term overwrites."""
        if (whole := term.source.multiply(term.gradients[start:stop], start, stop)) is not None:
            out.copy_(whole) if first else out.add_(whole)
            return
        step, space = stop - start, None
        if not isinstance(term.source, Signal):
            step = min(step, self._step(term))
            if self.buffers is not None:
                space = self.buffers.space(step * term.source.shape[1] * term.source.shape[2], out)
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            part = out[begin - start : end - start]
            deltas, inputs = term.gradients[begin:end].transpose(1, 2), term.source.block(begin, end, space)
            torch.bmm(deltas, inputs, out=part) if first else part.baddbmm_(deltas, inputs)

    def _step(self, term: Term) -> int:
        """The number of rows whose patches are cut at a time."""
        return max(1, CUT // max(1, term.source.shape[1] * term.source.shape[2]) // self.groups) * self.groups

    def _norms_in_blocks(self) -> Tensor:
        """Norms of gradients that are formed a few at a time and not kept."""
        p, q = self._sides
        step = min(BLOCK // max(1, p * q), *(self._step(term) for term in self.terms))
        step = max(1, step // self.groups) * self.groups  # patches are cut for complete examples
        block = self.terms[0].gradients.new_empty(step, q, p)
        parts = []
        for start in range(0, self._rows, step):
            stop = min(start + step, self._rows)
            formed = block[: stop - start]
            for place, term in enumerate(self.terms):
                self._add_products(term, start, stop, formed, first=place == 0)
            parts.append(squares(formed))
        return self._without_vanishing(self._over_groups(torch.cat(parts)), 2, None)

    def _without_vanishing(self, powers: Tensor, order: int, diagonal: Tensor | None) -> Tensor:
        """Norms of formed gradients that are not kept; those that almost cancel are formed again, and kept."""
        return recompute_doubtful(self, powers, powers < (VANISHED * self._largest(order, diagonal)).pow_(order), order, diagonal)

    def _largest(self, order: int, diagonal: Tensor | None) -> Tensor:
        """A cheaper upper bound of `term_norms`: Σₜ ‖δₜ‖ ‖aₜ‖ is at most ‖δ‖ ‖a‖."""
        p, q = self._sides
        lengths = []
        for term in self.terms:
            deltas = term.gradients
            if diagonal is not None:
                rows = diagonal.reshape(self.groups, 1, q, p).abs().amax(3)
                deltas = (deltas.view(-1, self.groups, *deltas.shape[1:]) * rows).flatten(0, 1)
            lengths.append(term.source.lengths() * torch.linalg.vector_norm(deltas, dim=(1, 2)))
        return self._over_groups(add_tensors(lengths)) * (p * q) ** (1 / order - 1 / 2)

    def term_norms(self, order: int, diagonal: Tensor | None) -> Tensor:
        parts = []
        for term in self.terms:
            inputs, deltas = term.source.block(0, self._rows), term.gradients
            if diagonal is None:
                each = torch.linalg.vector_norm(inputs, order, 2) * torch.linalg.vector_norm(deltas, order, 2)
            else:  # ‖(δ ⊗ a) ⊙ D‖² = (δ²)ᵀ D² (a²)
                matrix = diagonal.reshape(self.groups, deltas.shape[2], -1).abs().pow(order)
                through = (deltas.view(-1, self.groups, *deltas.shape[1:]).abs().pow(order) @ matrix).flatten(0, 1)
                each = torch.linalg.vecdot(through, inputs.abs().pow(order)).pow(1 / order)
            parts.append(self._over_groups(each.sum(1)))
        return add_tensors(parts)

    def absolute_norms(self, diagonal: Tensor | None = None) -> Tensor:
        if self._is_rank_one() and diagonal is None:
            term = self.terms[0]
            return self._over_groups(absolutes(term.source.block(0, self._rows)) * absolutes(term.gradients))
        return self._without_vanishing(norms_in_blocks(self, self.elements, absolutes, diagonal), 1, diagonal)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        if self._formed is not None:
            out.view(-1).addmv_(self._formed.flatten(1).T, weights)
            return
        if self.cancelled is not None:
            weights = self.cancelled.add(weights, out)
        rows = weights if self.groups == 1 else weights.repeat_interleave(self.groups)
        for term in self.terms:
            weighted = term.gradients * rows.view(-1, 1, 1)
            if self.groups == 1 and isinstance(term.source, Signal):
                a, q = term.source.values, weighted.shape[2]
                accumulate(out.view(q, -1), weighted.reshape(-1, q).T, a.reshape(-1, a.shape[2]))
            else:
                out.add_(term.source.contract(weighted, self.groups).view_as(out))

    def dots(self, vector: Tensor) -> Tensor:
        if self._formed is not None:
            return self._formed.flatten(1) @ vector.reshape(-1)
        matrix = vector.reshape(self.groups, -1, self._sides[0])
        if self.groups > 1:
            matrix = matrix.repeat(self.examples, 1, 1)  # rows are examples × groups
        parts = []
        for term in self.terms:
            inputs = term.source.block(0, self._rows)
            through = term.gradients @ matrix[0] if self.groups == 1 else torch.bmm(term.gradients, matrix)
            parts.append(self._over_groups(torch.linalg.vecdot(through.flatten(1), inputs.reshape(through.shape).flatten(1))))
        return add_tensors(parts) if self.cancelled is None else self.cancelled.replace_dots(add_tensors(parts), vector)

    def dense(self) -> Tensor:
        formed = self._form() if self._formed is None else self._formed.clone()  # a buffer is only lent
        if self.cancelled is not None and self._formed is None:
            formed.flatten(1).index_copy_(0, self.cancelled.index, self.cancelled.rows)
        return formed.view(-1, *self.shape)

    def take(self, index: Tensor) -> "Outer":
        rows = index
        if self.groups > 1:
            rows = (index.unsqueeze(1) * self.groups + torch.arange(self.groups, device=index.device)).flatten()
        taken = Outer([Term(term.source.take(rows), term.gradients[rows]) for term in self.terms], self.shape, self.groups)
        if self._formed is not None:
            taken._formed = self._formed[index]
        if self.cancelled is not None:
            taken.cancelled = self.cancelled.take(index, self.examples)
        return taken

    def minus(self, other: Factor, weight: float) -> Factor:
        if isinstance(other, Outer) and [t.time for t in self.terms] == [t.time for t in other.terms]:
            terms = []
            for mine, its in zip(self.terms, other.terms, strict=True):
                # δ₁a₁ᵀ − w δ₂a₂ᵀ = δ₁(a₁ − a₂)ᵀ + (δ₁ − w δ₂)a₂ᵀ: nothing large cancels when the points are close
                terms.append(Term(mine.source.less(its.source), mine.gradients))
                terms.append(Term(its.source, mine.gradients.sub(its.gradients, alpha=weight)))
            return Outer(terms, self.shape, self.groups)
        return Sum([self, other], [1.0, -weight])

    def plus(self, other: Factor) -> Factor:
        if isinstance(other, Outer) and other.groups == self.groups and other._sides == self._sides:
            return Outer([*self.terms, *other.terms], self.shape, self.groups)  # another call is more time steps
        if isinstance(other, Dense):
            return other.plus(self)
        return Sum([self, other], [1.0, 1.0])

    def fold(self, members: Members) -> "Outer":
        terms = []
        for term in self.terms:
            deltas = steps_of_persons(members.weighted(by_group(term.gradients, self.groups)))
            terms.append(Term(fold_source(term.source, members, self.groups), deltas))
        folded = Outer(terms, self.shape, self.groups)
        folded.buffers = self.buffers
        return folded


def add_factors(factors: Sequence[Factor]) -> Factor:
    """The sum of the factors of a parameter that was used several times; another call is more time steps."""
    if len(factors) == 1:
        return factors[0]
    total = reduce(lambda one, other: one.plus(other), factors)
    if isinstance(total, Outer) and all(isinstance(term.source, Signal) for term in total.terms):
        inputs = torch.cat([term.source.block(0, term.source.shape[0]) for term in total.terms], 1)
        return Outer([Term(Signal(inputs), torch.cat([t.gradients for t in total.terms], 1))], total.shape, total.groups)
    return total
