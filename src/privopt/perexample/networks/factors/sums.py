"""Sums: of factors of different kinds, and of a factor and a public vector; and gradients that are much shorter than their terms.

If terms P and −P almost cancel, the norm is that of the formed gradient. Added to a sum one by one, the terms would round away
what the sum holds already: noise, or the gradients of others. So a gradient whose norm is below `VANISHED` times the norm that
its terms could have is kept as it was formed for the norm, and is added in that form. Terms of the others are at most
C / `VANISHED` long, which float32 holds to 1e-5 C.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from privopt.perexample.networks.factors.factor import (
    BLOCK,
    CANCELLED,
    Factor,
    Members,
    absolutes,
    add_tensors,
    norms_in_blocks,
    squares,
)

# ---------------------------------------------------------------- cancellation


VANISHED = 1e-2


@dataclass(frozen=True)
class Cancelled:
    """The examples whose gradients were formed, and these gradients, flat."""

    index: Tensor
    rows: Tensor

    def add(self, weights: Tensor, out: Tensor) -> Tensor:
        """out += their weighted sum. Returns the weights with 0 for these examples."""
        out.view(-1).addmv_(self.rows.T, weights[self.index])
        return weights.index_fill(0, self.index, 0.0)

    def replace_dots(self, dots: Tensor, vector: Tensor) -> Tensor:
        """The dot products, with those of these examples replaced."""
        return dots.index_copy(0, self.index, self.rows @ vector.reshape(-1))

    def take(self, index: Tensor, examples: int) -> "Cancelled":
        """The formed gradients of these examples."""
        place = torch.full((examples,), -1, device=index.device)
        place[self.index] = torch.arange(len(self.index), device=index.device)
        rows = place[index]
        found = (rows >= 0).nonzero().squeeze(1)
        return Cancelled(found, self.rows[rows[found]])


class SumOfTerms(Protocol):
    """Gradients that are sums of terms."""

    cancelled: Cancelled | None

    @property
    def elements(self) -> int:
        """The number of elements of one gradient."""
        ...

    def dense(self) -> Tensor:
        """(examples, *shape): the gradients themselves."""
        ...

    def take(self, index: Tensor) -> "SumOfTerms":
        """The gradients of these examples."""
        ...

    def term_norms(self, order: int, diagonal: Tensor | None) -> Tensor:
        """Σ ‖term ⊙ diagonal‖ for each example: the largest norm that the terms could have."""
        ...


def recompute_doubtful(factor: SumOfTerms, powers: Tensor, doubtful: Tensor, order: int, diagonal: Tensor | None) -> Tensor:
    """‖gᵢ‖² or ‖gᵢ‖₁, from formed gradients where `doubtful`. Gradients that almost cancel are kept in `factor.cancelled`."""
    if not bool(doubtful.any()):
        return powers
    index = doubtful.nonzero().squeeze(1)
    recomputed, places, rows = [], [], []
    if factor.cancelled is not None:  # from the norm of another order
        places.append(factor.cancelled.index)
        rows.append(factor.cancelled.rows)
    for part in torch.split(index, max(1, BLOCK // max(1, factor.elements))):
        few = factor.take(part)
        formed = few.dense()
        scaled = formed if diagonal is None else formed * diagonal
        recomputed.append(squares(scaled) if order == 2 else absolutes(scaled))
        vanished = recomputed[-1] < (VANISHED * few.term_norms(order, diagonal)).pow(order)
        if factor.cancelled is not None:
            vanished &= ~torch.isin(part, factor.cancelled.index)
        places.append(part[vanished])
        rows.append(formed.flatten(1)[vanished])
    found = Cancelled(torch.cat(places), torch.cat(rows))
    factor.cancelled = found if len(found.index) else None
    return powers.index_copy(0, index, torch.cat(recomputed))


# ---------------------------------------------------------------- sums


class Sum:
    """gᵢ = Σₖ scaleₖ · gᵢ⁽ᵏ⁾, for a parameter that is used in different ways; formed a few examples at a time for the norms."""

    def __init__(self, parts: Sequence[Factor], scales: Sequence[float]) -> None:
        self.parts, self.scales = tuple(parts), tuple(scales)
        self.cancelled: Cancelled | None = None

    @property
    def examples(self) -> int:
        return self.parts[0].examples

    @property
    def elements(self) -> int:
        return self.take(torch.arange(1)).dense().numel() if self.examples else 0

    def squared_norms(self, diagonal: Tensor | None = None) -> Tensor:
        if diagonal is None and (crossed := self._crossed()) is not None:
            own = [part.squared_norms() for part in self.parts]
            values = add_tensors([scale**2 * square for square, scale in zip(own, self.scales, strict=True)]) + crossed
            possible = add_tensors([abs(scale) * square.sqrt() for square, scale in zip(own, self.scales, strict=True)])
            return recompute_doubtful(self, values, values < CANCELLED * possible.square_(), 2, None)
        sizes = self.term_norms(2, diagonal)
        powers = norms_in_blocks(self, self.elements, squares, diagonal)
        return recompute_doubtful(self, powers, powers < (VANISHED * sizes).square_(), 2, diagonal)

    def _crossed(self) -> Tensor | None:
        """2 ⟨s₀ gᵢ⁰, s₁ gᵢ¹⟩ of two parts that need not be formed for it: a table's lookup and a product with the table."""
        if len(self.parts) != 2:
            return None
        for one, other in (self.parts, self.parts[::-1]):
            if (multiply := getattr(one, "inner", None)) and (found := multiply(other)) is not None:
                return 2 * self.scales[0] * self.scales[1] * found
        return None

    def absolute_norms(self, diagonal: Tensor | None = None) -> Tensor:
        sizes = self.term_norms(1, diagonal)
        powers = norms_in_blocks(self, self.elements, absolutes, diagonal)
        return recompute_doubtful(self, powers, powers < VANISHED * sizes, 1, diagonal)

    def term_norms(self, order: int, diagonal: Tensor | None) -> Tensor:
        if order == 2:
            norms = [part.squared_norms(diagonal).sqrt() for part in self.parts]
        else:
            norms = [part.absolute_norms(diagonal) for part in self.parts]
        return add_tensors([abs(scale) * norm for norm, scale in zip(norms, self.scales, strict=True)])

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        if self.cancelled is not None:
            weights = self.cancelled.add(weights, out)
        for part, scale in zip(self.parts, self.scales, strict=True):
            part.add_weighted_sum(scale * weights, out)

    def dots(self, vector: Tensor) -> Tensor:
        found = add_tensors([scale * part.dots(vector) for part, scale in zip(self.parts, self.scales, strict=True)])
        return found if self.cancelled is None else self.cancelled.replace_dots(found, vector)

    def dense(self) -> Tensor:
        total = self.scales[0] * self.parts[0].dense()
        for part, scale in zip(self.parts[1:], self.scales[1:], strict=True):
            total = total + scale * part.dense().view_as(total)
        return total

    def take(self, index: Tensor) -> "Sum":
        taken = Sum([part.take(index) for part in self.parts], self.scales)
        if self.cancelled is not None:
            taken.cancelled = self.cancelled.take(index, self.examples)
        return taken

    def minus(self, other: Factor, weight: float) -> Factor:
        if isinstance(other, Sum) and self.scales == other.scales and len(self.parts) == len(other.parts):
            return Sum([a.minus(b, weight) for a, b in zip(self.parts, other.parts, strict=True)], self.scales)
        return Sum([*self.parts, other], [*self.scales, -weight])

    def plus(self, other: Factor) -> Factor:
        for place, part in enumerate(self.parts):
            if type(part) is type(other) and self.scales[place] == 1.0:
                return Sum([*self.parts[:place], part.plus(other), *self.parts[place + 1 :]], self.scales)
        return Sum([*self.parts, other], [*self.scales, 1.0])

    def fold(self, members: Members) -> "Sum":
        return Sum([part.fold(members) for part in self.parts], self.scales)


DOUBTFUL = 1e-2  # share of the largest possible squared norm, below which rounding would show and vectors are formed


class Shifted:
    """gᵢ ⊙ diagonal + shift: its norms, and those vectors that almost cancel."""

    def __init__(self, part: Factor, diagonal: Tensor | None, shift: Tensor) -> None:
        self.part, self.diagonal, self.shift = part, diagonal, shift
        self.cancelled: Cancelled | None = None

    @property
    def examples(self) -> int:
        return self.part.examples

    @property
    def elements(self) -> int:
        return self.shift.numel()

    def squared_norms(self) -> Tensor:
        own, constant = self.part.squared_norms(self.diagonal), self.shift.square().sum()
        dots = self.part.dots(self.shift if self.diagonal is None else self.shift * self.diagonal)
        powers, most = own + 2 * dots + constant, (own.sqrt() + constant.sqrt()).square()
        return recompute_doubtful(self, powers, powers < DOUBTFUL * most, 2, None)

    def absolute_norms(self) -> Tensor:
        sizes = self.term_norms(1, None)
        powers = norms_in_blocks(self, self.elements, absolutes, None)
        return recompute_doubtful(self, powers, powers < VANISHED * sizes, 1, None)

    def term_norms(self, order: int, diagonal: Tensor | None) -> Tensor:
        assert diagonal is None  # `self.diagonal` is part of the vectors
        norms = self.part.squared_norms(self.diagonal).sqrt() if order == 2 else self.part.absolute_norms(self.diagonal)
        return norms + torch.linalg.vector_norm(self.shift, order)

    def dense(self) -> Tensor:
        rows = self.part.dense()
        return (rows if self.diagonal is None else rows * self.diagonal) + self.shift

    def take(self, index: Tensor) -> "Shifted":
        return Shifted(self.part.take(index), self.diagonal, self.shift)
