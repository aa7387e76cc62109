"""Units: the unit that a budget promises to protect is the one that is clipped and sampled."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import client_update, gradient
from privopt.measure.samplers import full_batch
from privopt.measure.units import check_unit, each_person, each_row, each_user
from privopt.measure.without_mechanism import unasked
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.grads import Materialized, Rows, Vector
from privopt.perexample.user_vectors import LocalSteps
from privopt.postprocess.updates import sgd
from privopt.privacy import budget as budgets
from privopt.privacy.budget import Budget
from privopt.privacy.events import GaussianDpEvent
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement
from privopt.recipe import Recipe, after, always, every
from tests.laws.table import SAMPLES
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


# ---------------------------------------------------------------- persons


class Persons:
    """An oracle that has a vector for each person."""

    size, unit = 12, "person"

    def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
        return Materialized(np.ones((12, 2)))


ROWS = dp_sgd(rounds=2, noise_multiplier=50.0, clip_bound=1.0, learning_rate=0.1)
PERSONS = ROWS.protecting(each_person())


def test_a_recipe_for_persons_costs_what_it_costs_for_rows_and_runs_on_persons() -> None:
    assert [one.unit for one in PERSONS.measurements] == [each_person()]  # type: ignore[attr-defined]
    assert PERSONS.planned_event() == ROWS.planned_event()
    ledger = Ledger(Budget(1.0, 1e-5, unit="person"))
    run(PERSONS, Persons(), np.zeros(2), spending=ledger.run())
    assert ledger.event == PERSONS.planned_event()


@pytest.mark.parametrize("recipe", [ROWS, PERSONS], ids=["rows", "persons"])
def test_a_recipe_is_refused_on_an_oracle_of_another_unit(recipe: Recipe) -> None:
    oracle = Persons() if recipe is ROWS else Unreadable()
    ledger = Ledger()
    with pytest.raises(CompositionError, match="what is clipped is what is protected"):
        run(recipe, oracle, np.zeros(2), spending=ledger.run())
    assert not ledger.entries


def test_rows_under_a_budget_for_persons_are_refused_before_anything_is_paid() -> None:
    """Sampling and clipping rows would let a person with many rows move the sum by as many bounds."""
    ledger = Ledger(Budget(1.0, 1e-5, unit="person"))
    with pytest.raises(CompositionError, match="one person"):
        run(ROWS, Unreadable(), np.zeros(2), spending=ledger.run())
    assert not ledger.entries


@pytest.mark.parametrize("plan", ["always", "every", "after", "own"])
def test_every_plan_of_measurements_is_for_persons(plan: str) -> None:
    one, other = measurement(each_row()), Measurement(full_batch(), [gradient() @ l2(2.0)], gaussian(10.0))
    plans: dict[str, Any] = {
        "always": always(one),
        "every": every(2, one, otherwise=other),
        "after": after(2, one, before=other),
        "own": lambda round_: one if round_ % 2 else other,
    }
    changed = Recipe(4, plans[plan], sgd(0.1)).protecting(each_person())
    assert {found.unit for found in changed.measurements} == {each_person()}  # type: ignore[attr-defined]
    assert len(changed.measurements) == (1 if plan == "always" else 2)


@pytest.mark.parametrize("name", ["dp-agd", "output-perturbation", "sagd-sparse"])
def test_answers_of_another_kind_go_on_protecting_each_row(name: str) -> None:
    """Losses, stable solutions and thresholds are bounded for rows only."""
    recipe = SAMPLES[name](4, 10.0).protecting(each_person())
    with pytest.raises(CompositionError, match="one person"):
        check_unit(Budget(1.0, 1e-5, unit="person"), *recipe.measurements)


def test_users_of_a_federation_are_no_persons() -> None:
    update = Measurement(full_batch(), [client_update(LocalSteps(1, 1.0, 1)) @ l2(1.0)], gaussian(1.0), unit=each_user())
    assert update.protecting(each_person()) is update
    with pytest.raises(CompositionError, match="client_update gives a vector for one user"):
        Measurement(full_batch(), [client_update(LocalSteps(1, 1.0, 1)) @ l2(1.0)], gaussian(1.0), unit=each_person())
