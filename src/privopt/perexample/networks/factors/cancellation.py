"""Cancellation: gradients that are much shorter than their terms.

If terms P and −P almost cancel, the norm is that of the formed gradient. Added to a sum one by one, the terms would round away
what the sum holds already: noise, or the gradients of others. So a gradient whose norm is below `VANISHED` times the norm that
its terms could have is kept as it was formed for the norm, and is added in that form. Terms of the others are at most
C / `VANISHED` long, which float32 holds to 1e-5 C.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from privopt.perexample.networks.factors.factor import BLOCK, absolutes, squares

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
