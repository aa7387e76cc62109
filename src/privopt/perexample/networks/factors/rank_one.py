"""Gradients that are one outer product: a linear layer that every example goes through once."""

import torch
from torch import Tensor

from privopt.perexample.networks.factors.factor import (
    Dense,
    Factor,
    Members,
    absolutes,
    multiply_squares,
    scaled_product,
    squares,
)
from privopt.perexample.networks.factors.kernels import squared_lengths, usable
from privopt.perexample.networks.factors.outer import Outer, Signal, Term, accumulate


class RankOne:
    """gᵢ = δᵢ ⊗ aᵢ: norms are products of norms, also under a diagonal. δ is shared with the bias, whose gradient it is."""

    def __init__(self, inputs: Tensor, gradients: Dense) -> None:
        self.inputs, self.gradients = inputs, gradients

    @property
    def examples(self) -> int:
        return self.inputs.shape[0]

    def squared_norms(self, diagonal: Tensor | None = None) -> Tensor:
        deltas, inputs = self.gradients.values, self.inputs
        if diagonal is not None:
            return scaled_product(deltas, diagonal, inputs)
        if usable(deltas, inputs):
            lengths, self.gradients.squares = squared_lengths(deltas, inputs)
            return lengths
        return multiply_squares(squares(inputs), self.gradients.squared_norms())

    def absolute_norms(self, diagonal: Tensor | None = None) -> Tensor:
        if diagonal is None:
            return absolutes(self.inputs) * self.gradients.absolute_norms()
        return torch.linalg.vecdot(self.gradients.values.abs() @ diagonal.abs(), self.inputs.abs())

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        accumulate(out, self.gradients.values.T * weights, self.inputs)

    def dots(self, vector: Tensor) -> Tensor:
        return torch.linalg.vecdot(self.gradients.values @ vector, self.inputs)

    def dense(self) -> Tensor:
        return self.gradients.values.unsqueeze(2) * self.inputs.unsqueeze(1)

    def take(self, index: Tensor) -> "RankOne":
        return RankOne(self.inputs[index], self.gradients.take(index))

    def minus(self, other: Factor, weight: float) -> Factor:
        if not isinstance(other, RankOne):
            return self._as_outer().minus(other, weight)
        change = self.gradients.minus(other.gradients, weight)
        if _equal(self.inputs, other.inputs):  # the inputs are the data: δ₁aᵀ − w δ₂aᵀ
            return RankOne(self.inputs, change)
        # δ₁(a₁ − a₂)ᵀ + (δ₁ − w δ₂)a₂ᵀ: nothing large cancels when the points are close
        moved = _term(self.inputs - other.inputs, self.gradients.values)
        return Outer([moved, _term(other.inputs, change.values)], self._shape)

    def plus(self, other: Factor) -> Factor:
        return self._as_outer().plus(other._as_outer() if isinstance(other, RankOne) else other)

    def fold(self, members: Members) -> Factor:
        return Outer.of(members.take(self.inputs), members.weighted(self.gradients.values), self._shape)

    @property
    def _shape(self) -> torch.Size:
        return torch.Size((self.gradients.values.shape[1], self.inputs.shape[1]))

    def _as_outer(self) -> Outer:
        return Outer([_term(self.inputs, self.gradients.values)], self._shape)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; their elements are not read if they share memory."""
    same_memory = one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
    return same_memory or torch.equal(one, other)


def _term(inputs: Tensor, gradients: Tensor) -> Term:
    """One time step, from rows."""
    return Term(Signal(inputs.unsqueeze(1)), gradients.unsqueeze(1))
