"""Estimators that protect persons: fit(X, y, groups=ids)."""

from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from privopt.errors import CompositionError, InputError, PrivoptWarning
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge
from privopt.measure import surveys
from privopt.measure.mechanisms import gaussian
from privopt.methods import METHODS
from privopt.perexample.person_oracle import PersonOracle
from privopt.perexample.persons import Persons
from privopt.privacy.budget import Budget, default_delta
from privopt.privacy.ledger import Ledger
from tests.laws.table import ROW_METHODS
from tests.problems import binary_rows, regression_rows

X, Y = binary_rows(6000)
IDS = np.repeat(np.arange(2400), [1, 4] * 1200)  # 2400 persons
REFUSED = ["dp-agd", "output-perturbation", "sagd-sparse", "ideal", "adas"]  # what bounds rows only, or nothing
TRAINED = [name for name in ROW_METHODS if name not in REFUSED]
PUBLIC = {"public": (X[:100], Y[:100])}


@pytest.mark.parametrize("matrix", [X, sp.csr_array(X), X.astype("float32")], ids=["dense", "csr", "float32"])
def test_a_model_of_persons_learns_and_says_whom_it_protects(matrix: Any) -> None:
    model = LogisticRegression(3.0, random_state=0).fit(matrix, Y, groups=IDS)
    assert model.score(matrix, Y) > 0.8
    statement = model.privacy_.statement
    assert statement.budget == Budget(3.0, default_delta(2400), unit="person")
    assert statement.epsilon <= 3.0
    text = statement.text()
    assert "Unit: one person (all rows of a person together)." in text
    assert "the number of persons (2400), the number of rows (6000)" in text
    assert "batch size: all persons" in text


def test_several_classes_and_regressions_of_persons() -> None:
    three = np.digitize(X @ np.linspace(-3, 3, 5), [-1, 1])
    assert LogisticRegression(5.0, random_state=0).fit(X, three, groups=IDS).score(X, three) > 0.7
    rows, targets = regression_rows(6000)
    for estimator in (Ridge, HuberRegressor):
        assert estimator(3.0, random_state=0).fit(rows, targets, groups=IDS).score(rows, targets) > 0.9


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_that_measures_vectors_protects_persons(name: str) -> None:
    given: dict[str, Any] = {"rounds": None if name == "bassily-sgd" else 5}
    given |= PUBLIC if METHODS[name].uses_public else {}
    given |= {"batch_size": 300} if name == "sagd-minibatch" else {}
    estimator = LogisticRegression(2.0, method=name, random_state=0, **given)
    estimator.fit(X[:1500], Y[:1500], groups=IDS[:1500])
    assert estimator.privacy_.statement.budget.unit == "person"
    assert estimator.privacy_.statement.epsilon <= 2.0


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_that_bounds_rows_only_is_refused_before_anything_is_paid(name: str) -> None:
    ledger = Ledger()
    options: dict[str, Any] = {} if METHODS[name].private else {"options": {"without_privacy": True}}
    needs = PUBLIC if METHODS[name].uses_public else {}
    estimator: Any = HuberRegressor if name == "output-perturbation" else LogisticRegression
    with pytest.raises(CompositionError, match="one person"):
        estimator(2.0, method=name, ledger=ledger, **options, **needs).fit(X, Y, groups=IDS)
    assert not ledger.entries


def test_poisson_batches_are_of_persons() -> None:
    model = LogisticRegression(3.0, batch_size=240, rounds=20, random_state=0).fit(X, Y, groups=IDS)
    assert "240 of 2400 on average (Poisson)" in model.privacy_.statement.text()
    assert "sampling_probability" in str(model.privacy_.statement.to_json()["event"])


@pytest.mark.parametrize("given", [{}, {"bounds": (-1, 1)}, {"method": "adadps", "options": {"scale": "frequency"}}])
def test_every_survey_is_answered_by_one_row_of_each_person(given: dict[str, Any]) -> None:
    sizes, ask = [], surveys._mean

    def noted(oracle: Any, *rest: Any) -> Any:
        sizes.append(oracle.size)
        assert len(oracle.norms(2)) == 2400
        return ask(oracle, *rest)

    with mock.patch.object(surveys, "_mean", noted):
        LogisticRegression(3.0, rounds=3, random_state=0, **given).fit(X, Y, groups=IDS)
        Ridge(3.0, rounds=3, random_state=0, **given).fit(X, Y.astype(float), groups=IDS)
    assert sizes
    assert set(sizes) == {2400}


def test_one_person_with_very_many_strange_rows_does_not_decide_the_scales() -> None:
    rows, targets, ids = X.copy(), Y.copy(), IDS.copy()
    rows[3000:] = 1e6  # half of the rows are one person's
    ids[3000:] = ids[3000]
    model = LogisticRegression(10.0, random_state=0).fit(rows, targets, groups=ids)
    assert model.score(X[:3000], Y[:3000]) > 0.8


def test_rows_of_a_class_that_is_not_declared_are_left_out_and_persons_stay() -> None:
    strange = np.where(np.arange(6000) % 7 == 0, 5, Y)
    model = LogisticRegression(5.0, classes=[0, 1], random_state=0).fit(X, strange, groups=IDS)
    assert model.score(X, Y) > 0.8
    assert "(2400)" in model.privacy_.statement.text()


def test_at_most_so_many_rows_of_a_person_count() -> None:
    seen: list[Persons] = []

    def noted(design: Any, targets: Any, loss: Any, persons: Persons) -> PersonOracle:
        seen.append(persons)
        return PersonOracle(design, targets, loss, persons)

    for most, largest in ((None, 4), (2, 2), (1, 1)):
        with mock.patch("privopt.training.linear.PersonOracle", noted):
            LogisticRegression(3.0, rounds=2, random_state=0).fit(X, Y, groups=IDS, rows_per_person=most)
        assert seen[-1].counts.max() == largest


def test_ids_may_be_text_numbers_or_a_column_of_pandas() -> None:
    texts = np.array([f"p{one}" for one in IDS])
    fits = [
        LogisticRegression(3.0, rounds=3, random_state=0).fit(X, Y, groups=ids)
        for ids in (IDS, IDS.astype(float), texts, texts.astype(object), pd.Series(IDS).astype("Int64"), list(texts))
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(other.coef_, fits[0].coef_)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS[:-1], "6000 rows"),
        (np.where(IDS == 3, np.nan, IDS), "no id"),
        (np.array([None, *IDS[1:]], dtype=object), "no id"),
        (pd.Series(IDS).astype("Int64").where(IDS != 3), "no id"),
        (np.zeros(6000), "one person"),
        (np.array(["3", *IDS[1:]], dtype=object), "several types"),
        (np.array(["12", "12.0"] * 3000), "several ways"),
        (IDS[:, None], "shape"),
    ],
)
def test_ids_that_tell_nobody_apart_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LogisticRegression(3.0).fit(X, Y, groups=ids)


@pytest.mark.parametrize("most", [0, -1, 2.5, True, "3"])
def test_a_number_of_rows_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(InputError, match="rows_per_person"):
        LogisticRegression(3.0).fit(X, Y, groups=IDS, rows_per_person=most)
    with pytest.raises(InputError, match="groups=ids"):
        LogisticRegression(3.0).fit(X, Y, rows_per_person=3)


def test_a_ledger_of_another_unit_is_refused_before_anything_is_paid() -> None:
    for ledger, groups in ((Ledger(Budget(5.0, 1e-5)), IDS), (Ledger(Budget(5.0, 1e-5, unit="person")), None)):
        with pytest.raises(CompositionError, match="Use a ledger of the same unit"):
            LogisticRegression(1.0, ledger=ledger).fit(X, Y, groups=groups)
        assert not ledger.entries


def test_a_ledger_for_persons_is_charged_what_was_planned() -> None:
    ledger = Ledger(Budget(5.0, 1e-5, unit="person"))
    model = LogisticRegression(1.0, ledger=ledger, random_state=0).fit(X, Y, groups=IDS)
    assert ledger.event == model.privacy_.statement.event


def test_few_persons_are_too_few_however_many_rows_they_have() -> None:
    with pytest.warns(PrivoptWarning, match="20 persons are too few"):
        LogisticRegression(0.1, bounds=(-1, 1), random_state=0).fit(X, Y, groups=np.arange(6000) % 20)


def test_with_one_row_a_person_the_noise_is_that_of_rows() -> None:
    persons = LogisticRegression(1.0, bounds=1.0, random_state=0).fit(X, Y, groups=np.arange(6000))
    rows = LogisticRegression(1.0, bounds=1.0, random_state=0).fit(X, Y)
    assert persons.privacy_.statement.event == rows.privacy_.statement.event


def test_with_one_row_a_person_and_the_same_noise_the_model_is_that_of_rows() -> None:
    def no_noise(self: gaussian, like: Any, bound: float, rng: Any) -> Any:
        return lambda total: total(None)

    with mock.patch.object(gaussian, "begin", no_noise):
        persons = LogisticRegression(1.0, bounds=1.0, random_state=0).fit(X, Y, groups=np.arange(6000))
        rows = LogisticRegression(1.0, bounds=1.0, random_state=0).fit(X, Y)
    np.testing.assert_allclose(persons.coef_, rows.coef_, rtol=1e-9)


def test_persons_in_any_order() -> None:
    shuffled = Persons.of(["b", "a", "c", "a", "b"], 5)
    assert shuffled.rows.tolist() == [0, 4, 1, 3, 2]
    assert shuffled.where(np.array([True, False, True, True, False])).counts.tolist() == [1, 1, 1]
