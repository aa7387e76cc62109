"""Units: the unit that a budget promises to protect is the one that is clipped and sampled."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import full_batch
from privopt.measure.units import check_unit, each_row
from privopt.measure.without_mechanism import unasked
from privopt.postprocess.updates import sgd
from privopt.privacy import budget as budgets
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement
from privopt.recipe import Recipe, always
from tests.problems import Unreadable


@dataclass(frozen=True)
class each_household:  # noqa: N801
    name: ClassVar[str] = "household"


class household_gradient(gradient):  # noqa: N801
    unit = each_household()  # type: ignore[assignment]


def measurement(unit: object) -> Measurement:
    query = gradient() if unit == each_row() else household_gradient()
    return Measurement(full_batch(), [query @ l2(1.0)], gaussian(10.0), unit=unit)  # type: ignore[arg-type]


@pytest.fixture
def household(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second unit."""
    monkeypatch.setitem(budgets.UNITS, "household", "all rows of one household")  # type: ignore[misc]


@pytest.mark.usefixtures("household")
@pytest.mark.parametrize(("promised", "unit"), [("household", each_row()), ("example", each_household())])
def test_a_run_whose_unit_is_not_the_budget_s_is_refused_before_anything_is_paid(promised: str, unit: object) -> None:
    ledger = Ledger(Budget(1.0, 1e-5, unit=promised))  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="household"):
        run(Recipe(3, always(measurement(unit)), sgd(0.1)), Unreadable(), np.zeros(2), spending=ledger.run())
    assert not ledger.entries


@pytest.mark.usefixtures("household")
def test_what_names_no_unit_protects_each_row() -> None:
    check_unit(Budget(1.0), unasked())
    with pytest.raises(CompositionError, match="one example"):
        check_unit(Budget(1.0, unit="household"), unasked())  # type: ignore[arg-type]


def test_each_row_is_what_measurements_have_and_budgets_promise() -> None:
    assert Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(10.0)).unit == each_row()
    check_unit(Budget(1.0), measurement(each_row()))
    check_unit(None, measurement(each_household()))  # a ledger without a budget promises nothing


@pytest.mark.usefixtures("household")
def test_the_statement_prints_the_unit_of_the_budget() -> None:
    statement = Statement(Budget(1.0, 1e-5, unit="household"), GaussianDpEvent(10.0), "a model")  # type: ignore[arg-type]
    assert "Unit: all rows of one household." in statement.text()
    assert statement.to_json()["unit"] == "all rows of one household"
