"""Surveys: scales and categories that nobody declared, measured with noise and paid for."""

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from privopt.errors import BudgetExceeded
from privopt.measure import surveys
from privopt.measure.clips import l2
from privopt.measure.randomness import generator
from privopt.perexample.columns import Hats, Knots, basis_from_json
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Vector
from privopt.privacy.budget import Budget
from privopt.privacy.events import FailureDpEvent, GaussianDpEvent, SelfComposedDpEvent, compose
from privopt.privacy.ledger import Ledger

RNG = np.random.default_rng(0)


def blocks(values: Vector, step: int = 1000) -> Callable[[], Iterator[Vector]]:
    return lambda: (values[start : start + step] for start in range(0, len(values), step))


def ranges(values: Vector, noise_multiplier: float, ledger: Ledger | None = None, seed: int = 0) -> surveys.Ranges:
    return surveys.column_ranges(
        blocks(values),
        len(values),
        values.shape[1],
        noise_multiplier=noise_multiplier,
        spending=(ledger or Ledger()).run(),
        rng=generator(seed),
    )


# ---------------------------------------------------------------- what is paid


def test_column_ranges_cost_two_gaussians_whatever_the_number_of_columns() -> None:
    for columns in (1, 5):
        ledger = Ledger()
        ranges(RNG.standard_normal((500, columns)), 4.0, ledger)
        assert ledger.event == SelfComposedDpEvent(GaussianDpEvent(4.0), 2)


def test_a_typical_norm_costs_one_gaussian() -> None:
    ledger = Ledger()
    surveys.typical_norm(np.ones(500), noise_multiplier=4.0, spending=ledger.run(), rng=generator(0))
    assert ledger.event == GaussianDpEvent(4.0)


def test_categories_cost_one_gaussian_and_one_failure() -> None:
    ledger = Ledger()
    columns = [np.array(["a", "b"] * 50), np.array(["x"] * 100)]
    surveys.categories(columns, noise_multiplier=4.0, failure=1e-7, spending=ledger.run(), rng=generator(0))
    assert ledger.event == compose([GaussianDpEvent(4.0), FailureDpEvent(1e-7)])


def test_a_survey_that_the_budget_does_not_hold_reads_nothing() -> None:
    def unreadable() -> Iterator[Vector]:
        raise AssertionError("the data were read")

    ledger = Ledger(Budget(0.1, 1e-6))
    with pytest.raises(BudgetExceeded):
        surveys.column_ranges(unreadable, 10, 2, noise_multiplier=1.0, spending=ledger.run(), rng=generator(0))
    assert ledger.entries == ()


# ---------------------------------------------------------------- how far one row moves the votes


@settings(max_examples=60)
@given(arrays(float, (4, 3), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_one_row_moves_the_votes_by_at_most_root_columns_whatever_it_holds(values: Vector) -> None:
    """Law 1, for votes: also for NaN, infinite, tiny and huge entries, and nothing warns of them (law 8)."""
    bins = surveys._MAGNITUDES

    def votes(rows: Vector) -> Vector:
        oracle = surveys._Votes(blocks(rows), surveys._magnitude, bins, len(rows), rows.shape[1])
        return oracle.clipped_sum(l2(math.sqrt(rows.shape[1])))

    total = votes(values)
    assert total.sum() == pytest.approx(12)
    assert total.shape == (3 * bins,)
    for row in range(len(values)):
        assert np.linalg.norm(total - votes(np.delete(values, row, axis=0))) <= math.sqrt(3) * (1 + 1e-9)


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf, 5e-324, 1.7e308, -1.7e308])
def test_a_strange_entry_does_not_break_or_move_the_ranges(strange: float) -> None:
    """One row of 2000 is far below what noise of 20 hides; the same seed, with and without it."""
    values = RNG.uniform(1.0, 2.0, (2000, 2))
    changed = values.copy()
    changed[7, 0] = strange
    one, other = ranges(values, 20.0), ranges(changed, 20.0)
    np.testing.assert_allclose(one.low, other.low, atol=0.5)
    np.testing.assert_allclose(one.high, other.high, atol=0.5)


@pytest.mark.parametrize("strange", [math.nan, math.inf, 0.0, 5e-324, 1.7e308])
def test_a_strange_norm_does_not_break_the_typical_one(strange: float) -> None:
    norms = np.full(2000, 3.0)
    norms[7] = strange
    length = surveys.typical_norm(norms, noise_multiplier=5.0, spending=Ledger().run(), rng=generator(0))
    assert length is not None
    assert 3.0 <= length <= 3.0 * 2**0.5


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize("seed", range(5))
def test_ranges_hold_almost_all_values_and_not_much_more(seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((20_000, 3)) * [1.0, 100.0, 1e-3] + [0.0, 5000.0, 0.0]
    found = ranges(values, 10.0, seed=seed)
    inside = (values >= found.low) & (values <= found.high)
    assert found.known.all()
    assert (inside.mean(axis=0) > 0.95).all()
    assert (found.high - found.low < 30 * values.std(axis=0)).all()


def test_with_too_few_rows_nothing_is_claimed_to_be_known() -> None:
    found = ranges(np.full((3, 2), 1e6), 50.0)
    assert not found.known.any()
    np.testing.assert_array_equal(found.low, [-1, -1])
    np.testing.assert_array_equal(found.high, [1, 1])
    assert surveys.typical_norm(np.ones(3), noise_multiplier=50.0, spending=Ledger().run(), rng=generator(0)) is None


def test_a_constant_column_has_a_range_and_a_column_of_zeros_too() -> None:
    found = ranges(np.column_stack([np.full(5000, 7.0), np.zeros(5000)]), 5.0)
    assert found.low[0] <= 7.0 <= found.high[0]
    assert found.low[1] <= 0.0 <= found.high[1]
    assert np.isfinite([found.low, found.high]).all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_typical_norm_is_the_length_that_few_rows_exceed(scale: float) -> None:
    norms = scale * RNG.uniform(0.5, 1.0, 5000)
    length = surveys.typical_norm(norms, noise_multiplier=3.0, spending=Ledger().run(), rng=generator(0))
    assert length is not None
    assert (norms > length).mean() < 0.06
    assert length <= scale * 2


# ---------------------------------------------------------------- categories


def test_common_values_are_named_and_rare_ones_are_not() -> None:
    column = np.array(["often"] * 400 + ["also"] * 300 + ["once"])
    for seed in range(20):
        named = surveys.categories([column], noise_multiplier=5.0, failure=1e-7, spending=Ledger().run(), rng=generator(seed))
        assert named == [["also", "often"]]


def test_a_value_that_one_row_alone_has_is_named_with_at_most_the_stated_probability() -> None:
    """Threshold 1 + σ Φ⁻¹(1 − δ'/columns): for δ' = 0.2 and one column, exactly 0.2.

    4000 values that occur once each: the share that is named errs by 0.04 with probability at most 6e-6 (Hoeffding).
    """
    column = np.array([f"value {number}" for number in range(4000)])
    named = surveys.categories([column], noise_multiplier=3.0, failure=0.2, spending=Ledger().run(), rng=generator(1))
    assert len(named[0]) / 4000 == pytest.approx(0.2, abs=0.04)


def test_several_columns_share_the_failure_and_the_noise() -> None:
    """Noise grows with √columns, and each column may fail with δ'/columns."""
    column = np.array([f"value {number}" for number in range(4000)])
    named = surveys.categories([column] * 4, noise_multiplier=3.0, failure=0.4, spending=Ledger().run(), rng=generator(1))
    for names in named:
        assert len(names) / 4000 == pytest.approx(0.1, abs=0.04)
    # counts near the threshold show how wide the noise is: half of the values at the threshold are named
    threshold = 1 + 3.0 * 2 * float(norm.isf(0.1))
    common = np.repeat([f"value {number}" for number in range(500)], round(threshold))
    named = surveys.categories([common] * 4, noise_multiplier=3.0, failure=0.4, spending=Ledger().run(), rng=generator(2))
    assert len(named[0]) / 500 == pytest.approx(norm.cdf((round(threshold) - threshold) / 6), abs=0.12)


# ---------------------------------------------------------------- knots


def knots(
    values: Vector, noise_multiplier: float, *, most: int = 8, ledger: Ledger | None = None, seed: int = 0
) -> tuple[Knots | tuple[()], ...]:
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    return surveys.column_knots(
        blocks(values),
        len(values),
        low,
        high,
        knots=most,
        noise_multiplier=noise_multiplier,
        spending=(ledger or Ledger()).run(),
        rng=generator(seed),
    )


def test_knots_cost_one_gaussian_that_is_paid_before_a_row_is_read() -> None:
    ledger = Ledger()
    knots(RNG.standard_normal((500, 3)), 4.0, ledger=ledger)
    assert ledger.event == GaussianDpEvent(4.0)
    with pytest.raises(BudgetExceeded):
        surveys.column_knots(
            lambda: pytest.fail("the rows were read"),
            10,
            np.zeros(1),
            np.ones(1),
            knots=4,
            noise_multiplier=1.0,
            spending=Ledger(Budget(0.1, 1e-6)).run(),
            rng=generator(0),
        )


@settings(max_examples=60, deadline=None)
@given(arrays(float, (4, 3), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_one_row_moves_the_counts_of_knots_by_at_most_root_columns_whatever_it_holds(values: Vector) -> None:
    """Law 1: the bins of the survey as it asks for them, with public ends."""
    asked: list[Any] = []
    count = surveys._Votes.ask

    def watched(oracle: Any, *given: Any) -> Vector:
        asked.append(oracle)
        return count(oracle, *given)

    def votes(rows: Vector) -> Vector:
        with mock.patch.object(surveys._Votes, "ask", watched):
            surveys.column_knots(
                blocks(rows),
                len(rows),
                np.full(3, -1.0),
                np.full(3, 2.0),
                knots=4,
                noise_multiplier=1.0,
                spending=Ledger().run(),
                rng=generator(0),
            )
        return asked[-1].clipped_sum(l2(math.sqrt(3)))

    total = votes(values)
    for row in range(len(values)):
        assert np.linalg.norm(total - votes(np.delete(values, row, axis=0))) <= math.sqrt(3) * (1 + 1e-9)


def test_knots_are_where_values_are_and_at_each_of_a_few_values() -> None:
    many, few = np.random.default_rng(3).exponential(1.0, 50_000), np.random.default_rng(4).integers(0, 5, 50_000)
    curve, steps = knots(np.column_stack([many, few]), 3.0)
    assert isinstance(curve, Knots)
    assert isinstance(steps, Knots)
    assert len(curve.at) == 8
    assert curve.at[3] < np.quantile(many, 0.9) < many.max() == pytest.approx(curve.at[-1])
    assert all(min(abs(knot - value) for knot in steps.at) < 4 / 64 for value in range(5))


def test_no_hat_of_a_few_values_is_left_out_unless_one_of_them_is_most_rows() -> None:
    rng = np.random.default_rng(5)
    equal, mostly = rng.integers(0, 5, 20_000), np.where(rng.random(20_000) < 0.8, 0, rng.integers(0, 5, 20_000))
    every, rest, curve = knots(np.column_stack([equal, mostly, rng.standard_normal(20_000)]), 3.0)
    assert isinstance(every, Knots)
    assert isinstance(rest, Knots)
    assert isinstance(curve, Knots)
    assert len(every.shown) == len(every.at) == 5
    assert rest.shown == [knot for knot in rest.at if knot > 0.5]
    assert len(curve.shown) == len(curve.at) - 1
    hats = Hats((every, rest))
    assert (hats.complete, hats.width) == (1, 9)
    rows = hats.transform(np.array([[0.0, 0.0], [4.0, 4.0]])).toarray()
    np.testing.assert_allclose(rows[:, :5].sum(axis=1), 1.0)
    assert basis_from_json(hats.to_json()) == hats


def test_a_constant_has_no_knots_and_noise_alone_gives_knots_within_the_range() -> None:
    found = knots(np.column_stack([np.full(20, 7.0), np.linspace(-3, 5, 20)]), 500.0)
    assert found[0] == ()
    assert isinstance(found[1], Knots)
    assert -3 <= found[1].at[0] < found[1].at[-1] <= 5


# ---------------------------------------------------------------- what is usual of a target


def test_the_mean_of_a_target_costs_one_gaussian_and_has_its_noise() -> None:
    """2000 draws: a standard deviation is within 8 %, five standard errors."""
    ledger = Ledger()
    surveys.mean_target(np.ones((10, 1)), noise_multiplier=2.0, spending=ledger.run(), rng=generator(0))
    assert ledger.event == GaussianDpEvent(2.0)
    drawn = np.array(
        [
            surveys.mean_target(np.full((100, 1), 0.5), noise_multiplier=2.0, spending=Ledger().run(), rng=generator(seed))[0]
            for seed in range(2000)
        ]
    )
    assert drawn.std() == pytest.approx(2.0 / 100, rel=0.08)
    assert drawn.mean() == pytest.approx(0.5, abs=0.003)


@given(arrays(float, (5, 2), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_one_row_moves_the_sum_of_targets_by_at_most_1(targets: Vector) -> None:
    def total(rows: Vector) -> Vector:
        with np.errstate(all="ignore"):
            return surveys._Vectors(rows).clipped_sum(l2(1.0))

    for row in range(5):
        assert np.linalg.norm(total(targets) - total(np.delete(targets, row, axis=0))) <= 1 + 1e-9


# ---------------------------------------------------------------- sizes of columns


def sizes(matrix: Any, noise_multiplier: float, *, bound: float = 2.0, ledger: Ledger | None = None, seed: int = 0) -> Vector:
    design = Design(matrix, Frame(intercept=0.0))
    spending = (ledger or Ledger()).run()
    return surveys.column_sizes(design, bound=bound, noise_multiplier=noise_multiplier, spending=spending, rng=generator(seed))


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array], ids=["dense", "csr"])
def test_column_sizes_are_mean_absolute_entries_of_rows_within_the_bound(store: Any) -> None:
    rows = np.array([[1.0, 0.0, -1.0], [0.0, 0.0, 1.0], [-3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])  # the third row is 5 long: cut to 2
    np.testing.assert_allclose(sizes(store(rows), 1e-12), [(1 + 3 * 0.4) / 4, 2 * 1e-12 * 2 / 4, (2 + 4 * 0.4) / 4])


def test_column_sizes_are_of_framed_rows() -> None:
    rows, centre, scale = RNG.standard_normal((20, 3)), np.array([0.5, 0.0, -1.0]), np.array([1.0, 2.0, 0.5])
    frame = Frame(centre, scale, 0.0)
    spending, rng = Ledger().run(), generator(0)
    found = surveys.column_sizes(Design(rows, frame), bound=1e6, noise_multiplier=1e-12, spending=spending, rng=rng)
    np.testing.assert_allclose(found, np.abs((rows - centre) / scale).mean(axis=0), rtol=1e-6)


def test_column_sizes_cost_one_gaussian_that_is_paid_before_a_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    sizes(np.ones((5, 2)), 4.0, ledger=ledger)
    assert ledger.event == GaussianDpEvent(4.0)
    monkeypatch.setattr(surveys._Sizes, "norms", lambda self, order: pytest.fail("the rows were read"))
    with pytest.raises(BudgetExceeded):
        sizes(np.ones((5, 2)), 1.0, ledger=Ledger(Budget(0.1, 1e-5)))


def test_no_column_size_is_below_two_standard_deviations_of_its_noise() -> None:
    assert sizes(np.zeros((50, 4)), 3.0).min() >= 2 * 3.0 * 2.0 / 50


@given(arrays(float, (5, 3), elements=st.floats(-1e6, 1e6)), st.sampled_from([1e-3, 1.0, 1e3]))
def test_one_row_moves_the_sum_of_sizes_by_at_most_the_bound(rows: Vector, bound: float) -> None:
    def total(kept: Vector) -> Vector:
        return surveys._Sizes(Design(kept, Frame(intercept=0.0))).clipped_sum(l2(bound))

    for row in range(5):
        assert np.linalg.norm(total(rows) - total(np.delete(rows, row, axis=0))) <= bound * (1 + 1e-9)


def test_the_noise_on_column_sizes_is_the_stated_one() -> None:
    """2000 draws: a standard deviation is within 8 %, five standard errors."""
    drawn = np.array([sizes(np.full((100, 1), 10.0), 2.0, bound=10.0, seed=seed)[0] for seed in range(2000)])
    assert drawn.std() == pytest.approx(2.0 * 10.0 / 100, rel=0.08)
    assert drawn.mean() == pytest.approx(10.0, abs=0.03)


# ---------------------------------------------------------------- the mean of rows


def mean_row(rows: Vector, noise_multiplier: float, *, bound: float = 2.0, ledger: Ledger | None = None, seed: int = 0) -> Vector:
    design = Design(rows, Frame(intercept=0.0))
    spending = (ledger or Ledger()).run()
    return surveys.mean_row(design, bound=bound, noise_multiplier=noise_multiplier, spending=spending, rng=generator(seed))


def test_the_mean_of_rows_costs_one_gaussian_that_is_paid_before_a_row_is_read() -> None:
    ledger = Ledger()
    mean_row(RNG.uniform(-1, 1, (500, 3)), 4.0, ledger=ledger)
    assert ledger.event == GaussianDpEvent(4.0)
    with (
        mock.patch.object(Design, "norms", side_effect=AssertionError("the rows were read")),
        pytest.raises(BudgetExceeded),
    ):
        mean_row(np.ones((10, 2)), 1.0, ledger=Ledger(Budget(0.1, 1e-6)))


@settings(max_examples=60)
@given(
    arrays(float, (5, 3), elements=st.floats(allow_nan=True, allow_infinity=True)),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.sampled_from([None, np.array([0.5, -3.0, 1e3])]),
)
def test_one_row_moves_the_sum_of_rows_by_at_most_the_bound(rows: Vector, bound: float, centre: Vector | None) -> None:
    """Law 1, as the survey asks for it: also for NaN, infinite and huge entries."""

    def total(kept: Vector) -> Vector:
        with np.errstate(all="ignore"):
            return surveys._Rows(Design(kept, Frame(centre, None, 0.0))).clipped_sum(l2(bound))

    for row in range(5):
        assert np.linalg.norm(total(rows) - total(np.delete(rows, row, axis=0))) <= bound * (1 + 1e-6)


def test_the_mean_of_rows_is_found_and_shrunk_towards_0_where_noise_dominates() -> None:
    rows = np.array([0.8, -0.2, 0.0]) + RNG.uniform(-0.1, 0.1, (20_000, 3))
    np.testing.assert_allclose(mean_row(rows, 10.0), rows.mean(axis=0), atol=0.01)
    lengths = [np.linalg.norm(mean_row(rows, 1e6, seed=seed)) for seed in range(50)]
    assert np.mean(lengths) < 0.5 * 1e6 * 2.0 / len(rows) * math.sqrt(3)  # of the noise
