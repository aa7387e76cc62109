"""Scales: what estimated ranges make of columns that are almost always 0."""

import numpy as np
import pytest

from privopt.privacy.budget import Budget
from privopt.training.scaling import TrainingRows, find_scales
from privopt.training.session import Session


@pytest.mark.parametrize("unit", [1.0, 255.0])
def test_a_column_whose_values_are_too_rare_to_see_does_not_outweigh_the_others(unit: float) -> None:
    """Pixels: 30 that vary, and 300 at the border that are 0 but for 2 rows in a thousand."""
    rng = np.random.default_rng(0)
    X = np.hstack([rng.uniform(0, unit, (20_000, 30)), unit * (rng.random((20_000, 300)) < 0.002)])
    rows = TrainingRows(X, np.zeros(len(X)), regression=False)
    found = find_scales(rows, Session(Budget(3.0, 1e-6), len(X), seed=0, surveys=True), fit_intercept=False)
    assert found.row_norm < 8  # 30 numbers in [0, 1] and at most a few ones; it was 400 when a pixel kept its own unit
