"""Laws 1 and 3 for persons: all rows of a person together move a clipped sum by at most the bound."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privopt.errors import CompositionError
from privopt.measure.clips import adaptive, l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import draw_rows, full_batch
from privopt.measure.units import each_person
from privopt.perexample import person_oracle
from privopt.perexample.design import Design, Frame, LimitedDesign
from privopt.perexample.grads import Materialized, Vector
from privopt.perexample.linear_oracle import ROUNDING, LinearOracle
from privopt.perexample.losses import Loss, Squared
from privopt.perexample.person_oracle import PersonGrads, PersonOracle
from privopt.perexample.persons import Persons
from privopt.state import PublicState
from tests.laws.checks import check_bounded
from tests.laws.table import CLIPS, LOSSES
from tests.laws.test_bounded_sums import BOUNDS, WEIGHTS, check_every_clip, numbers

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # runs silence them: test_silence.py

WIDTH = 3
SPARSE = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
EVERY_CLIP = pytest.mark.parametrize("name", CLIPS)


@dataclass(frozen=True)
class People:
    """Rows, whose they are, and the frame they are seen in."""

    rows: Vector
    targets: Vector
    counts: Vector
    frame: Frame
    sparse: bool
    loss: Loss
    parameters: Vector

    def without(self, person: int) -> "People":
        whose = np.repeat(np.arange(len(self.counts)), self.counts)
        kept, counts = whose != person, np.delete(self.counts, person)
        return People(self.rows[kept], self.targets[kept], counts, self.frame, self.sparse, self.loss, self.parameters)

    def oracle(self) -> PersonOracle:
        persons = Persons(np.arange(len(self.rows)), self.counts)
        return PersonOracle(Design(self.matrix, self.frame), self.targets, self.loss, persons)

    @property
    def matrix(self) -> Any:
        return sp.csr_array(self.rows) if self.sparse else self.rows

    def grads(self) -> PersonGrads:
        return self.oracle()(self.parameters, None)

    def batch(self) -> PersonGrads:
        """The same persons, drawn instead of taken as a whole."""
        return self.oracle()(self.parameters, np.arange(len(self.counts)))

    def one_by_one(self) -> Materialized:
        """Each person's vector, from gradients of rows that are formed one at a time."""
        each = LinearOracle(Design(self.matrix, self.frame), self.targets, self.loss)
        rows = [each(self.parameters, np.array([row])).weighted_sum(np.ones(1)) for row in range(len(self.rows))]
        ends = np.cumsum(self.counts)
        return Materialized(
            np.array([np.mean(rows[end - count : end], axis=0) for end, count in zip(ends, self.counts, strict=True)])
        )


@st.composite
def people(draw: st.DrawFn, loss: str, sparse: bool, least: int = 0) -> People:
    counts = np.array(draw(st.lists(st.integers(least, 4), min_size=1, max_size=4)))
    size = int(counts.sum())
    strange = arrays(float, (size, WIDTH), elements=numbers())
    alike = arrays(float, (1, WIDTH), elements=numbers()).map(lambda row: np.repeat(row, size, axis=0))  # residuals may cancel
    rows = draw(st.one_of(strange, alike))
    positive = arrays(float, WIDTH, elements=st.sampled_from([0.1, 1.0, 7.0]))
    around = arrays(float, WIDTH, elements=st.sampled_from([-3.0, 0.0, 0.1, 5.0]))
    frame = Frame(
        centre=None if sparse else draw(st.one_of(st.none(), around)),
        scale=draw(st.one_of(st.none(), positive)),
        intercept=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    kind = LOSSES[loss]
    labels = {"Logistic": st.sampled_from([0.0, 1.0, math.nan]), "Multinomial": st.sampled_from([0.0, 1.0, 2.0])}
    targets = draw(arrays(float, size, elements=labels.get(loss, numbers())))
    length = kind.outputs * (WIDTH + (frame.intercept != 0))
    parameters = draw(arrays(float, length, elements=st.floats(-5, 5)))
    return People(rows, targets, counts, frame, sparse, kind, parameters)


def usual(loss: str, sparse: bool, *, centred: bool = False, counts: tuple[int, ...] = (1, 4, 2, 7, 1, 3)) -> People:
    """Ordinary rows of persons with one row and with many."""
    rng, kind = np.random.default_rng(5), LOSSES[loss]
    size = sum(counts)
    rows = rng.standard_normal((size, WIDTH)) * (rng.random((size, WIDTH)) < 0.6)
    frame = Frame(np.array([0.2, -3.0, 0.0]) if centred else None, np.array([2.0, 0.5, 1.0]), 0.7)
    targets = rng.integers(0, max(2, kind.outputs), size).astype(float)
    return People(rows, targets, np.array(counts), frame, sparse, kind, rng.standard_normal(kind.outputs * (WIDTH + 1)))


# ---------------------------------------------------------------- law 1


@SPARSE
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=30)
@given(st.data())
def test_removing_one_person_moves_the_sum_by_at_most_the_bound(loss: str, sparse: bool, data: st.DataObject) -> None:
    table, bound = data.draw(people(loss, sparse)), data.draw(BOUNDS)
    others = [table.without(person) for person in range(len(table.counts))] if len(table.counts) > 1 else []
    check_every_clip(bound, table.grads(), [other.grads() for other in others], 1e-6)
    check_every_clip(bound, table.batch(), [other.batch() for other in others], 1e-6)


@SPARSE
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=20)
@given(st.data())
def test_removing_one_person_whose_rows_were_scaled_moves_the_sum_by_at_most_the_bound(
    loss: str, sparse: bool, data: st.DataObject
) -> None:
    table, bound = data.draw(people(loss, sparse)), data.draw(BOUNDS)
    length = len(table.parameters)
    diagonal = data.draw(st.one_of(arrays(float, length, elements=WEIGHTS), arrays(float, length, elements=st.floats(0.1, 9.0))))
    others = [table.without(person) for person in range(len(table.counts))] if len(table.counts) > 1 else []
    check_every_clip(bound, table.grads().scaled(diagonal), [other.grads().scaled(diagonal) for other in others], 1e-6)


@SPARSE
@settings(max_examples=40)
@given(st.data())
def test_removing_one_person_from_shifted_differences_moves_the_sum_by_at_most_the_bound(
    sparse: bool, data: st.DataObject
) -> None:
    table = data.draw(people("Squared", sparse))
    others = [table.without(person) for person in range(len(table.counts))] if len(table.counts) > 1 else []

    def vectors(table: People) -> PersonGrads:
        oracle, everybody = table.oracle(), np.arange(len(table.counts))
        moved = oracle(table.parameters, everybody).minus(oracle(0.5 * table.parameters, everybody), 0.8)
        return moved.scaled(np.full(len(table.parameters), 0.5)).shifted(np.ones(len(table.parameters)), 0.3)

    check_bounded(l2(data.draw(BOUNDS)), vectors(table), [vectors(other) for other in others], 1e-6)


@SPARSE
@EVERY_CLIP
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_a_row_that_is_not_finite_makes_its_person_absent_and_moves_nobody_else(name: str, sparse: bool, value: float) -> None:
    table = usual("Logistic", sparse)
    table.rows[2, 1] = value  # of the second person, who has four
    table.parameters[:] = 0.0
    clip = CLIPS[name](1.0)
    for with_all, other in ((table.grads(), table.without(1).grads()), (table.batch(), table.without(1).batch())):
        moved = with_all.clipped_sum(clip) - other.clipped_sum(clip)
        assert np.linalg.norm(moved, ord=clip.order) <= (1 + 1e-9 if value == 1e308 else 1e-12)


@SPARSE
@EVERY_CLIP
def test_a_person_with_very_many_rows_moves_the_sum_by_no_more_than_others(name: str, sparse: bool) -> None:
    table = usual("Squared", sparse, counts=(1, 500, 2))
    table.targets[:] = 1e6
    clip = CLIPS[name](1.0)
    check_bounded(clip, table.grads(), [table.without(person).grads() for person in range(3)])
    moved = table.grads().clipped_sum(clip) - table.without(1).grads().clipped_sum(clip)
    assert np.linalg.norm(moved, ord=clip.order) == pytest.approx(1.0, abs=1e-3)  # the bound is reached


@SPARSE
@EVERY_CLIP
@pytest.mark.parametrize("size", [1.0, 1e12, 1e100])
def test_rows_that_cancel_do_not_hide_how_long_a_person_s_vector_is(name: str, sparse: bool, size: float) -> None:
    """Two huge gradients that differ by a millionth of a millionth: squares in floating point show nothing of it."""
    row = np.array([1.0, 1.0, 1.0])
    rows = np.array([row, row * (1 + 1e-12), row, 0.5 * row])
    targets = np.array([size, -size, 0.3, 0.2])
    table = People(rows, targets, np.array([2, 1, 1]), Frame(intercept=0.0), sparse, Squared(), np.zeros(3))
    check_bounded(CLIPS[name](1e-3), table.grads(), [table.without(0).grads()], 1e-6)


@EVERY_CLIP
def test_rows_at_the_centre_with_huge_targets_that_cancel_do_not_wash_out_the_others(name: str) -> None:
    rows = np.array([[0.5, 1.0], [5.0, 5.0], [5.0, 5.0], [0.7, 0.1]])
    frame = Frame(centre=np.array([5.0, 5.0]), intercept=0.0)
    targets = np.array([0.3, -1e200, 1e200, 0.1])
    table = People(rows, targets, np.array([1, 2, 1]), frame, False, Squared(), np.array([0.1, 0.2]))
    check_bounded(CLIPS[name](1.0), table.grads(), [table.without(1).grads()])


@SPARSE
def test_an_empty_batch_and_persons_without_rows_add_nothing(sparse: bool) -> None:
    table = usual("Multinomial", sparse, counts=(2, 0, 3))
    nobody = table.oracle()(table.parameters, np.arange(0))
    np.testing.assert_array_equal(nobody.clipped_sum(l2(1.0)), np.zeros(len(table.parameters)))
    np.testing.assert_allclose(table.grads().clipped_sum(l2(1.0)), table.without(1).grads().clipped_sum(l2(1.0)), rtol=1e-12)
    shifted = table.grads().shifted(np.ones(len(table.parameters)))
    other = table.without(1).grads().shifted(np.ones(len(table.parameters)))
    np.testing.assert_allclose(shifted.clipped_sum(l2(1.0)), other.clipped_sum(l2(1.0)), rtol=1e-12)


@SPARSE
def test_an_adaptive_clip_counts_persons(sparse: bool) -> None:
    table = usual("Logistic", sparse)
    norms = table.one_by_one().norms(2)
    bound = float(np.median(norms))
    assert table.grads().count_within(bound) == int((norms <= bound).sum())
    measurement = Measurement(full_batch(), [gradient() @ adaptive(bound)], gaussian(1e-9), unit=each_person())
    answer = measurement.measure(table.oracle(), PublicState(table.parameters), 0, generator(0))
    np.testing.assert_allclose(answer.value, table.one_by_one().clipped_sum(l2(bound)) / len(table.counts), atol=1e-6)


# ---------------------------------------------------------------- law 3


@pytest.mark.parametrize("closed", [True, False], ids=["products", "formed"])
@SPARSE
@pytest.mark.parametrize("loss", LOSSES)
@EVERY_CLIP
def test_clipped_sums_equal_those_of_gradients_formed_one_row_at_a_time(
    name: str, loss: str, sparse: bool, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not closed:
        monkeypatch.setattr(person_oracle._People, "products", None)
        monkeypatch.setattr(person_oracle, "CHUNK", 12)  # a few persons at a time
    for centred in (False,) if sparse else (False, True):
        table = usual(loss, sparse, centred=centred)
        wanted, clip = table.one_by_one(), CLIPS[name](0.7)
        for grads in (table.grads(), table.batch()):
            np.testing.assert_allclose(grads.norms(clip.order), wanted.norms(clip.order), rtol=1e-5)
            np.testing.assert_allclose(grads.clipped_sum(clip), wanted.clipped_sum(clip), rtol=1e-5, atol=1e-9)
        some = np.array([1, 3, 4])
        drawn = Materialized(wanted.values[some])
        np.testing.assert_allclose(table.oracle()(table.parameters, some).clipped_sum(clip), drawn.clipped_sum(clip), rtol=1e-5)


@SPARSE
@pytest.mark.parametrize("loss", LOSSES)
@EVERY_CLIP
def test_scaled_differences_equal_those_formed_one_row_at_a_time(name: str, loss: str, sparse: bool) -> None:
    table, other = usual(loss, sparse), usual(loss, sparse)
    other.parameters[:] *= 0.4
    rng = np.random.default_rng(0)
    diagonal, clip = rng.uniform(0.1, 3.0, len(table.parameters)), CLIPS[name](0.3)
    oracle = table.oracle()
    found = oracle(table.parameters, None).minus(oracle(other.parameters, None), 0.9).scaled(diagonal)
    wanted = table.one_by_one().minus(other.one_by_one(), 0.9).scaled(diagonal)
    np.testing.assert_allclose(found.norms(clip.order), wanted.norms(clip.order), rtol=1e-5)
    np.testing.assert_allclose(found.clipped_sum(clip), wanted.clipped_sum(clip), rtol=1e-5, atol=1e-9)
    if clip.order == 2:
        shift = rng.standard_normal(len(diagonal))
        found, wanted = found.shifted(shift, 0.4), wanted.shifted(shift, 0.4)
        np.testing.assert_allclose(found.clipped_sum(clip), wanted.clipped_sum(clip), rtol=1e-5, atol=1e-9)


@SPARSE
@pytest.mark.parametrize("loss", LOSSES)
@EVERY_CLIP
def test_persons_with_one_row_are_rows(name: str, loss: str, sparse: bool) -> None:
    table = usual(loss, sparse, centred=not sparse, counts=(1,) * 9)
    each = LinearOracle(Design(table.matrix, table.frame), table.targets, table.loss)
    diagonal, clip = np.random.default_rng(1).uniform(0.1, 3.0, len(table.parameters)), CLIPS[name](0.5)
    for rows in (None, np.array([0, 3, 8])):
        found, wanted = table.oracle()(table.parameters, rows), each(table.parameters, rows)
        np.testing.assert_array_equal(found.norms(clip.order), wanted.norms(clip.order))
        np.testing.assert_allclose(found.clipped_sum(clip), wanted.clipped_sum(clip), rtol=1e-12, atol=1e-15)
        scaled = found.scaled(diagonal), wanted.scaled(diagonal)
        np.testing.assert_allclose(scaled[0].clipped_sum(clip), scaled[1].clipped_sum(clip), rtol=1e-12, atol=1e-15)


def _exact(table: People, residuals: Vector) -> tuple[Vector, Vector]:
    """‖vₚ‖, and a bound of it: vectors formed one person at a time, in extended precision, whose squares do not overflow."""
    frame, wide = table.frame, np.longdouble
    rows = (table.rows.astype(wide) - (0 if frame.centre is None else frame.centre)) / (1 if frame.scale is None else frame.scale)
    rows = np.hstack([rows, np.full((len(rows), 1), frame.intercept)]) if frame.intercept else rows
    centre = 0.0 if frame.centre is None else float(np.linalg.norm(frame.centre / (1 if frame.scale is None else frame.scale)))
    each = residuals.reshape(len(rows), -1, 1).astype(wide) * rows[:, None, :]
    sizes = np.abs(residuals).reshape(len(rows), -1).sum(axis=1).astype(wide)
    bounds = sizes * (np.sqrt((rows**2).sum(axis=1)) * (1 + 1e-9) + centre * (1 + 1e-6))
    found = []
    for end, count in zip(np.cumsum(table.counts), table.counts, strict=True):
        own = slice(end - count, end)
        found.append([np.sqrt((each[own].mean(axis=0) ** 2).sum()), bounds[own].mean()] if count else [np.inf, np.inf])
    exact, bound = np.array(found, dtype=wide).T
    return exact, bound


@SPARSE
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=60)
@given(st.data())
def test_a_norm_is_never_below_that_of_the_vector_and_above_it_by_rounding_only(
    loss: str, sparse: bool, data: st.DataObject
) -> None:
    table = data.draw(people(loss, sparse, least=0))
    if not table.counts.sum():
        return
    oracle = table.oracle()
    exact, bound = _exact(table, oracle(table.parameters, None)._each.residuals)
    some = np.array(data.draw(st.lists(st.sampled_from(range(len(table.counts))), min_size=1, unique=True)))
    for drawn in (None, some):
        own = slice(None) if drawn is None else drawn
        for norm, truth, most in zip(oracle(table.parameters, drawn).norms(2), exact[own], bound[own], strict=True):
            if not np.isfinite(norm):
                assert not (np.abs(table.rows).max() < 1e300 and most < 1e300)
                continue
            assert norm >= truth * (1 - 1e-9) - 1e-12 * most - 1e-300
            squares_hold = truth > 1e-138 and most < 1e150
            assert norm <= (truth + 3e-6 * most if squares_hold else most) * (1 + 1e-9) + 1e-300


@SPARSE
def test_products_that_are_left_out_break_law_1(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(values: Any, norms: Vector, count: int) -> Vector:
        return np.tile(np.eye(count), (len(norms) // count, 1, 1))

    table = People(np.ones((5, 3)), np.ones(5), np.array([4, 1]), Frame(intercept=0.0), sparse, Squared(), np.zeros(3))
    check_bounded(l2(0.1), table.grads(), [table.without(0).grads()], 1e-6)
    monkeypatch.setattr(person_oracle, "_inner_products", alone)
    moved = table.grads().clipped_sum(l2(0.1)) - table.without(0).grads().clipped_sum(l2(0.1))
    assert np.linalg.norm(moved) == pytest.approx(0.2)


@SPARSE
@pytest.mark.parametrize("loss", LOSSES)
def test_persons_without_rows_who_make_a_piece_of_their_own_are_absent(
    loss: str, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(person_oracle, "CHUNK", 1)
    table = usual(loss, sparse, counts=(0, 3, 0, 0, 2))
    diagonal = np.linspace(0.5, 2.0, len(table.parameters))
    norms = table.grads().scaled(diagonal).norms(2)
    assert np.isinf(norms).tolist() == [True, False, True, True, False]


@SPARSE
def test_without_the_margin_for_rounding_rows_that_cancel_break_law_1(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rows break it depends on how the processor rounds, so there are several."""
    row, targets, kept = np.array([1.0, 0.3, 0.7]), np.array([1e12, -1e12, 0.3]), dict[float, bool]()
    for margin in (ROUNDING, 0.0):
        monkeypatch.setattr(person_oracle, "ROUNDING", margin)
        kept[margin] = True
        for apart in np.linspace(1e-12, 3e-8, 40):
            rows = np.array([row, row * (1 + apart), row])
            table = People(rows, targets, np.array([2, 1]), Frame(intercept=0.0), sparse, Squared(), np.zeros(3))
            moved = table.grads().clipped_sum(l2(1e-6)) - table.without(0).grads().clipped_sum(l2(1e-6))
            kept[margin] &= bool(np.linalg.norm(moved) <= 1e-6 * (1 + 1e-6))
    assert kept == {ROUNDING: True, 0.0: False}


# ---------------------------------------------------------------- which rows stay


def test_which_rows_of_a_person_stay_is_drawn_uniformly_and_for_each_person_alone() -> None:
    persons = Persons.of(np.repeat(["a", "b", "c"], [5, 1, 2]), 8)
    counts = np.zeros(8)
    for seed in range(600):
        drawn = draw_rows(persons, 2, generator(seed))
        assert drawn.counts.tolist() == [2, 1, 2]
        assert (np.diff(drawn.rows) > 0).all()
        counts[drawn.rows] += 1
    assert counts[5:].tolist() == [600] * 3
    assert abs(counts[:5] - 240).max() < 6 * math.sqrt(600 * 0.4 * 0.6)  # false alarm below 1e-8


def test_persons_are_refused_where_rows_are_limited_or_do_not_fit() -> None:
    persons = Persons(np.arange(3), np.array([2, 1]))
    with pytest.raises(CompositionError, match="not what a person does"):
        PersonOracle(LimitedDesign(np.eye(3), Frame(), 1.0), np.zeros(3), Squared(), persons)
    with pytest.raises(CompositionError, match="4 rows, but 3"):
        PersonOracle(Design(np.eye(4), Frame()), np.zeros(4), Squared(), persons)
