"""Rounds that ask nothing, and answers that hide nothing: what they cost is what they are."""

import math
from typing import Any

import numpy as np
import pytest

from privopt.errors import BudgetExceeded
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient, preconditioned_gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch, poisson
from privopt.measure.without_mechanism import by_clean_scale, in_the_clear, unasked
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import NonPrivateDpEvent, NoOpDpEvent
from privopt.privacy.ledger import Ledger
from privopt.state import Known, PublicState
from tests.problems import Given, Unreadable

ROWS = np.array([[3.0, 0.04], [-1.0, 0.02], [2.0, 0.0], [4.0, -0.02]])
AT = PublicState(np.zeros(2), np.zeros(2), Known(scale=np.array([2.0, 0.01])))
HIDDEN = Measurement(full_batch(), [preconditioned_gradient() @ l2(1.0)], gaussian(2.0))


def test_a_round_that_asks_nothing_reads_nothing_and_costs_nothing() -> None:
    answer = unasked().measure(Unreadable(), AT, 3, generator(0), {"kept": 7})
    np.testing.assert_array_equal(answer.value, [0.0, 0.0])
    assert answer.event == unasked().event(3) == NoOpDpEvent()
    assert answer.carry == {"kept": 7}


def test_an_answer_in_the_clear_is_the_mean_itself_and_is_recorded_as_not_private() -> None:
    for query, expected in ((gradient(), ROWS.mean(axis=0)), (preconditioned_gradient(), (ROWS / [2.0, 0.01]).mean(axis=0))):
        asked = in_the_clear(full_batch(), query)
        answer = asked.measure(Given(ROWS), AT, 0, generator(0))
        np.testing.assert_allclose(answer.value, expected)
        assert answer.event == asked.event(0) == NonPrivateDpEvent()
        assert epsilon(answer.event, 0.9) == math.inf


def test_in_the_clear_too_a_mean_divides_by_the_expected_batch_and_leaves_out_what_is_not_finite() -> None:
    sampler = poisson(0.5)
    rows = sampler.draw(4, 0, generator(1))
    answer = in_the_clear(sampler, gradient()).measure(Given(ROWS), AT, 0, generator(1))
    np.testing.assert_allclose(answer.value, ROWS[rows].sum(axis=0) / 2.0)
    spoilt = np.vstack([ROWS, [[math.nan, 1.0]]])
    whole = in_the_clear(full_batch(), gradient()).measure(Given(spoilt), AT, 0, generator(1))
    np.testing.assert_allclose(whole.value, ROWS.sum(axis=0) / 5)


def test_a_clean_scale_is_a_running_root_mean_square_of_clean_means() -> None:
    clean = by_clean_scale(HIDDEN, full_batch(), decay=0.75, stability=0.1)
    mean, second, carry = ROWS.mean(axis=0), np.zeros(2), dict[str, Any]()
    for round_ in range(3):
        second = 0.75 * second + 0.25 * mean**2
        answer = clean.measure(Given(ROWS), AT, round_, generator(round_), carry)
        known = PublicState(AT.current, AT.previous, Known(scale=np.sqrt(second) + 0.1))
        np.testing.assert_allclose(answer.value, HIDDEN.measure(Given(ROWS), known, round_, generator(round_)).value)
        assert answer.event == clean.event(round_) == NonPrivateDpEvent()
        carry = answer.carry
        np.testing.assert_allclose(carry["second"], second)


@pytest.mark.parametrize("asked", [in_the_clear(full_batch(), gradient()), by_clean_scale(HIDDEN, full_batch())], ids=str)
def test_no_budget_holds_an_answer_without_privacy(asked: in_the_clear | by_clean_scale) -> None:
    ledger = Ledger(Budget(1e9, 0.99))
    with pytest.raises(BudgetExceeded):
        ledger.run().pay([asked.event(0)])
    assert ledger.entries == ()
