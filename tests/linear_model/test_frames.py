"""Estimators that are given data frames: text, dates and missing values, declared or surveyed within the budget."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from privopt.datasets import Date, Encoding, Numeric, Schema
from privopt.datasets.unknown_columns import find_encoding
from privopt.errors import InputError, PrivoptWarning
from privopt.linear_model import HuberRegressor, LogisticRegression, Ridge, TableEncoder
from privopt.measure import surveys
from privopt.privacy.budget import Budget
from privopt.privacy.events import FailureDpEvent, atoms
from privopt.privacy.ledger import Ledger
from privopt.runs.execution import start
from tests.problems import PATIENTS, patients, patients_request

SIZE = 3000
_rng = np.random.default_rng(3)
_age = _rng.integers(18, 90, SIZE).astype(float)
_region = _rng.choice(["north", "south", "east"], SIZE, p=[0.5, 0.3, 0.2])
_score = (_age - 54) / 12 + 2 * (_region == "south") - 0.5 + _rng.logistic(size=SIZE)
DATA: dict[str, Any] = {
    "age": [None if missing else age for missing, age in zip(_rng.random(SIZE) < 0.1, _age.tolist(), strict=True)],
    "region": [None if missing else region for missing, region in zip(_rng.random(SIZE) < 0.1, _region.tolist(), strict=True)],
    "day": [f"2024-{month:02}-01" for month in _rng.integers(1, 13, SIZE)],
}
Y = np.where(_score > 0, "yes", "no")
IDS = np.arange(SIZE) // 2
DECLARED = {
    "target": {"classes": ["no", "yes"]},
    "columns": {
        "age": {"low": 18, "high": 90, "missing": "indicator"},
        "region": {"values": ["north", "south", "east", "(missing)"]},
        "day": {"type": "date", "parts": ["month"]},
    },
}
TYPED = {"columns": {"age": {"missing": "indicator"}, "day": {"ignore": True}}}
LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("schema", [DECLARED, TYPED], ids=["declared", "surveyed"])
def test_a_frame_is_learnt_from(library: str, schema: Any) -> None:
    frame = LIBRARIES[library](DATA)
    model = LogisticRegression(3.0, schema=schema, random_state=0).fit(frame, Y)
    assert model.score(frame, Y) > 0.75
    assert model.feature_names_in_.tolist() == ["age", "region", "day"]
    assert model.encoding_ is not None
    assert model.coef_.shape == (1, len(model.get_feature_names_out()))
    statement = model.privacy_.statement
    assert statement.epsilon <= 3.0
    assert statement.event == model.privacy_.ledger.event


def test_the_three_libraries_give_the_same_model() -> None:
    models = [LogisticRegression(3.0, schema=TYPED, random_state=0).fit(make(DATA), Y) for make in LIBRARIES.values()]
    for other in models[1:]:
        assert other.encoding_ == models[0].encoding_
        np.testing.assert_array_equal(other.coef_, models[0].coef_)


def test_what_nobody_declared_is_paid_for_and_what_is_declared_is_not() -> None:
    frame = pd.DataFrame(DATA)
    surveyed = LogisticRegression(1.0, schema=TYPED, random_state=0).fit(frame, Y).privacy_.statement
    assert "the ranges of age" in surveyed.paid_for
    assert "the frequent categories of region" in surveyed.paid_for
    assert any(isinstance(part, FailureDpEvent) for part, _ in atoms(surveyed.event))
    declared = LogisticRegression(1.0, schema=DECLARED, random_state=0).fit(frame, Y).privacy_.statement
    assert "where almost all values of age lie, within the declared ranges" in declared.paid_for
    assert not any("categories" in line for line in declared.paid_for)
    assert not any(isinstance(part, FailureDpEvent) for part, _ in atoms(declared.event))
    assert "the ranges or categories that the schema declares, of 3 of the columns" in declared.assumed_public
    assert any("as declared: 'no', 'yes'" in line for line in declared.assumed_public)


def test_an_estimator_and_the_command_line_encode_a_table_alike(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    frame = pd.read_csv(file)
    target = frame.pop("readmitted")
    folder = start(patients_request(file, schema=None, drop=("cost",)), tmp_path / "run")
    schema = {"columns": {"cost": {"ignore": True}}}
    model = LogisticRegression(2.0, schema=schema, random_state=1).fit(frame, target)
    saved = folder.model()
    assert saved.encoding == model.encoding_
    np.testing.assert_allclose(saved.slopes, model.coef_)
    assert folder.statement().event == model.privacy_.statement.event


def test_regressions_take_the_range_of_the_target_from_the_schema() -> None:
    frame = pd.DataFrame(DATA)
    for kind in (Ridge, HuberRegressor):
        model = kind(3.0, schema=TYPED | {"target": {"low": 0, "high": 100}}, random_state=0).fit(frame, _age)
        assert model.score(frame, _age) > 0.5
        assert "the declared range of the target" in model.privacy_.statement.assumed_public or not any(
            "range of the target" in line for line in model.privacy_.statement.paid_for
        )


def test_labels_may_be_numbers_or_truth_values_where_a_schema_writes_text() -> None:
    frame = pd.DataFrame(DATA)
    for labels, classes in ((Y == "yes", ["False", "True"]), ((Y == "yes").astype(int), [0, 1])):
        model = LogisticRegression(3.0, schema=DECLARED | {"target": {"classes": classes}}, rounds=5, random_state=0)
        assert model.fit(frame, labels).classes_.dtype == labels.dtype


def test_persons_survey_one_row_each() -> None:
    sizes, ask = [], surveys._mean

    def noted(oracle: Any, *rest: Any) -> Any:
        sizes.append(oracle.size)
        return ask(oracle, *rest)

    frame = pl.DataFrame(DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surveys, "_mean", noted)
        model = LogisticRegression(3.0, schema=TYPED, rounds=5, random_state=0).fit(frame, Y, groups=IDS)
    assert set(sizes) == {SIZE // 2}
    assert model.privacy_.statement.budget.unit == "person"


def test_scikit_learn_can_clone_cross_validate_and_pickle() -> None:
    frame = pd.DataFrame(DATA)
    model = LogisticRegression(5.0, schema=Schema.from_json(DECLARED), rounds=20, random_state=0)
    assert clone(model).schema == model.schema
    assert cross_val_score(model, frame, Y, cv=2).min() > 0.7
    fitted = model.fit(frame, Y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(frame), fitted.predict(frame))


def test_public_rows_are_encoded_like_the_private_ones() -> None:
    frame = pd.DataFrame(DATA)
    model = LogisticRegression(3.0, method="adadps", schema=TYPED, public=(frame[:500], Y[:500]), rounds=5, random_state=0)
    assert model.fit(frame[500:], Y[500:]).privacy_.statement.public_data
    ledger = Ledger()
    with pytest.raises(InputError, match="the public rows lack column 'region'"):
        model.set_params(public=(frame[["age"]], Y), ledger=ledger).fit(frame, Y)
    assert not ledger.entries


def test_a_frame_of_numbers_without_a_schema_is_a_matrix_as_before() -> None:
    rows = pd.DataFrame({"a": _age, "b": np.arange(SIZE) % 2 == 0})
    model = LogisticRegression(3.0, rounds=5, numeric="linear", random_state=0).fit(rows, Y)
    assert model.encoding_ is None
    assert model.coef_.shape == (1, 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"age": [*DATA["age"][:-1], "secret"]}, "holds text"),
        ({"weight": np.where(np.arange(SIZE) == 0, np.nan, 1.0)}, r"'weight' holds missing or infinite numbers"),
        ({"day": ["secret"] * SIZE}, "is to hold dates"),
    ],
)
def test_a_table_that_cannot_be_encoded_is_refused_before_anything_is_paid(change: Any, says: str) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match=says) as caught:
        LogisticRegression(3.0, schema=DECLARED, ledger=ledger).fit(pd.DataFrame(DATA | change), Y)
    assert "secret" not in str(caught.value)
    assert not ledger.entries


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"schema": {"columns": {"height": {"ignore": True}}}}, "mentions column 'height', which the data do not have"),
        ({"schema": TYPED, "bounds": (0, 1)}, "bounds is for rows of plain numbers"),
        ({"schema": TYPED, "delta": 0.0, "method": "sagd-lap"}, "nothing can be estimated: declare 'age', 'region'"),
        ({"schema": TYPED, "method": "no-such"}, "no-such"),
        ({"schema": TYPED, "options": {"size": 5}}, "no option size"),
        ({"schema": 5}, "schema is 5; it is a Schema"),
    ],
)
def test_settings_that_cannot_hold_are_refused_before_a_table_is_surveyed(settings: Any, says: str) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match=says):
        LogisticRegression(3.0, ledger=ledger, **settings).fit(pd.DataFrame(DATA), Y)
    assert not ledger.entries


def test_nobody_is_told_how_many_rows_hold_a_value_that_is_not_listed() -> None:
    frame, strange = pd.DataFrame(DATA), pd.DataFrame(DATA | {"region": ["west"] * SIZE})
    model = LogisticRegression(3.0, schema=DECLARED, rounds=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivoptWarning)
        model.fit(strange, Y).predict(strange)
        TableEncoder(DECLARED).fit_transform(strange)
        model.fit(frame, Y)


def test_frames_that_are_empty_or_lack_columns_or_change_their_types() -> None:
    frame = pd.DataFrame(DATA)
    model = LogisticRegression(3.0, schema=DECLARED, rounds=5, random_state=0).fit(frame, Y)
    for wrong, says in (
        (frame.iloc[:0], "no rows"),
        (frame[["age"]], "lack columns.*'region', 'day'"),
        (frame.assign(age="secret"), "'age' is to be numeric, but holds text"),
        (frame.to_numpy(), "a frame with named columns is needed"),
    ):
        with pytest.raises(InputError, match=says) as caught:
            model.predict(wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="no rows"):
        clone(model).fit(frame.iloc[:0], Y[:0])
    with pytest.raises(ValueError, match="inconsistent numbers"):
        clone(model).fit(frame, Y[:-1])


@pytest.mark.parametrize("library", LIBRARIES)
def test_identifiers_are_left_out_of_frames_of_plain_numbers_too(library: str) -> None:
    frame = LIBRARIES[library]({"patient": IDS, "age": _age})
    with pytest.warns(PrivoptWarning, match=r"'patient', by the name an identifier.* fit\(X, y, groups=X\['patient'\]\)"):
        model = LogisticRegression(3.0, random_state=0).fit(frame, Y)
    assert not any("patient" in name for name in model.get_feature_names_out())
    insisted = LogisticRegression(3.0, bounds=([0, 18], [SIZE, 90]), random_state=0).fit(frame, Y)
    assert any("patient" in name for name in insisted.get_feature_names_out())


def test_missing_numbers_of_plain_frames_are_answered_with_a_schema_not_with_an_imputer() -> None:
    frame = pd.DataFrame({"age": DATA["age"]}, dtype=float)
    with pytest.raises(InputError, match='"missing": "indicator"') as caught:
        LogisticRegression(3.0).fit(frame, Y)
    assert "HistGradientBoosting" not in str(caught.value)
    schema = {"columns": {"age": {"missing": "indicator"}}}
    assert LogisticRegression(3.0, schema=schema, random_state=0).fit(frame, Y).score(frame, Y) > 0.6
    with pytest.raises(InputError, match="y contains NaN or infinity"):
        Ridge(3.0).fit(frame.fillna(0), np.full(SIZE, np.nan))


def test_identifiers_are_left_out_unless_the_schema_says_what_they_hold() -> None:
    frame = pd.DataFrame(DATA | {"patient_id": IDS.astype(str)})
    with pytest.warns(PrivoptWarning, match=r"left out of the model: 'patient_id'.*groups=X\['patient_id'\]"):
        model = LogisticRegression(3.0, schema=DECLARED, rounds=5, random_state=0).fit(frame, Y)
    assert model.encoding_ is not None
    assert "patient_id" not in dict(model.encoding_.columns)


def test_a_ledger_that_runs_dry_in_a_survey_is_not_overdrawn() -> None:
    ledger = Ledger(Budget(0.5, 1e-5))
    with pytest.raises(Exception, match="exceed the ledger's budget"):
        LogisticRegression(3.0, schema=TYPED, ledger=ledger).fit(pd.DataFrame(DATA), Y)
    assert ledger.used <= 1


def test_nothing_is_surveyed_of_columns_whose_categories_are_declared() -> None:
    kinds = {name: kind for name, kind in Schema.from_json(DECLARED).columns.items() if not isinstance(kind, Numeric)}
    encoding, paid = find_encoding(None, kinds, None, None)  # type: ignore[arg-type]
    assert paid == []
    assert isinstance(encoding, Encoding)


# ---------------------------------------------------------------- the encoder by itself


def test_an_encoder_learns_nothing_and_works_in_a_pipeline() -> None:
    frame = pl.DataFrame(DATA)
    encoder = TableEncoder(DECLARED)
    np.testing.assert_array_equal(encoder.transform(frame), TableEncoder(DECLARED).fit(frame[:10]).transform(frame))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a step that learns
        model = make_pipeline(encoder, LogisticRegression(3.0, bounds=(-1, 1), random_state=0)).fit(frame, Y)
    assert model.score(frame, Y) > 0.75
    assert "earlier in the pipeline" not in str(model[-1].privacy_)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (None, "needs a schema"),
        (TYPED, "does not say all about 'age'"),
        ({"columns": {"age": {"low": 0, "high": 1, "missing": 0}}}, "says nothing about 'region', 'day'"),
    ],
)
def test_an_encoder_estimates_nothing(schema: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        TableEncoder(schema).fit(pd.DataFrame(DATA)).transform(pd.DataFrame(DATA))


def test_an_encoder_reads_the_file_that_the_command_line_reads(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(PATIENTS.to_json()))
    names = TableEncoder(path).get_feature_names_out().tolist()
    assert names == ["age", "income", "region=north", "region=south", "region=east", "smoker=True", "smoker=False"]


def test_the_range_of_years_is_found_near_the_years() -> None:
    """Powers of two from 0 would put all years of our time into one of them, and a range into 0 … 2032."""
    days = pd.to_datetime("2019-01-01") + pd.to_timedelta(np.arange(SIZE) % 900, "D")
    rows = pd.DataFrame({"day": pd.Series(days).where(np.arange(SIZE) % 20 > 0)})
    schema = {"columns": {"day": {"type": "date", "parts": ["year"], "missing": "indicator"}}}
    for ids, epsilon in ((None, 1.0), (IDS, 1.0)):
        model = LogisticRegression(epsilon, schema=schema, random_state=0).fit(rows, Y, groups=ids)
        assert model.encoding_ is not None
        ((_, kind),) = model.encoding_.columns
        assert isinstance(kind, Date)
        assert kind.years is not None
        assert 2000 <= kind.years.low <= 2019
        assert 2021 <= kind.years.high <= 2032


def test_columns_of_the_same_name_are_refused_also_among_numbers() -> None:
    with pytest.raises(InputError, match="several columns of the same name"):
        Ridge(1.0).fit(pd.DataFrame(np.ones((SIZE, 2)), columns=["a", "a"]), np.arange(SIZE))


def test_text_as_the_target_of_a_regression_is_named_as_such() -> None:
    with pytest.raises(InputError, match="y holds text, but a regression needs numbers"):
        Ridge(1.0).fit(np.ones((SIZE, 2)), Y)
