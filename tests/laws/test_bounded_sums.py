"""Law 1: adding or removing one example moves a clipped sum by at most the stated bound, whatever the example is."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privopt.measure.clips import l2
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Materialized, PerExampleVectors, Vector
from privopt.perexample.linear_oracle import LinearGrads, LinearOracle
from privopt.perexample.losses import Loss, Squared
from tests.laws.checks import check_bounded
from tests.laws.table import CLIPS, LOSSES
from tests.problems import linear_oracle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # runs silence them: test_silence.py

WIDTH = 2
BOUNDS = st.sampled_from([0.0, 1e-6, 1.0, 1e6])


def numbers(width: Any = 64) -> st.SearchStrategy[float]:
    """Ordinary numbers, and what nobody expects in a column."""
    strange = [0.0, 1e-30, -1e-38, 3e38, -1e30, math.inf, -math.inf, math.nan]
    if width == 64:
        strange += [5e-324, 1e-170, -1e-160, 1e150, 1e200, -1.7e308]
    return st.one_of(
        st.floats(-8, 8, width=width), st.sampled_from([float(np.float32(value)) for value in strange[:8]] + strange[8:])
    )


# ---------------------------------------------------------------- vectors that exist

KEEPS = [name for name in CLIPS if name != "automatic"]  # clips that leave short vectors as they are


@pytest.mark.parametrize("name", CLIPS)
@given(st.data(), BOUNDS)
def test_removing_one_vector_moves_the_sum_by_at_most_the_bound(name: str, data: st.DataObject, bound: float) -> None:
    size = data.draw(st.integers(1, 6))
    vectors = data.draw(arrays(float, (size, 3), elements=numbers()))
    without = [Materialized(np.delete(vectors, row, axis=0)) for row in range(size)] if size > 1 else []
    check_bounded(CLIPS[name](bound), Materialized(vectors), without)


@pytest.mark.parametrize("name", CLIPS)
def test_removing_the_only_vector_leaves_an_empty_batch_whose_sum_is_zero(name: str) -> None:
    empty = Materialized(np.zeros((0, 3)))
    assert empty.norms(2).shape == (0,)
    np.testing.assert_array_equal(empty.clipped_sum(CLIPS[name](1.0)), np.zeros(3))
    check_bounded(CLIPS[name](1.0), Materialized(np.full((1, 3), 9.0)), [empty])


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_vector_that_is_not_finite_is_absent(name: str, value: float) -> None:
    good = np.array([[0.1, 0.2], [0.0, -0.3]])
    wanted = Materialized(good).clipped_sum(CLIPS[name](1.0))
    np.testing.assert_allclose(Materialized(np.vstack([good, [value, 0.1]])).clipped_sum(CLIPS[name](1.0)), wanted)
    assert name not in KEEPS or wanted == pytest.approx(good.sum(axis=0))


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("value", [1e160, -1.7e308])
def test_a_huge_vector_moves_the_sum_by_at_most_the_bound(name: str, value: float) -> None:
    good = np.array([[0.1, 0.2], [0.0, -0.3]])
    check_bounded(CLIPS[name](1.0), Materialized(np.vstack([good, [value, value]])), [Materialized(good)])


@pytest.mark.parametrize("name", KEEPS)
def test_a_tiny_vector_is_not_scaled_up(name: str) -> None:
    assert Materialized(np.array([[5e-324, 0.0]])).clipped_sum(CLIPS[name](1.0))[0] <= 5e-324


@pytest.mark.parametrize("name", CLIPS)
def test_under_a_zero_bound_every_sum_is_zero(name: str) -> None:
    vectors = Materialized(np.array([[0.0, 0.0], [1.0, 2.0], [math.nan, math.inf], [5e-324, 0.0]]))
    np.testing.assert_array_equal(vectors.clipped_sum(CLIPS[name](0.0)), [0.0, 0.0])


@pytest.mark.parametrize("name", KEEPS)
def test_a_vector_inside_the_bound_is_left_as_it_is_and_one_outside_keeps_its_direction(name: str) -> None:
    clip = CLIPS[name](1.0)
    np.testing.assert_array_equal(Materialized(np.array([[0.3, -0.4]])).clipped_sum(clip), [0.3, -0.4])
    long = Materialized(np.array([[30.0, -40.0]])).clipped_sum(clip)
    assert np.linalg.norm(long, ord=clip.order) == pytest.approx(1.0)
    assert long[0] / long[1] == pytest.approx(-0.75)


# ---------------------------------------------------------------- linear models


@dataclass(frozen=True)
class Table:
    """A data set and the frame it is seen in: all that a linear model's per-example gradients depend on."""

    rows: Vector
    targets: Vector
    frame: Frame
    sparse: bool
    loss: Loss
    parameters: Vector

    def without(self, row: int) -> "Table":
        kept = np.delete(np.arange(len(self.rows)), row)
        return Table(self.rows[kept], self.targets[kept], self.frame, self.sparse, self.loss, self.parameters)

    def oracle(self) -> LinearOracle:
        matrix = sp.csr_array(self.rows) if self.sparse else self.rows
        return LinearOracle(Design(matrix, self.frame), self.targets, self.loss)

    def grads(self) -> LinearGrads:
        return self.oracle()(self.parameters, None)

    def batch(self) -> LinearGrads:
        """The same rows, drawn instead of taken as a whole."""
        return self.oracle()(self.parameters, np.arange(len(self.rows)))


@st.composite
def tables(draw: st.DrawFn, loss: str, sparse: bool, dtype: str) -> Table:
    size = draw(st.integers(1, 5))
    width: Any = 32 if dtype == "float32" else 64
    rows = draw(arrays(dtype, (size, WIDTH), elements=numbers(width)))
    positive = arrays(float, WIDTH, elements=st.sampled_from([0.1, 1.0, 7.0]))
    around = arrays(float, WIDTH, elements=st.sampled_from([-3.0, 0.0, 0.1, 5.0]))
    frame = Frame(
        centre=None if sparse else draw(st.one_of(st.none(), around)),
        scale=draw(st.one_of(st.none(), positive)),
        intercept=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    kind = LOSSES[loss]
    labels = {"Logistic": st.sampled_from([0.0, 1.0]), "Multinomial": st.sampled_from([0.0, 1.0, 2.0])}
    targets = draw(arrays(float, size, elements=labels.get(loss, numbers())))
    length = kind.outputs * (WIDTH + (frame.intercept != 0))
    parameters = draw(arrays(float, length, elements=st.floats(-5, 5)))
    return Table(rows, targets, frame, sparse, kind, parameters)


def check_every_clip(bound: float, with_all: PerExampleVectors, without: list[Any], slack: float = 1e-9) -> None:
    """Law 1 for the same vectors under each clip: a clip sees their norms and nothing else."""
    for clip in CLIPS.values():
        check_bounded(clip(bound), with_all, without, slack)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=25)
@given(st.data())
def test_removing_one_row_of_a_linear_model_moves_the_sum_by_at_most_the_bound(
    loss: str, sparse: bool, dtype: str, data: st.DataObject
) -> None:
    table, bound = data.draw(tables(loss, sparse, dtype)), data.draw(BOUNDS)
    slack = 1e-9 if dtype == "float64" else 1e-5
    others = [table.without(row) for row in range(len(table.rows))]
    check_every_clip(bound, table.grads(), [other.grads() for other in others], slack)
    check_every_clip(bound, table.batch(), [other.batch() for other in others], slack)


WEIGHTS = st.sampled_from([0.0, 5e-324, 1e-200, 1e-100, 0.3, 1.0, 7.0, 1e100, 1e200])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=25)
@given(st.data())
def test_removing_one_row_that_was_scaled_by_a_public_diagonal_moves_the_sum_by_at_most_the_bound(
    loss: str, sparse: bool, data: st.DataObject
) -> None:
    table, bound = data.draw(tables(loss, sparse, "float64")), data.draw(BOUNDS)
    length = len(table.parameters)
    diagonal = data.draw(st.one_of(arrays(float, length, elements=WEIGHTS), arrays(float, length, elements=st.floats(0.1, 9.0))))
    others = [table.without(row) for row in range(len(table.rows))]
    with np.errstate(all="ignore"):
        check_every_clip(bound, table.grads().scaled(diagonal), [other.grads().scaled(diagonal) for other in others])
        check_every_clip(bound, table.batch().scaled(diagonal), [other.batch().scaled(diagonal) for other in others])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CLIPS)
def test_huge_rows_in_columns_that_a_diagonal_wipes_out_do_not_overflow(name: str, sparse: bool) -> None:
    rows = np.array([[-1.7e308, 0.0], [-1.7e308, 0.0], [-1.7e308, 0.0], [0.5, 1.0]])
    table = Table(rows, np.zeros(4), Frame(intercept=0.0), sparse, LOSSES["Logistic"], np.zeros(2))
    diagonal = np.array([0.0, 1.0])
    check_bounded(CLIPS[name](1.0), table.grads().scaled(diagonal), [table.without(0).grads().scaled(diagonal)])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_absent(name: str, sparse: bool, value: float) -> None:
    rows = np.array([[0.5, 1.0], [value, 0.0], [0.0, 2.0]])
    frame = Frame(centre=None if sparse else np.array([0.2, 0.3]), scale=np.array([2.0, 4.0]))
    table = Table(rows, np.array([0.3, 9.0, -0.2]), frame, sparse, Squared(), np.array([0.1, -0.2, 0.3]))
    for grads, other in ((table.grads(), table.without(1).grads()), (table.batch(), table.without(1).batch())):
        np.testing.assert_allclose(grads.clipped_sum(CLIPS[name](1.0)), other.clipped_sum(CLIPS[name](1.0)), rtol=1e-12)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize(("row", "dtype"), [(1e-170, "float64"), (5e-324, "float64"), (1e-45, "float32")])
def test_a_tiny_row_with_a_huge_target_moves_the_sum_by_at_most_the_bound(
    name: str, sparse: bool, row: float, dtype: str
) -> None:
    """The squares of such a row are 0 in floating point, its gradient is not."""
    rows = np.array([[0.5, 1.0], [row, 0.0]], dtype)
    table = Table(rows, np.array([0.3, -1e200]), Frame(intercept=0.0), sparse, Squared(), np.zeros(2))
    check_bounded(CLIPS[name](1.0), table.grads(), [table.without(1).grads()], 1e-5)
    check_bounded(CLIPS[name](1.0), table.batch(), [table.without(1).batch()], 1e-5)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CLIPS)
@settings(max_examples=50)
@given(st.data())
def test_residuals_of_any_size_move_the_sum_by_at_most_the_bound(name: str, sparse: bool, data: st.DataObject) -> None:
    rows = data.draw(arrays(float, (3, WIDTH), elements=numbers()))
    residuals = data.draw(arrays(float, (3, 2), elements=numbers()))

    def grads(kept: list[int]) -> LinearGrads:
        matrix = sp.csr_array(rows[kept]) if sparse else rows[kept]
        return LinearGrads(residuals[kept], Design(matrix, Frame(intercept=0.0)).take(None))

    clip = CLIPS[name](data.draw(BOUNDS))
    check_bounded(clip, grads([0, 1, 2]), [grads([1, 2]), grads([0, 2]), grads([0, 1])])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CLIPS)
def test_a_huge_row_that_the_classes_hardly_differ_on_moves_the_sum_by_at_most_the_bound(name: str, sparse: bool) -> None:
    """Its residuals are 1e-174: their squares are 0 in floating point, its gradient is 1e26."""
    rows, parameters = (
        np.array([[0.3, 0.4], [1e200, -1e200]]),
        np.array([[0.0, 0.0, 0.0], [0.0, 0.0, -400.0], [1.0, 1.0, -600.0]]),
    )
    table = Table(rows, np.array([1.0, 0.0]), Frame(), sparse, LOSSES["Multinomial"], parameters.ravel())
    check_bounded(CLIPS[name](1.0), table.grads(), [table.without(1).grads()])
    check_bounded(CLIPS[name](1.0), table.batch(), [table.without(1).batch()])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize(
    ("entry", "other", "weight", "target"),
    [(1e-170, 0.0, 0.5, -1e200), (1e-160, 0.0, 2.0, -1e200), (1.0, 0.0, 1e-200, -1e250), (1e150, 1e-130, 1e-170, -1e50)],
)
def test_a_scaled_row_whose_squares_are_lost_moves_the_sum_by_at_most_the_bound(
    name: str, sparse: bool, entry: float, other: float, weight: float, target: float
) -> None:
    """The square of entry × weight is 0 in floating point, or so is that of the weight alone."""
    rows, diagonal = np.array([[0.5, 1.0], [entry, other]]), np.array([weight, 1.0])
    table = Table(rows, np.array([0.3, target]), Frame(intercept=0.0), sparse, Squared(), np.zeros(2))
    for grads, alone in ((table.grads(), table.without(1).grads()), (table.batch(), table.without(1).batch())):
        check_bounded(CLIPS[name](1.0), grads.scaled(diagonal), [alone.scaled(diagonal)])


@pytest.mark.parametrize("name", CLIPS)
def test_a_row_at_the_centre_with_a_huge_target_does_not_wash_out_the_others(name: str) -> None:
    rows = np.array([[0.5, 1.0], [5.0, 5.0], [0.7, 0.1]])
    frame = Frame(centre=np.array([5.0, 5.0]), intercept=0.0)
    table = Table(rows, np.array([0.3, -1e200, 0.1]), frame, False, Squared(), np.array([0.1, 0.2]))
    check_bounded(CLIPS[name](1.0), table.grads(), [table.without(1).grads()])


@pytest.mark.parametrize("name", CLIPS)
def test_entries_that_a_csr_matrix_stores_twice_count_as_their_sum(name: str) -> None:
    """scipy allows duplicates and adds them up in every product, so the norm has to add them up too."""
    twice = sp.csr_array((np.array([3.0, 3.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    grads = linear_oracle(twice, np.array([-5.0, 0.5]), Squared())(np.zeros(2), None)
    once = linear_oracle(sp.csr_array(twice.toarray()), np.array([-5.0, 0.5]), Squared())
    np.testing.assert_allclose(grads.norms(2), [30.0, 0.5])
    np.testing.assert_allclose(grads.clipped_sum(CLIPS[name](1.0)), once(np.zeros(2), None).clipped_sum(CLIPS[name](1.0)))


@pytest.mark.parametrize(("centre", "scale"), [(2000.0, 10.0), (1.6e9, 1e5)], ids=["years", "seconds since 1970"])
def test_single_precision_columns_far_from_zero_keep_the_bound(centre: float, scale: float) -> None:
    """Centring after the sum instead of before cancels digits: in single precision, more of them than one example has."""
    rng = np.random.default_rng(0)
    rows = (centre + scale * rng.standard_normal((20_000, 2))).astype("float32")
    table = Table(
        rows,
        rng.standard_normal(len(rows)),
        Frame(np.full(2, centre), np.full(2, scale)),
        False,
        Squared(),
        np.array([0.3, 0.2, 0.1]),
    )
    total = table.grads().clipped_sum(l2(1.0))
    for row in (0, 7, 19_999):
        alone = table.oracle()(table.parameters, np.array([row])).clipped_sum(l2(1.0))
        np.testing.assert_allclose(total - table.without(row).grads().clipped_sum(l2(1.0)), alone, atol=0.05)


def test_rows_that_are_all_far_from_zero_move_the_sum_by_at_most_the_bound() -> None:
    """Seconds since 1970, in a column that spans weeks: the sum of the rows is 1e9 times as large as what one of them adds."""
    rng = np.random.default_rng(0)
    low, high = 1.7e9, 1.7e9 + 3e6
    frame = Frame(centre=np.full(4, (low + high) / 2), scale=np.full(4, (high - low) / 2), intercept=0.5)
    table = Table(rng.uniform(low, high, (100_000, 4)), np.ones(100_000), frame, False, LOSSES["Logistic"], np.zeros(5))
    check_bounded(l2(0.5), table.grads(), [table.without(row).grads() for row in (0, 50_000, 99_999)])
    alone = Table(table.rows[:1], table.targets[:1], frame, False, table.loss, table.parameters)
    moved = table.grads().clipped_sum(l2(0.5)) - table.without(0).grads().clipped_sum(l2(0.5))
    np.testing.assert_allclose(moved, alone.grads().clipped_sum(l2(0.5)), atol=1e-7)
