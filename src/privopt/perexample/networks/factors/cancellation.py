"""Gradients whose terms all but cancel.

Terms P and −P leave a small gradient, and its norm is that of the formed vector. Added to a sum one by one they would round away
what is there already: noise, or the gradients of others. So a gradient below `VANISHED` of the length that its terms could have
is kept as it was formed for the norm, and the sum takes it from there. What is not kept puts at most C / `VANISHED` into the sum
on its way, which float32 holds to 1e-5 C.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from privopt.perexample.networks.factors.factor import BLOCK, absolutes, squares

VANISHED = 1e-2


@dataclass(frozen=True)
class Cancelled:
    """Some examples, and their gradients, flat."""

    index: Tensor
    rows: Tensor

    def add(self, weights: Tensor, out: Tensor) -> Tensor:
        """out += their weighted sum. The weights that are left for the others."""
        out.view(-1).addmv_(self.rows.T, weights[self.index])
        return weights.index_fill(0, self.index, 0.0)

    def put(self, dots: Tensor, vector: Tensor) -> Tensor:
        """The dots with theirs."""
        return dots.index_copy(0, self.index, self.rows @ vector.reshape(-1))

    def take(self, index: Tensor, examples: int) -> "Cancelled":
        """Those among these examples."""
        place = torch.full((examples,), -1, device=index.device)
        place[self.index] = torch.arange(len(self.index), device=index.device)
        rows = place[index]
        found = (rows >= 0).nonzero().squeeze(1)
        return Cancelled(found, self.rows[rows[found]])


class Summed(Protocol):
    """Gradients that are sums of terms."""

    cancelled: Cancelled | None

    @property
    def numbers(self) -> int:
        """How many there are in a gradient."""
        ...

    def dense(self) -> Tensor:
        """(examples, *shape): the gradients themselves."""
        ...

    def take(self, index: Tensor) -> "Summed":
        """The gradients of these examples."""
        ...

    def sizes(self, order: int, diagonal: Tensor | None) -> Tensor:
        """Σ ‖term ⊙ diagonal‖ for each example: what the norm could be without cancellation."""
        ...


def settled(factor: Summed, powers: Tensor, doubtful: Tensor, order: int, diagonal: Tensor | None) -> Tensor:
    """‖gᵢ‖² or ‖gᵢ‖₁, formed again where that is in doubt. What all but cancels is kept."""
    if not bool(doubtful.any()):
        return powers
    index = doubtful.nonzero().squeeze(1)
    again, places, rows = [], [], []
    if factor.cancelled is not None:  # by another norm
        places.append(factor.cancelled.index)
        rows.append(factor.cancelled.rows)
    for part in torch.split(index, max(1, BLOCK // max(1, factor.numbers))):
        few = factor.take(part)
        formed = few.dense()
        scaled = formed if diagonal is None else formed * diagonal
        again.append(squares(scaled) if order == 2 else absolutes(scaled))
        vanished = again[-1] < (VANISHED * few.sizes(order, diagonal)).pow(order)
        if factor.cancelled is not None:
            vanished &= ~torch.isin(part, factor.cancelled.index)
        places.append(part[vanished])
        rows.append(formed.flatten(1)[vanished])
    found = Cancelled(torch.cat(places), torch.cat(rows))
    factor.cancelled = found if len(found.index) else None
    return powers.index_copy(0, index, torch.cat(again))
