"""Scales: a row is scaled once, by its ranges; and what estimated ranges make of columns that are almost always 0."""

import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from privopt.datasets import Encoding, Numeric
from privopt.linear_model import Ridge
from privopt.perexample.design import Design
from privopt.privacy.budget import Budget
from privopt.privacy.events import atoms
from privopt.training.scaling import Scales, TrainingRows, find_scales
from privopt.training.session import Session

RANGES = [(2.0, 7.3), (-9.1, -0.7), (0.1, 0.3), (sys.float_info.max / 2, sys.float_info.max)]


def session() -> Session:
    return Session(Budget(3.0, 1e-6), 100, seed=0, surveys=True)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("bounds", [None, 1.7])
def test_encoded_rows_are_scaled_no_further(kind: type, bounds: float | None) -> None:
    rows = kind(np.random.default_rng(0).uniform(-1, 1, (100, 4)))
    found = find_scales(TrainingRows(rows, np.zeros(100), False, bounds=bounds, encoded=True), session(), fit_intercept=False)
    assert found.frame.changes_nothing
    assert found.declared == []


def test_a_frame_and_an_encoding_put_a_range_away_from_0_on_the_same_scale() -> None:
    low, high = np.array(RANGES).T
    values = low + np.random.default_rng(0).uniform(0, 1, (100, len(RANGES))) * (high - low)
    scales = find_scales(TrainingRows(values, np.zeros(100), False, bounds=(low, high)), session(), fit_intercept=False)
    names = [f"x{place}" for place in range(len(RANGES))]
    encoding = Encoding(tuple((name, Numeric(*ends)) for name, ends in zip(names, RANGES, strict=True)))
    framed = Design(values, scales.frame).framed(np.arange(100))
    np.testing.assert_allclose(framed.times(np.eye(4)), encoding.matrix(pd.DataFrame(values, columns=names)), atol=1e-15)


@pytest.mark.parametrize("encoded", [True, False])
def test_lines_are_centred_at_a_mean_that_is_paid_for(encoded: bool) -> None:
    """Columns that are almost always 1, of which rows are √20 long, are short once they are centred."""
    X = np.where(np.random.default_rng(0).random((20_000, 20)) < 0.97, 1.0, -1.0)
    rows = TrainingRows(X, np.zeros(len(X)), regression=False, encoded=encoded)

    def scales(*, centred: bool) -> tuple[Scales, int]:
        asked = Session(Budget(1.0, 1e-6), len(X), seed=0, surveys=True)
        found = find_scales(rows, asked, fit_intercept=True, centred=centred)
        return found, sum(count for _, count in atoms(asked.ledger.event))

    (plain, asked), (centred, more) = scales(centred=False), scales(centred=True)
    assert more == asked + 1
    assert centred.frame.centre is not None
    np.testing.assert_allclose(centred.frame.centre, X.mean(axis=0), atol=0.1)
    assert centred.row_norm < 0.8 * plain.row_norm
    assert len(centred.estimated) == len(plain.estimated) + 1


def test_steps_are_no_longer_where_most_rows_are_0() -> None:
    """A step is as long as a typical row is short, and that was 2^−30 where 96 of 100 rows were 0."""
    X = (np.random.default_rng(0).random((20_000, 1)) < 0.04).astype(float)
    rows = TrainingRows(X, np.zeros(len(X)), regression=False, encoded=True)
    found = find_scales(rows, Session(Budget(1.0, 1e-6), len(X), seed=0, surveys=True), fit_intercept=True)
    assert found.row_norm == 0.5


@pytest.mark.parametrize("bounds", [None, 1.7])
def test_sparse_rows_and_rows_of_a_declared_length_keep_their_centre(bounds: float | None) -> None:
    X = np.random.default_rng(0).uniform(0, 1, (20_000, 3))
    matrix = X if bounds else sp.csr_matrix(X)
    rows = TrainingRows(matrix, np.zeros(len(X)), regression=False, bounds=bounds, encoded=True)
    budget = Session(Budget(1.0, 1e-6), len(X), seed=0, surveys=True)
    assert find_scales(rows, budget, fit_intercept=True, centred=True).frame.centre is None


@pytest.mark.parametrize("unit", [1.0, 255.0])
def test_a_column_whose_values_are_too_rare_to_see_does_not_outweigh_the_others(unit: float) -> None:
    """Pixels: 30 that vary, and 300 at the border that are 0 but for 2 rows in a thousand."""
    rng = np.random.default_rng(0)
    X = np.hstack([rng.uniform(0, unit, (20_000, 30)), unit * (rng.random((20_000, 300)) < 0.002)])
    rows = TrainingRows(X, np.zeros(len(X)), regression=False)
    found = find_scales(rows, Session(Budget(3.0, 1e-6), len(X), seed=0, surveys=True), fit_intercept=False)
    assert found.row_norm < 8  # 30 numbers in [0, 1] and at most a few ones; it was 400 when a pixel kept its own unit


@pytest.mark.parametrize("place", [0.0, 10_000.0, -10_000.0])
def test_a_target_far_from_0_is_looked_at_closely(place: float) -> None:
    """Its range is undeclared. What is far away and narrow is asked for again, and each question is paid for."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (5000, 3))
    y = place + X @ [2.0, 1.0, -1.0] + rng.normal(size=5000)
    model = Ridge(epsilon=3.0, bounds=(-1, 1), rounds=50, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.6
    statement = model.privacy_.statement
    assert statement.epsilon <= 3.0
    ((_, questions), *_) = atoms(statement.event)
    assert questions == (4 if place else 2)


def test_what_a_run_with_drawn_batches_asks_does_not_depend_on_answers() -> None:
    """Its events are not all Gaussian, so plans that cost the same each would cost more when an answer chooses among them."""
    rng = np.random.default_rng(0)
    X, noise = rng.uniform(-1, 1, (2000, 3)), rng.normal(size=2000)
    found = [
        Ridge(epsilon=3.0, bounds=(-1, 1), rounds=5, batch_size=100, random_state=0).fit(X, place + X @ [2.0, 1.0, -1.0] + noise)
        for place in (0.0, 10_000.0)
    ]
    near, far = ([event for event, _ in atoms(model.privacy_.statement.event)] for model in found)
    assert near == far
