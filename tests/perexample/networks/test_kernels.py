"""Squared lengths of outer products: the compiled loops against the formed matrices in double precision."""

import math

import pytest
import torch
from torch import Tensor

from privopt.perexample.networks.factors.kernels import (
    squared_lengths,
    squared_lengths_of_two,
    usable,
    weighted_squares,
)

SHAPES = [(0, 3, 2), (1, 1, 1), (5, 0, 3), (7, 3, 2), (16, 33, 130)]


def formed(gradients: Tensor, inputs: Tensor) -> Tensor:
    return gradients.double().unsqueeze(2) * inputs.double().unsqueeze(1)


@pytest.mark.parametrize(("examples", "q", "p"), SHAPES)
@pytest.mark.parametrize("strided", [False, True])
def test_lengths_are_those_of_the_formed_matrices(examples: int, q: int, p: int, strided: bool) -> None:
    deltas, inputs, others, theirs = (
        torch.randn(width, examples).T if strided else torch.randn(examples, width) for width in (q, p, q, p)
    )
    outer, own = squared_lengths(deltas, inputs)
    torch.testing.assert_close(outer.double(), formed(deltas, inputs).square().sum((1, 2)), rtol=1e-6, atol=0)
    torch.testing.assert_close(own.double(), deltas.double().square().sum(1), rtol=1e-6, atol=0)
    both = formed(deltas, inputs) + formed(others, theirs)
    values, below = squared_lengths_of_two((deltas, others), (inputs, theirs), 0.0)
    torch.testing.assert_close(values.double(), both.square().sum((1, 2)), rtol=1e-6, atol=1e-30)
    assert below is None
    weights = torch.rand(p, examples).T if strided else torch.rand(examples, p)
    exact = (weights.double() * inputs.double().square()).sum(1)
    torch.testing.assert_close(weighted_squares(weights, inputs).double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1.0, 1e18])
def test_neither_tiny_nor_huge_rows_lose_anything(size: float) -> None:
    """In single precision the squares of one would be 0 and those of the other infinite, and their product lost."""
    deltas, inputs = torch.full((2, 4), size), torch.full((2, 4), 1 / size)
    torch.testing.assert_close(squared_lengths(deltas, inputs)[0], torch.full((2,), 16.0), rtol=1e-5, atol=0)
    values, _ = squared_lengths_of_two((deltas, deltas), (inputs, inputs), 0.0)
    torch.testing.assert_close(values, torch.full((2,), 64.0), rtol=1e-5, atol=0)
    found = weighted_squares(torch.full((2, 4), size), torch.full((2, 4), size**-0.5))
    torch.testing.assert_close(found, torch.full((2,), 4.0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", range(4))
def test_a_row_that_is_not_finite_has_no_finite_length_and_spoils_no_other(bad: float, where: int) -> None:
    rows = [torch.randn(3, 2) for _ in range(4)]
    rows[where][1, 1] = bad
    values, _ = squared_lengths_of_two((rows[0], rows[1]), (rows[2], rows[3]), 0.0)
    assert values.isfinite().tolist() == [True, False, True]
    if where in (0, 2):
        assert squared_lengths(rows[0], rows[2])[0].isfinite().tolist() == [True, False, True]
    if where < 2:
        assert weighted_squares(rows[0], rows[1]).isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize(("apart", "cancels"), [(0.5, False), (1e-3, True), (1e-6, True)])
def test_terms_that_nearly_cancel_are_pointed_out(apart: float, cancels: bool) -> None:
    """δ ⊗ a − (1 − apart) δ ⊗ a, whose squared length is about apart²/4 of what it could be."""
    deltas, inputs = torch.randn(3, 4), torch.randn(3, 5)
    values, below = squared_lengths_of_two((deltas, (apart - 1) * deltas), (inputs, inputs), 3e-3)
    assert (below is not None and bool(below.all())) == cancels
    exact = formed(deltas, inputs) + formed((apart - 1) * deltas, inputs)
    torch.testing.assert_close(values.double(), exact.square().sum((1, 2)), rtol=1e-3, atol=0)


def test_only_single_precision_on_the_cpu_is_for_these_loops() -> None:
    assert usable(torch.zeros(1, 1), torch.zeros(1, 1))
    assert not usable(torch.zeros(1, 1).double(), torch.zeros(1, 1).double())
    assert not usable(torch.zeros(1, 1, device="meta"), torch.zeros(1, 1, device="meta"))
