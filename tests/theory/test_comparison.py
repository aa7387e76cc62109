"""The comparison table: by hand, and its rows are what the papers' files say."""

import math

import pytest

from privopt.theory import Bound, orders, wang_stochastic_nonconvex, zhang_smooth_erm, zhou_private_nonconvex
from privopt.theory.comparison import Row
from tests.theory.conftest import BUDGET, PROBLEM


def test_the_orders_by_hand() -> None:
    """n = 1000, nε = 512, d ln(1/δ) = 64: √, ∛ and ∜ are whole or halves of powers of 2."""
    delta = math.exp(-16)
    rrpsgd, gd, spiderboost, srm = orders(1000, 4, epsilon=0.512, delta=delta)
    assert [gd.utility, gd.gradients] == pytest.approx([1 / 8, 64_000])
    assert [srm.utility, srm.gradients] == pytest.approx([1 / 16, 4096])
    assert [spiderboost.utility, spiderboost.gradients] == pytest.approx([1 / 16, 4096 + 16_000])
    assert rrpsgd.utility == pytest.approx((64 * (math.log(1000) + 16)) ** 0.25 / math.sqrt(512))
    assert rrpsgd.gradients == 10**6


def test_rows_are_what_their_papers_prescribe(compared: tuple[Row, Row, Row, Row]) -> None:
    rrpsgd, gd, spiderboost, srm = compared
    assert tuple(row.order for row in compared) == orders(2000, 10, **BUDGET)

    descent = zhou_private_nonconvex.gd_expected_plan(PROBLEM, **BUDGET)
    assert (gd.rounds, gd.batch, gd.learning_rate, gd.noise) == (descent.rounds, 2000, 1.0, descent.noise)
    squared = zhou_private_nonconvex.gd_expected_bound(PROBLEM, rounds=descent.rounds, noise=descent.noise.needed)
    assert value(gd.needed_bound) == pytest.approx(math.sqrt(squared.number))

    assert (rrpsgd.rounds, rrpsgd.batch) == (4_000_000, 1)
    assert rrpsgd.noise is not None
    squared = zhang_smooth_erm.rrpsgd_bound(PROBLEM, rounds=4_000_000, noise=rrpsgd.noise.printed)
    assert value(rrpsgd.printed_bound) == pytest.approx(math.sqrt(squared.number))
    assert value(rrpsgd.needed_bound) < value(rrpsgd.printed_bound)

    plan = wang_stochastic_nonconvex.plan(PROBLEM, **BUDGET)
    assert (srm.rounds, srm.batch, srm.failing) == (plan.rounds, plan.batch, plan.failing)
    assert value(srm.needed_bound) < value(srm.printed_bound)

    assert (spiderboost.rounds, spiderboost.noise, spiderboost.needed_bound) == (None, None, None)


def value(bound: Bound | None) -> float:
    assert bound is not None
    assert bound.of.startswith("E‖∇F")
    return bound.number
