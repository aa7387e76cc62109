"""Schemas: what is declared is read back, what is wrong is named."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from privopt.datasets import (
    Categorical,
    Date,
    Ignored,
    Numeric,
    Schema,
    UnknownCategorical,
    UnknownNumeric,
    blank_form,
    kinds,
    load,
    text_columns,
)
from privopt.errors import InputError

FULL: dict[str, Any] = {
    "target": {"classes": ["no", "yes"]},
    "columns": {"age": {"low": 18, "high": 90}, "region": {"values": ["north", "south"]}, "notes": {"ignore": True}},
}


def test_a_schema_is_read_and_written_back(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(FULL))
    schema = load(path)
    assert schema.columns == {"age": Numeric(18, 90), "region": Categorical(("north", "south")), "notes": Ignored()}
    assert (schema.classes, schema.target) == (("no", "yes"), None)
    assert schema.to_json() == FULL
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_a_schema_may_say_little() -> None:
    assert Schema.from_json({}) == Schema.from_json({"target": {}, "columns": {}}) == Schema()
    assert Schema.from_json({"target": {"low": 0, "high": 100}}).target == Numeric(0, 100)
    assert Schema.from_json({"target": {"low": 0, "high": 100}}).to_json()["target"] == {"low": 0, "high": 100}


def test_numbers_and_truth_values_may_be_categories() -> None:
    assert Schema.from_json({"target": {"classes": [0, 1.0]}}).classes == ("0", "1")
    assert Schema.from_json({"columns": {"a": {"values": [True, False]}}}).columns["a"] == Categorical(("True", "False"))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"colums": {}}, "the schema has the key 'colums'; the keys are 'target', 'columns'"),
        ([], "the schema is"),
        ({"columns": []}, "'columns' is an object"),
        ({"columns": {"age": {"lo": 1}}}, "column 'age' has the key 'lo'"),
        ({"columns": {"age": {"low": 1}}}, "column 'age' has 'low' only"),
        ({"columns": {"age": {"low": 1, "high": 1}}}, "column 'age': 'low' and 'high' are both 1"),
        ({"columns": {"age": {"low": 2, "high": 1}}}, "column 'age': 'low' is 2 and 'high' is 1"),
        ({"columns": {"age": {"low": "0", "high": 1}}}, "column 'age': 'low' is '0'; it is a finite number"),
        ({"columns": {"age": {"low": True, "high": 2}}}, "column 'age': 'low' is True"),
        ({"columns": {"age": {"low": 0, "high": float("inf")}}}, "column 'age': 'high' is inf"),
        ({"columns": {"age": {"low": 0, "high": 1, "values": ["a"]}}}, "column 'age' has the key 'low'; 'values' stands alone"),
        ({"columns": {"age": {"ignore": True, "low": 1}}}, "column 'age' has the key 'low'; 'ignore' stands alone"),
        ({"columns": {"age": {"ignore": False}}}, "column 'age': 'ignore' is False; it is true, or not there"),
        ({"columns": {"age": {"type": "amount"}}}, "column 'age': 'type' is 'amount'; it is 'number', 'category', 'date'"),
        ({"columns": {"age": {"type": "number", "values": ["a"]}}}, "column 'age' has the key 'values', but of type 'number'"),
        ({"columns": {"age": {"missing": "zero"}}}, "column 'age': 'missing' is 'zero'; it is a finite number, or \"indicator\""),
        ({"columns": {"born": {"parts": ["day"]}}}, "column 'born': 'parts' lists 'day'; the parts of a date are year"),
        ({"columns": {"born": {"type": "date", "missing": "soon"}}}, "column 'born': 'missing' is 'soon'; it is a date"),
        ({"columns": {"born": {"parts": ["month"], "low": 1, "high": 2}}}, "column 'born': 'low' and 'high' are years"),
        ({"columns": {"age": {"note": 5}}}, "column 'age': 'note' is 5; it is text"),
        ({"columns": {"age": 5}}, "column 'age' is 5"),
        ({"columns": {"region": {"values": []}}}, "column 'region': 'values' is empty"),
        ({"columns": {"region": {"values": "north"}}}, "column 'region': 'values' is 'north'; it is a list"),
        ({"columns": {"region": {"values": [None]}}}, "column 'region': 'values'"),
        ({"columns": {"region": {"values": ["n", "n"]}}}, "column 'region': 'values' lists 'n' more than once"),
        ({"columns": {"region": {"values": [1, 1.0]}}}, "column 'region': 'values' lists '1' more than once"),
        ({"target": {"classes": ["yes"]}}, "the target: 'classes' lists only 'yes'"),
        ({"target": {"classes": []}}, "the target: 'classes' is empty"),
        ({"target": {"classes": ["a", "b"], "low": 0}}, "the target has the key 'low'; 'classes' stands alone"),
        ({"target": {"low": 5, "high": 0}}, "the target: 'low' is 5"),
        ({"target": {"kind": 1}}, "the target has the key 'kind'"),
        ({"target": "income"}, "the target is 'income'"),
    ],
)
def test_errors_name_the_column_and_the_key(tmp_path: Path, value: object, says: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(value))
    with pytest.raises(InputError, match=re.escape(f"schema.json: {says}")):
        load(path)


def test_files_that_are_no_schema(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no schema"):
        load(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)
    path = tmp_path / "schema.json"
    path.write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        load(path)
    path.write_text('{"columns": {"age": {"ignore": true}, "age": {"ignore": true}}}')
    with pytest.raises(InputError, match=r"schema\.json: 'age' appears twice"):
        load(path)


def test_a_schema_has_classes_or_a_range() -> None:
    with pytest.raises(InputError, match="not both"):
        Schema(classes=("a", "b"), target=Numeric(0, 1))


def test_unmentioned_columns_are_unknown_by_their_type() -> None:
    frame = pd.DataFrame(
        {
            "age": [1],
            "rate": [1.5],
            "member": [True],
            "region": ["north"],
            "size": pd.Categorical(["S"]),
            "mixed": pd.Series([1, "a"][:1], dtype=object),
        }
    )
    found = kinds(frame, Schema({"age": Numeric(0, 9)}))
    assert list(found) == list(frame.columns)
    assert found["age"] == Numeric(0, 9)
    assert found["rate"] == found["member"] == UnknownNumeric()
    assert found["region"] == found["size"] == found["mixed"] == UnknownCategorical()
    assert kinds(frame)["age"] == UnknownNumeric()


def test_dates_are_refused_unless_ignored() -> None:
    frame = pd.DataFrame({"born": pd.to_datetime(["2020-01-01"])})
    with pytest.raises(InputError, match=r"'born' holds dates.*parts"):
        kinds(frame)
    assert kinds(frame, Schema({"born": Ignored()})) == {"born": Ignored()}


def test_a_schema_that_mentions_other_columns_is_refused() -> None:
    with pytest.raises(InputError, match=r"column 'agee', which the data do not have\. Closest: age"):
        kinds(pd.DataFrame({"age": [1]}), Schema({"agee": Numeric(0, 1)}))


# ---------------------------------------------------------------- forms


FORM_FRAME = pd.DataFrame(
    {
        "patient_id": ["P1", "P2"],
        "age": [41, 52],
        "rate": [0.5, None],
        "member": [True, False],
        "region": ["secret", None],
        "admitted": pd.to_datetime(pd.Series(["1990-05-05", None])),
        "span": pd.to_timedelta(["1 day", "2 days"]),
        "readmitted": ["no", "yes"],
    }
)


def test_a_form_says_names_and_types_only() -> None:
    form = blank_form(FORM_FRAME, "readmitted")
    other = FORM_FRAME.assign(
        patient_id=["Q7", "Q8"],
        age=[7, 8],
        rate=[7.5, 8.5],
        member=[False, False],
        region=["hidden", "north"],
        admitted=pd.to_datetime(["2001-02-03", "2004-05-06"]),
        readmitted=["maybe", "maybe"],
    )
    assert blank_form(other, "readmitted") == form
    assert not {"secret", "P1", "41", "1990"} & set(re.findall(r"\w+", json.dumps(form)))
    assert form["target"]["classes"] is None
    assert "readmitted" not in form["columns"]


def test_a_form_that_nobody_filled_in_is_a_schema_that_declares_nothing_but_types() -> None:
    schema = Schema.from_json(json.loads(json.dumps(blank_form(FORM_FRAME, "readmitted"))))
    assert schema.classes is None
    assert schema.columns == {
        "patient_id": Ignored(),
        "age": UnknownNumeric(),
        "rate": UnknownNumeric(),
        "member": Categorical(("False", "True")),
        "region": UnknownCategorical(),
        "admitted": Date(),
        "span": Ignored(),
    }
    assert Schema.from_json(schema.to_json()) == schema


def test_notes_and_nulls_say_nothing() -> None:
    assert (
        Schema.from_json({"note": "x", "columns": {"a": {"note": "y", "low": None}, "b": {}}, "target": {"note": "z"}})
        == Schema()
    )


def test_everything_that_can_be_declared_is_written_back() -> None:
    said = {
        "age": {"low": 0, "high": 9, "missing": "indicator"},
        "pulse": {"type": "number", "missing": 70},
        "ward": {"type": "category"},
        "born": {"type": "date", "parts": ["year"], "low": 1900, "high": 2020, "missing": "1950-01-01", "format": "%Y"},
    }
    schema = Schema.from_json({"columns": said})
    assert schema.to_json()["columns"] == said
    assert schema.columns["born"] == Date(("year",), Numeric(1900, 2020), "1950-01-01", "%Y")


def test_codes_and_dates_are_read_as_text() -> None:
    schema = Schema({"ward": UnknownCategorical(), "day": Date(), "zip": Categorical(("01067",)), "age": UnknownNumeric()})
    assert set(text_columns(schema, None)) == {"ward", "day", "zip"}


def test_a_schema_may_be_an_object_or_a_path(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(FULL))
    assert Schema.of(path) == Schema.of(str(path)) == Schema.of(FULL) == Schema.of(Schema.from_json(FULL))
    assert Schema.of(None) == Schema()
