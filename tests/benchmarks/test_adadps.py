"""The program runs on small synthetic data; the toy is the paper's, and public reviews are not among the private ones."""

import numpy as np
import pytest
from benchmarks.report import Row

from benchmarks import adadps, data

TINY = adadps.Size(1, rows=600, rounds=3)


def test_on_the_toy_adadps_is_far_below_dp_sgd() -> None:
    plain, known = adadps.toy(adadps.Size(1))
    assert _mean(known) < 0.7 * _mean(plain)


def test_the_toy_is_that_of_the_paper() -> None:
    rows, targets = adadps.toy_data()
    assert rows.shape == (1000, 500)
    assert rows[:, :50].mean() == pytest.approx(0.9, abs=0.01)
    assert rows[:, 50:].mean() == pytest.approx(0.01, abs=0.002)
    assert np.abs(targets - rows @ np.where(np.arange(500) < 50, 0.01, 1.0)).std() < 0.02


@pytest.mark.parametrize(("section", "rows"), [(adadps.paper, 6), (adadps.tuned, 11)])
def test_every_row_is_there(section: object, rows: int) -> None:
    assert callable(section)
    found = list(section(TINY))
    assert len(found) == rows
    assert all("accuracy" in row.value for row in found)


def test_public_reviews_are_held_out() -> None:
    whole, found = data.imdb_shares(600)[0], adadps.reviews(600)
    assert found.split.X.shape[0] + adadps.PUBLIC == whole.X.shape[0]
    assert found.near[0].shape[0] == found.far[0].shape[0] == adadps.PUBLIC


def _mean(row: Row) -> float:
    assert row.numbers is not None
    return float(row.numbers["mean"]["loss"])
