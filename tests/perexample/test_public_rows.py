"""Public rows: batches that a round decides, and gradients that are means of each row's."""

import numpy as np
import pytest
import scipy.sparse as sp

from privopt.perexample.design import Design, Frame
from privopt.perexample.linear_oracle import LinearOracle, PublicRows, public_batches
from tests.laws.table import LOSSES

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((50, 3)) * (RNG.random((50, 3)) < 0.6)


@pytest.mark.parametrize("storage", ["dense", "centred", "csr", "dense, no frame", "csr, no frame"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_public_gradient_is_the_mean_of_each_row_s_gradient(loss: str, storage: str) -> None:
    frame = Frame(np.array([0.1, 0.2, -1.0]) if storage == "centred" else None, np.array([1.0, 2.0, 0.5]), 0.7)
    if storage.endswith("no frame"):
        frame = Frame(intercept=0.0)
    design = Design(sp.csr_array(ROWS) if storage.startswith("csr") else ROWS, frame)
    targets = RNG.integers(0, 2, 50).astype(float)
    oracle = LinearOracle(design, targets, LOSSES[loss])
    public = PublicRows(design, targets, LOSSES[loss], batch_size=12)
    theta = RNG.standard_normal(oracle.dimension)
    assert public.epoch == 4
    for round_ in (0, 3, 4, 103):
        rows = public_batches(50, 12)[round_ % 4]
        each = [oracle(theta, np.array([row])).weighted_sum(np.ones(1)) for row in rows]
        np.testing.assert_allclose(public(theta, round_), np.mean(each, axis=0), atol=1e-14)


@pytest.mark.parametrize(("size", "batch"), [(50, 12), (50, 50), (50, 64), (1, 64), (64, 1)])
def test_batches_hold_every_row_once_and_are_not_smaller_than_asked(size: int, batch: int) -> None:
    batches = public_batches(size, batch)
    assert sorted(np.concatenate(batches)) == list(range(size))
    assert all(len(rows) >= min(size, batch) for rows in batches)


def test_batches_are_shuffled_alike_every_time() -> None:
    """A resumed run sees the same ones; rows that lie sorted by class do not make batches of one class."""
    for one, other in zip(public_batches(1000, 64), public_batches(1000, 64), strict=True):
        np.testing.assert_array_equal(one, other)
        assert 0.2 < (one < 500).mean() < 0.8
