"""Gradients plus a public vector, which is the same for all examples."""

import torch
from torch import Tensor

from privopt.perexample.torch.factors.cancelled import VANISHED, Cancelled, settled
from privopt.perexample.torch.factors.factor import Factor, absolutes, in_blocks

DOUBTFUL = 1e-2  # of the largest possible squared norm: below it rounding would show, and the vectors are formed


class Shifted:
    """gᵢ ⊙ diagonal + shift: its norms, and those vectors that all but cancel."""

    def __init__(self, part: Factor, diagonal: Tensor | None, shift: Tensor) -> None:
        self.part, self.diagonal, self.shift = part, diagonal, shift
        self.cancelled: Cancelled | None = None

    @property
    def examples(self) -> int:
        return self.part.examples

    @property
    def numbers(self) -> int:
        return self.shift.numel()

    def squared_norms(self) -> Tensor:
        own, constant = self.part.squared_norms(self.diagonal), self.shift.square().sum()
        dots = self.part.dots(self.shift if self.diagonal is None else self.shift * self.diagonal)
        powers, most = own + 2 * dots + constant, (own.sqrt() + constant.sqrt()).square()
        return settled(self, powers, powers < DOUBTFUL * most, 2, None)

    def absolute_norms(self) -> Tensor:
        sizes = self.sizes(1, None)
        powers = in_blocks(self, self.numbers, absolutes, None)
        return settled(self, powers, powers < VANISHED * sizes, 1, None)

    def sizes(self, order: int, diagonal: Tensor | None) -> Tensor:
        assert diagonal is None  # it has its own
        norms = self.part.squared_norms(self.diagonal).sqrt() if order == 2 else self.part.absolute_norms(self.diagonal)
        return norms + torch.linalg.vector_norm(self.shift, order)

    def dense(self) -> Tensor:
        rows = self.part.dense()
        return (rows if self.diagonal is None else rows * self.diagonal) + self.shift

    def take(self, index: Tensor) -> "Shifted":
        return Shifted(self.part.take(index), self.diagonal, self.shift)
