"""Law 3: norms and sums in closed form equal those of gradients computed one example at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax

from privopt.errors import InputError
from privopt.perexample.columns import UnitRows
from privopt.perexample.design import CHUNK, Design, Frame
from privopt.perexample.grads import Materialized, Vector
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Huber, Logistic, Multinomial, Squared
from tests.laws.table import LOSSES

Store = Callable[[Vector], Any]
STORES: dict[str, Store] = {"dense": np.asarray, "csr": sp.csr_array, "csr_matrix": sp.csr_matrix, "fortran": np.asfortranarray}
VALUES: dict[str, Callable[[Vector, float], float]] = {  # the losses themselves, of one example's scores
    "Logistic": lambda scores, y: float(np.logaddexp(0, scores[0]) - y * scores[0]),
    "Multinomial": lambda scores, y: float(-log_softmax(scores)[int(y)]),
    "Squared": lambda scores, y: float((scores[0] - y) ** 2 / 2),
    "Huber": lambda scores, y: _huber(float(scores[0] - y), 0.7),
}


def _huber(gap: float, threshold: float) -> float:
    return gap**2 / 2 if abs(gap) <= threshold else threshold * (abs(gap) - threshold / 2)


def framed(row: Vector, frame: Frame) -> Vector:
    """(x − centre)/scale, then the intercept: the obvious way."""
    row = row.astype(float)
    row = row if frame.centre is None else row - frame.centre
    row = row if frame.scale is None else row / frame.scale
    return np.append(row, frame.intercept) if frame.intercept else row


def one_at_a_time(loss: str, rows: Vector, targets: Vector, frame: Frame, parameters: Vector) -> Vector:
    """Each example's gradient by central differences of its loss: nothing of privopt's is used."""
    outputs = LOSSES[loss].outputs
    gradients = np.zeros((len(rows), len(parameters)))
    for i, row in enumerate(rows):
        for j in range(len(parameters)):
            ends = []
            for sign in (-1, 1):
                moved = parameters.copy()
                moved[j] += sign * 1e-6
                ends.append(VALUES[loss](moved.reshape(outputs, -1) @ framed(row, frame), targets[i]))
            gradients[i, j] = (ends[1] - ends[0]) / 2e-6
    return gradients


def make(loss: str, store: str, dtype: str = "float64", *, centred: bool, size: int = 7) -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((size, 3)) * (rng.random((size, 3)) < 0.7)).astype(dtype)
    rows[2] = 0.0  # an empty row
    targets = rng.integers(0, max(2, LOSSES[loss].outputs), size).astype(float)
    if loss in ("Squared", "Huber"):
        targets = rng.standard_normal(size) * 2
    frame = Frame(rng.standard_normal(3) if centred else None, rng.uniform(0.5, 2, 3) if centred else None, 0.5 * centred)
    if centred and store.startswith("csr"):
        frame = Frame(None, frame.scale, frame.intercept)
    parameters = rng.standard_normal(LOSSES[loss].outputs * (3 + bool(frame.intercept)))
    oracle = LinearOracle(Design(STORES[store](rows), frame), targets, LOSSES[loss])
    return oracle, rows, targets, frame, parameters


every_case = [
    pytest.mark.parametrize("loss", LOSSES),
    pytest.mark.parametrize("store", STORES),
    pytest.mark.parametrize("dtype", ["float64", "float32"]),
    pytest.mark.parametrize("centred", [False, True], ids=["plain", "framed"]),
    pytest.mark.parametrize("drawn", [None, [0, 1, 2, 3, 4, 5, 6], [5, 2], [2], []], ids=str),
]


def for_every_case(test: Callable[..., None]) -> Callable[..., None]:
    for mark in every_case:
        test = mark(test)
    return test


@for_every_case
def test_closed_form_equals_gradients_one_example_at_a_time(
    loss: str, store: str, dtype: str, centred: bool, drawn: list[int] | None
) -> None:
    oracle, rows, targets, frame, parameters = make(loss, store, dtype, centred=centred)
    chosen = np.arange(7) if drawn is None else np.array(drawn, dtype=int)
    slow = one_at_a_time(loss, rows[chosen], targets[chosen], frame, parameters)
    grads = oracle(parameters, None if drawn is None else chosen)
    near: dict[str, Any] = {"atol": 2e-8 if dtype == "float64" else 1e-5, "rtol": 1e-6 if dtype == "float64" else 1e-5}
    for order in (1, 2):  # a norm may be overstated a little, to cover rounding
        np.testing.assert_allclose(grads.norms(order), np.linalg.norm(slow, ord=order, axis=1), rtol=1e-5, atol=1e-5)
    weights = np.linspace(0, 1, len(chosen))
    np.testing.assert_allclose(grads.weighted_sum(weights), weights @ slow, **near)
    assert oracle.dimension == len(parameters)
    assert oracle.size == 7


@settings(max_examples=40)
@pytest.mark.parametrize("loss", LOSSES)
@given(data=st.data())
def test_closed_form_equals_the_outer_product_written_out(loss: str, data: st.DataObject) -> None:
    """Whatever the rows are: dense, sparse and materialised gradients have the same norms and the same sums."""
    size = data.draw(st.integers(1, 4))
    moderate = st.floats(-100, 100, allow_subnormal=False)
    rows = data.draw(arrays(float, (size, 3), elements=st.one_of(st.just(0.0), moderate)))
    targets = np.zeros(size) if loss in ("Logistic", "Multinomial") else data.draw(arrays(float, size, elements=moderate))
    parameters = data.draw(arrays(float, 4 * LOSSES[loss].outputs, elements=st.floats(-2, 2)))
    frame = Frame(None, np.array([1.0, 10.0, 0.1]), 1.0)
    extended = np.array([framed(row, frame) for row in rows])
    outputs = LOSSES[loss].outputs
    scores = extended @ parameters.reshape(outputs, -1).T
    residuals = LOSSES[loss].residuals(scores if outputs > 1 else scores[:, 0], targets).reshape(size, outputs)
    written = Materialized(np.einsum("io,ij->ioj", residuals, extended))
    weights = data.draw(arrays(float, size, elements=st.floats(0, 1)))
    for store in STORES.values():
        grads = LinearOracle(Design(store(rows), frame), targets, LOSSES[loss])(parameters, None)
        for order in (1, 2):
            np.testing.assert_allclose(grads.norms(order), written.norms(order), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(grads.weighted_sum(weights), written.weighted_sum(weights), rtol=1e-7, atol=1e-7)


def test_a_row_may_be_drawn_twice() -> None:
    oracle, _, _, _, parameters = make("Logistic", "csr", centred=True)
    once, twice = (oracle(parameters, np.array(rows)).weighted_sum(np.ones(len(rows))) for rows in ([1], [1, 1]))
    np.testing.assert_allclose(twice, 2 * once)


def test_norms_of_more_rows_than_one_chunk_holds_are_those_of_each_row() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5, CHUNK // 2 + 1)).astype("float32")
    frame = Frame(rng.standard_normal((CHUNK // 2 + 1,)), rng.uniform(0.5, 2, (CHUNK // 2 + 1,)), 1.0)
    slow = np.array([framed(row, frame) for row in rows])
    for order in (1, 2):
        np.testing.assert_allclose(Design(rows, frame).norms(order), np.linalg.norm(slow, ord=order, axis=1), rtol=1e-5)


@pytest.mark.parametrize("store", ["dense", "csr"])
def test_whole_numbers_are_numbers(store: str) -> None:
    """A matrix of integers must not turn coefficients into integers."""
    rows = np.array([[1, 2], [3, 4]])
    frame, parameters = Frame(intercept=0.0), np.array([0.5, 0.25])
    whole = LinearOracle(Design(STORES[store](rows), frame), np.zeros(2), Squared())
    real = LinearOracle(Design(STORES[store](rows.astype(float)), frame), np.zeros(2), Squared())
    for drawn in (None, np.array([1])):
        np.testing.assert_allclose(whole(parameters, drawn).norms(2), real(parameters, drawn).norms(2))
        weights = np.full(2 if drawn is None else 1, 0.5)
        np.testing.assert_allclose(whole(parameters, drawn).weighted_sum(weights), real(parameters, drawn).weighted_sum(weights))


def test_the_user_s_matrix_is_used_without_a_copy_and_left_as_it_is() -> None:
    rows = np.random.default_rng(0).standard_normal((5, 3))
    before = rows.copy()
    oracle = LinearOracle(Design(rows, Frame(np.ones(3), np.full(3, 2.0))), np.zeros(5), Squared())
    oracle(np.ones(4), None).weighted_sum(np.ones(5))
    np.testing.assert_array_equal(rows, before)
    sparse = sp.csr_array(np.array([[np.nan, 1.0], [2.0, 0.0]]))
    LinearOracle(Design(sparse, Frame()), np.zeros(2), Squared())(np.ones(3), None).weighted_sum(np.array([0.0, 1.0]))
    np.testing.assert_array_equal(sparse.toarray(), [[np.nan, 1.0], [2.0, 0.0]])


def test_sparse_rows_with_a_centre_are_refused() -> None:
    with pytest.raises(InputError, match="sparse rows cannot be centred"):
        Design(sp.csr_array(np.eye(2)), Frame(centre=np.ones(2)))


# ---------------------------------------------------------------- frames


@given(
    arrays(float, (2, 4), elements=st.floats(-5, 5)),
    arrays(float, 3, elements=st.floats(-5, 5)),
    arrays(float, 3, elements=st.floats(0.1, 5)),
    st.sampled_from([0.5, 1.0]),
    arrays(float, 3, elements=st.floats(-5, 5)),
)
def test_unfolded_coefficients_score_original_rows_as_framed_ones_are_scored(
    coefficients: Vector, centre: Vector, scale: Vector, intercept: float, row: Vector
) -> None:
    frame = Frame(centre, scale, intercept)
    slopes, constants = frame.unfold(coefficients)
    np.testing.assert_allclose(slopes @ row + constants, coefficients @ framed(row, frame), atol=1e-9 * (1 + 10 / scale.min()))


def test_without_an_intercept_every_coefficient_is_a_slope() -> None:
    slopes, constants = Frame(intercept=0.0).unfold(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(slopes, [[1.0, 2.0]])
    np.testing.assert_array_equal(constants, [0.0])
    assert Design(np.eye(2), Frame(intercept=0.0)).width == 2
    assert Design(np.eye(2), Frame()).width == 3


# ---------------------------------------------------------------- losses


@given(st.floats(-50, 50), st.sampled_from([0.0, 1.0]))
def test_logistic_residuals_are_at_most_one(score: float, target: float) -> None:
    assert abs(Logistic().residuals(np.array([score]), np.array([target]))[0]) <= 1


@given(arrays(float, (1, 3), elements=st.floats(-50, 50)), st.integers(0, 2))
def test_multinomial_residuals_are_at_most_root_two_long_and_sum_to_zero(scores: Vector, target: int) -> None:
    residuals = Multinomial(3).residuals(scores, np.array([float(target)]))
    assert np.linalg.norm(residuals) <= 2**0.5 + 1e-12
    assert residuals.sum() == pytest.approx(0, abs=1e-12)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_huber_residuals_are_at_most_the_threshold_and_squared_ones_inside_it(score: float, target: float) -> None:
    residual = Huber(0.7).residuals(np.array([score]), np.array([target]))[0]
    assert abs(residual) <= 0.7
    if abs(score - target) < 0.7:
        assert residual == Squared().residuals(np.array([score]), np.array([target]))[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_residuals_leave_scores_and_targets_as_they_are(loss: str) -> None:
    scores = np.array([[0.3, -0.1, 0.2], [1.0, 2.0, 3.0]]) if LOSSES[loss].outputs > 1 else np.array([0.3, 1.0])
    targets = np.array([0.0, 1.0])
    before = scores.copy()
    LOSSES[loss].residuals(scores, targets)
    np.testing.assert_array_equal(scores, before)
    np.testing.assert_array_equal(targets, [0.0, 1.0])


# ---------------------------------------------------------------- vectors that exist


def test_materialized_vectors_of_any_shape_are_flat() -> None:
    grads = Materialized(np.arange(24.0).reshape(2, 3, 4))
    np.testing.assert_allclose(grads.norms(1), [66.0, 210.0])
    np.testing.assert_allclose(grads.weighted_sum(np.array([0.0, 2.0])), 2 * np.arange(12.0, 24.0))


def test_a_vector_of_weight_zero_is_absent_whatever_it_holds() -> None:
    grads = Materialized(np.array([[np.nan, np.inf], [1.0, 2.0]]))
    np.testing.assert_array_equal(grads.weighted_sum(np.array([0.0, 1.0])), [1.0, 2.0])


@pytest.mark.parametrize("shape", [(0, 3), (0, 2, 2)])
def test_no_vectors_sum_to_zero(shape: tuple[int, ...]) -> None:
    grads = Materialized(np.zeros(shape))
    np.testing.assert_array_equal(grads.weighted_sum(np.zeros(0)), np.zeros(int(np.prod(shape[1:]))))
    assert grads.norms(1).shape == (0,)


def test_unit_rows_have_length_1_also_where_a_column_is_stored_twice() -> None:
    twice = sp.csr_matrix((np.array([1.0, 1.0, 3.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert sp.csr_matrix(UnitRows(2).transform(twice)).toarray().tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert twice.nnz == 3
