"""Rows of bounded length: what is too long is made shorter, what is not finite is absent, and nothing else changes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.perexample.design import Design, Frame, LimitedDesign
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial, Squared
from privopt.perexample.row_storage import Csr
from tests.problems import linear_oracle

RNG = np.random.default_rng(3)
X = RNG.standard_normal((30, 4)) * RNG.choice([0.1, 1.0, 30.0], (30, 1))
X[5], X[6, 2] = 0.0, 0.0
FRAMES = {
    "plain": Frame(intercept=0.0),
    "intercept": Frame(intercept=0.5),
    "scaled": Frame(scale=np.array([1.0, 2.0, 0.5, 3.0]), intercept=0.5),
    "centred": Frame(np.array([1.0, -2.0, 0.0, 0.5]), np.array([1.0, 2.0, 0.5, 3.0]), 0.5),
}
stores = pytest.mark.parametrize("store", [np.asarray, sp.csr_array], ids=["dense", "csr"])


def framed(matrix: Vector, frame: Frame) -> Vector:
    rows = (matrix - (0.0 if frame.centre is None else frame.centre)) / (1.0 if frame.scale is None else frame.scale)
    return np.hstack([rows, np.full((len(rows), 1), frame.intercept)]) if frame.intercept else rows


def shortened(matrix: Vector, frame: Frame, limit: float) -> Vector:
    """The obvious slow way."""
    rows = framed(matrix, frame)
    return np.array([row * min(1.0, limit / max(float(np.linalg.norm(row)), 1e-300)) for row in rows])


@stores
@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("rows", [None, np.array([7, 0, 5, 29])], ids=["all", "some"])
def test_products_are_those_of_shortened_rows(name: str, store: Callable[[Vector], Any], rows: Vector | None) -> None:
    if name == "centred" and store is sp.csr_array:
        pytest.skip("sparse rows have no centre")
    frame = FRAMES[name]
    expected = shortened(X, frame, 1.5)[slice(None) if rows is None else rows]
    batch = LimitedDesign(store(X), frame, 1.5).take(rows)
    width = expected.shape[1]
    for shape in ((width,), (3, width)):
        coefficients = RNG.standard_normal(shape)
        np.testing.assert_allclose(batch.scores(coefficients), expected @ coefficients.T, rtol=1e-9, atol=1e-12)
        weights = RNG.standard_normal((len(expected), *shape[:-1]))
        np.testing.assert_allclose(batch.weighted_sum(weights), weights.T @ expected, rtol=1e-9, atol=1e-12)
    for order in (1, 2):
        np.testing.assert_allclose(batch.norms(order), np.linalg.norm(expected, ord=order, axis=1), rtol=1e-5)
        diagonal: Vector = RNG.uniform(0.5, 2.0, (width,))
        np.testing.assert_allclose(
            batch.scaled_norms(diagonal, order), np.linalg.norm(expected * diagonal, ord=order, axis=1), rtol=1e-5
        )
    assert batch.norms(2).max() <= 1.5 * (1 + 1e-12)


def test_dense_rows_that_are_mostly_zeros_are_multiplied_by_their_entries_even_if_they_are_centred() -> None:
    matrix = np.where(RNG.random(X.shape) < 0.3, X, 0.0)
    for frame in FRAMES.values():
        design = LimitedDesign(matrix, frame, 1.5)
        assert isinstance(design.products, Csr)
        expected, batch = shortened(matrix, frame, 1.5), design.take(None)
        coefficients, weights = RNG.standard_normal(design.width), RNG.standard_normal(30)
        np.testing.assert_allclose(batch.scores(coefficients), expected @ coefficients, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(batch.weighted_sum(weights), weights @ expected, rtol=1e-9, atol=1e-12)
        diagonal: Vector = RNG.uniform(0.5, 2.0, (design.width,))
        np.testing.assert_allclose(batch.scaled_norms(diagonal, 2), np.linalg.norm(expected * diagonal, axis=1), rtol=1e-5)
    assert not isinstance(LimitedDesign(X, Frame(), 1.5).products, Csr)


@stores
def test_under_a_limit_that_no_row_exceeds_a_design_is_itself(store: Callable[[Vector], Any]) -> None:
    plain, limited = Design(store(X), Frame()), LimitedDesign(store(X), Frame(), 1e6)
    weights, coefficients = RNG.standard_normal(30), RNG.standard_normal(5)
    np.testing.assert_array_equal(plain.take(None).scores(coefficients), limited.take(None).scores(coefficients))
    np.testing.assert_array_equal(plain.take(None).weighted_sum(weights), limited.take(None).weighted_sum(weights))
    assert plain.limit == math.inf


@stores
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200, 1.7e308])
def test_a_row_that_is_not_finite_is_absent_and_a_huge_one_is_short(store: Callable[[Vector], Any], value: float) -> None:
    spoiled = X.copy()
    spoiled[3, 1] = value
    batch = LimitedDesign(store(spoiled), Frame(intercept=0.5), 1.5).take(None)
    alone = np.where(np.arange(30) == 3, 1.0, 0.0)
    moved = np.linalg.norm(batch.weighted_sum(alone))
    assert moved == (pytest.approx(1.5) if abs(value) < math.inf else 0.0)
    assert np.isfinite(batch.scores(np.ones(5))).all()
    assert np.isfinite(batch.weighted_sum(np.ones(30))).all()


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_that_limits_nothing_is_refused(limit: float) -> None:
    with pytest.raises(InputError, match="finite number > 0"):
        LimitedDesign(X, Frame(), limit)


# ---------------------------------------------------------------- the constants of a loss, for any row

LOSSES: list[Loss] = [Logistic(), Huber(0.3), Multinomial(4)]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_gradients_are_no_longer_and_change_no_faster_than_the_oracle_promises_and_come_close(loss: Loss) -> None:
    """Over a thousand pairs of points, some of them adversarial: far out, where residuals are largest, and near 0."""
    rng, limit = np.random.default_rng(0), 2.0
    matrix = rng.standard_normal((50, 3)) * 10
    targets = rng.integers(loss.outputs if loss.outputs > 1 else 2, size=50).astype(float)
    oracle = linear_oracle(matrix, targets, loss, limit=limit)
    longest = fastest = 0.0
    for _ in range(300):
        at = rng.standard_normal(oracle.dimension) * rng.choice([1e-3, 0.3, 30.0])
        to = at + rng.standard_normal(oracle.dimension) * rng.choice([1e-4, 1.0])
        one, other = oracle(at, None), oracle(to, None)
        longest = max(longest, float(one.norms(2).max()))
        fastest = max(fastest, float(one.minus(other).norms(2).max() / np.linalg.norm(at - to)))
    assert 0.95 * oracle.lipschitz <= longest <= oracle.lipschitz * (1 + 1e-9)
    assert 0.3 * oracle.smoothness <= fastest <= oracle.smoothness * (1 + 1e-6)


def test_the_constants_are_those_of_the_page() -> None:
    """L = R, β = R²/4; L = hR, β = R²; L = √2 R, β = R²/2; squared loss has no L."""
    targets = np.zeros(30)

    def constants(loss: Loss) -> tuple[float, float]:
        oracle = linear_oracle(X, targets, loss, intercept=1.0, limit=3.0)
        return oracle.lipschitz, oracle.smoothness

    assert constants(Logistic()) == (3.0, 9 / 4)
    assert constants(Huber(0.2)) == (0.2 * 3.0, 9.0)
    assert constants(Multinomial(5)) == (math.sqrt(2) * 3.0, 4.5)
    assert constants(Squared()) == (math.inf, 9.0)
    unlimited = linear_oracle(X, targets, intercept=1.0)
    assert unlimited.lipschitz == unlimited.smoothness == math.inf
