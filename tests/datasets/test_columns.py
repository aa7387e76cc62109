"""Columns: numbers and categories out of whatever pandas holds."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privopt.datasets import MISSING, as_written, codes, numbers, read, texts
from privopt.errors import InputError


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, 2]),
        pd.Series([1.0, 2.0], dtype="float32"),
        pd.Series([1, 2], dtype="Int64"),
        pd.Series(["1", "2"]),
        pd.Series(["1", 2], dtype=object),
    ],
)
def test_numbers_of_every_kind(column: "pd.Series[float]") -> None:
    assert numbers(column).tolist() == [1, 2]
    assert numbers(column).dtype == np.float64


def test_truth_values_are_numbers() -> None:
    assert numbers(pd.Series([True, False])).tolist() == [1, 0]
    assert numbers(pd.Series([True, False], dtype="boolean")).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1.0, np.nan], "missing or infinite"),
        ([1.0, -np.inf], "missing or infinite"),
        (pd.array([1, None], dtype="Int64"), "missing or infinite"),
        (["1", "secret"], "holds text"),
        ([[1], [2]], "holds text"),
        (pd.to_datetime(["2020-01-01"]), "datetime64"),
        ([1j], "complex"),
    ],
)
def test_what_is_no_number_is_refused_without_being_quoted(values: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        numbers(pd.Series(values, name="age"))
    assert "'age'" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_category_is_spelled_the_same_whatever_its_type() -> None:
    for values in ([1, 2], [1.0, 2.0], ["1", "2"], pd.Categorical(["1", "2"]), pd.array([1, 2], dtype="Int64")):
        assert texts(pd.Series(values)).tolist() == ["1", "2"]
    assert texts(pd.Series([1.5, None])).tolist() == ["1.5", MISSING]
    assert texts(pd.Series(["a", None, "b"])).tolist() == ["a", MISSING, "b"]


def test_codes_find_values_missing_ones_and_truth_in_any_case() -> None:
    column = pd.Series(["b", None, "a", "z"])
    assert codes(column, ["a", "b"]).tolist() == [1, -1, 0, -1]
    assert codes(column, ["a", "b", MISSING]).tolist() == [1, 2, 0, -1]
    assert codes(pd.Series([True, False]), ["FALSE", "TRUE"]).tolist() == [1, 0]
    assert codes(np.array([-1.0, 1.0]), ["-1", "1"]).tolist() == [0, 1]


def test_objects_are_no_categories() -> None:
    with pytest.raises(InputError, match="'tags' holds lists"):
        texts(pd.Series([["secret"]], name="tags"))


def test_codes_keep_their_zeros_and_words_for_nothing_stay_words(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("zip,pain,age,y\n01067,None,30,NA\n00001,,40,B\n")
    listed = {"zip": ["01067", "00001"], "pain": ["None", "Some"], "age": ["30", "40"], "y": ["NA", "B"]}
    table = read(file, "y", text=as_written(listed))
    assert table.frame is not None
    assert table.target is not None
    assert table.frame["zip"].tolist() == ["01067", "00001"]
    assert texts(table.frame["pain"]).tolist() == ["None", MISSING]
    assert table.frame["age"].tolist() == [30, 40]
    assert list(table.target) == ["NA", "B"]
