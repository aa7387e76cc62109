"""Queries in closed form on linear models: differences, preconditioning and shifts equal vectors that are formed one by one."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from privopt.errors import CompositionError
from privopt.measure.clips import l2, l2_moved
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient, gradient_difference, preconditioned_gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Rows, Vector
from privopt.perexample.linear_oracle import LinearGrads, LinearOracle
from privopt.state import Known, PublicState
from tests.laws.checks import check_bounded
from tests.laws.table import LOSSES

SIZE, WIDTH = 6, 4
STORAGES = ["dense", "centred", "csr"]


def oracle(loss: str, storage: str, seed: int, keep: Any = slice(None)) -> LinearOracle:
    rng = np.random.default_rng(seed)
    matrix = np.maximum(rng.standard_normal((SIZE, WIDTH)), 0.0)[keep]
    centre = rng.standard_normal(WIDTH) if storage == "centred" else None
    frame = Frame(centre, rng.uniform(0.1, 2.0, WIDTH), 0.5)
    targets = rng.integers(0, 2, SIZE).astype(float)[keep]
    return LinearOracle(Design(sp.csr_array(matrix) if storage == "csr" else matrix, frame), targets, LOSSES[loss])


def formed(grads: LinearGrads, count: int) -> Vector:
    """The vectors, one at a time."""
    return np.array([grads.weighted_sum(row) for row in np.eye(count)])


@pytest.mark.parametrize("rows", [None, np.array([1, 3, 4])], ids=["all", "some"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", LOSSES)
@given(st.integers(0, 1000))
def test_differences_scales_and_shifts_equal_formed_vectors(loss: str, storage: str, rows: Rows, seed: int) -> None:
    model, rng = oracle(loss, storage, seed), np.random.default_rng(seed + 1)
    here, there, shift = rng.standard_normal((3, model.dimension))
    diagonal, count = rng.uniform(0.0, 3.0, model.dimension), SIZE if rows is None else len(rows)
    one, other = model(here, rows), model(there, rows)
    combined = one.minus(other, 0.7).scaled(diagonal).shifted(shift, 0.3)
    expected = (formed(one, count) - 0.7 * formed(other, count)) * diagonal + 0.3 * shift
    np.testing.assert_allclose(formed(combined, count), expected, atol=1e-12)
    np.testing.assert_allclose(combined.norms(2), np.linalg.norm(expected, axis=1), rtol=1e-5)
    for order in (1, 2):
        scaled = formed(one, count) * diagonal
        np.testing.assert_allclose(one.scaled(diagonal).norms(order), np.linalg.norm(scaled, ord=order, axis=1), rtol=1e-5)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_is_the_derivative_of_the_losses(loss: str, storage: str) -> None:
    model = oracle(loss, storage, 3)
    here = np.random.default_rng(0).standard_normal(model.dimension)
    for rows in (None, np.array([2, 5])):
        grads = formed(model(here, rows), SIZE if rows is None else 2)
        for axis, unit in enumerate(1e-6 * np.eye(model.dimension)):
            slope = (model.losses(here + unit, rows) - model.losses(here - unit, rows)) / 2e-6
            np.testing.assert_allclose(slope, grads[:, axis], atol=1e-7)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_difference_of_points_that_almost_agree_is_exact(storage: str) -> None:
    model = oracle("Logistic", storage, 4)
    here = np.random.default_rng(0).standard_normal(model.dimension)
    there = here + 1e-6 * np.random.default_rng(1).standard_normal(model.dimension)
    at = PublicState(here, there)
    norms = gradient_difference()(model, None, at).norms(2)
    exact = formed(model(here, None), SIZE) - formed(model(there, None), SIZE)
    np.testing.assert_allclose(norms, np.linalg.norm(exact, axis=1), rtol=1e-5)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", LOSSES)
@given(st.integers(0, 1000), st.sampled_from([1e-3, 0.5, 1e3]))
def test_removing_one_example_moves_every_query_by_at_most_the_bound(loss: str, storage: str, seed: int, bound: float) -> None:
    whole, rng = oracle(loss, storage, seed), np.random.default_rng(seed + 1)
    here, there, momentum = rng.standard_normal((3, whole.dimension))
    at = PublicState(here, there, Known(scale=rng.uniform(1e-4, 2.0, whole.dimension), momentum=momentum))
    others = [oracle(loss, storage, seed, np.arange(SIZE) != row) for row in range(SIZE)]
    for query in (gradient_difference(), preconditioned_gradient(), preconditioned_gradient(0.3)):
        check_bounded(l2(bound), query(whole, None, at), [query(other, None, at) for other in others])


def test_a_clip_by_distance_is_an_l2_clip_of_what_the_iterate_moved() -> None:
    at = PublicState(np.array([3.0, 4.0]), np.zeros(2))
    assert l2_moved(0.1).at(at) == l2(0.5)
    assert l2_moved(0.1).at(PublicState(at.current, at.current)) == l2(0.0)
    assert l2_moved(0.1, most=0.3).at(at) == l2(0.3)
    assert l2_moved(0.1, most=0.7).at(at) == l2(0.5)
    with pytest.raises(CompositionError, match="most=-1"):
        l2_moved(0.1, most=-1.0)
    with pytest.raises(CompositionError, match="how far the iterate moved"):
        oracle("Logistic", "dense", 0)(np.zeros(WIDTH + 1), None).clipped_sum(l2_moved(0.1))


def test_noise_under_a_clip_by_distance_is_relative_to_what_the_iterate_moved() -> None:
    measurement = Measurement(full_batch(), [gradient_difference() @ l2_moved(2.0)], gaussian(3.0))
    model = oracle("Logistic", "dense", 0)
    here = np.zeros(model.dimension)
    drawn = []
    for distance in (1.0, 10.0):
        at = PublicState(here, here + distance * np.eye(model.dimension)[0])
        plain = Measurement(full_batch(), [gradient_difference() @ l2(2.0 * distance)], gaussian(0.0))
        noise = measurement.measure(model, at, 0, generator(1)).value - plain.measure(model, at, 0, generator(1)).value
        drawn.append(noise * SIZE / (3.0 * 2.0 * distance))
    np.testing.assert_allclose(drawn[0], drawn[1])
    np.testing.assert_allclose(drawn[0], generator(1).standard_normal(model.dimension))


def test_several_terms_visit_each_point_once() -> None:
    visits: list[int] = []

    class Counted(LinearOracle):
        def __call__(self, parameters: Vector, rows: Rows) -> LinearGrads:
            visits.append(id(parameters))
            return super().__call__(parameters, rows)

    model = oracle("Logistic", "dense", 0)
    counted = Counted(model._design, model._targets, model._loss)
    terms = [0.1 * (gradient() @ l2(1.0)), 0.9 * (gradient_difference() @ l2(0.1))]
    at = PublicState(np.ones(model.dimension), np.zeros(model.dimension))
    answer = Measurement(full_batch(), terms, gaussian(0.0)).measure(counted, at, 0, generator(0)).value
    assert len(visits) == 2
    here, there = formed(model(at.current, None), SIZE), formed(model(at.previous, None), SIZE)
    moved = here - there
    clipped = 0.1 * here / np.maximum(1, np.linalg.norm(here, axis=1))[:, None]
    clipped += 0.9 * moved / np.maximum(1, np.linalg.norm(moved, axis=1) / 0.1)[:, None]
    np.testing.assert_allclose(answer, clipped.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", ["Logistic", "Multinomial"])
def test_a_diagonal_that_stays_is_met_once_and_one_that_changes_in_place_is_met_anew(loss: str, storage: str) -> None:
    model, rng = oracle(loss, storage, 1), np.random.default_rng(2)
    here, diagonal, some = rng.standard_normal(model.dimension), rng.uniform(0.1, 3.0, model.dimension), np.array([4, 0, 4])
    for _ in range(3):
        for rows in (some, None, some, some, None, None):
            count = SIZE if rows is None else len(rows)
            expected = np.linalg.norm(formed(model(here, rows), count) * diagonal, axis=1)
            np.testing.assert_allclose(model(here, rows).scaled(diagonal).norms(2), expected, rtol=1e-5)
        diagonal *= rng.uniform(0.5, 2.0, model.dimension)
