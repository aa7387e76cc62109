"""Encodings: laws for any frame."""

import json
import math
import warnings
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from privopt.datasets import MISSING, Categorical, Columns, Date, Encoding, Ignored, Numeric, UnknownNumeric, check_columns
from privopt.datasets.encode import WIDE
from privopt.datasets.schema import PARTS
from privopt.errors import InputError, PrivoptWarning

finite = st.floats(allow_nan=False, allow_infinity=False)
ranges = st.tuples(finite, finite).map(lambda pair: Numeric(min(pair), max(pair)))
words = st.text("abc=", min_size=1, max_size=3)
fillers: st.SearchStrategy[Any] = st.one_of(st.just("indicator"), st.integers(-5, 5))
marked: st.SearchStrategy[Numeric] = st.tuples(ranges, fillers).map(lambda both: Numeric(both[0].low, both[0].high, both[1]))
listed = st.lists(words, min_size=1, max_size=60, unique=True).map(lambda values: Categorical(tuple(values)))
dated = st.sets(st.sampled_from(PARTS), min_size=1).map(
    lambda parts: Date(tuple(sorted(parts)), Numeric(2000, 2020) if "year" in parts else None, "indicator")
)
days = st.one_of(st.none(), st.dates(date(1700, 1, 1), date(2200, 1, 1)).map(str))


@st.composite
def encodings(draw: st.DrawFn) -> Encoding:
    described = draw(st.dictionaries(words, st.one_of(ranges, marked, listed, dated), min_size=1, max_size=5))
    return Encoding(tuple(described.items()))


@st.composite
def frames(draw: st.DrawFn, encoding: Encoding) -> pd.DataFrame:
    """Any frame that has the encoding's columns: numbers far out of range, categories listed, unlisted and missing."""
    size = draw(st.integers(0, 5))
    columns: dict[str, Any] = {}
    for name, kind in encoding.columns:
        entry: st.SearchStrategy[Any] = days
        match kind:
            case Categorical(values=values):
                entry = st.one_of(st.sampled_from(values), words, st.none())
            case Numeric(missing=missing):
                entry = finite if missing is None else st.one_of(finite, st.just(math.nan))
        drawn = draw(st.lists(entry, min_size=size, max_size=size))
        columns[name] = pd.Series(drawn, dtype=float if isinstance(kind, Numeric) else object)
    return pd.DataFrame(columns, index=range(size))


def encoded(encoding: Encoding, frame: pd.DataFrame) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)
        matrix = encoding.matrix(frame)
    assert sp.issparse(matrix) == encoding.sparse
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


@settings(deadline=None)
@given(st.data())
def test_no_row_is_longer_than_the_bound_and_no_entry_than_one(data: st.DataObject) -> None:
    encoding = data.draw(encodings())
    matrix = encoded(encoding, data.draw(frames(encoding)))
    assert matrix.shape[1] == len(encoding.names)
    assert (np.abs(matrix) <= 1).all()
    assert (np.linalg.norm(matrix, axis=1) <= encoding.row_bound).all()


@settings(deadline=None)
@given(st.data())
def test_other_columns_and_the_order_of_columns_do_not_matter(data: st.DataObject) -> None:
    encoding = data.draw(encodings())
    frame = data.draw(frames(encoding))
    wider = frame.assign(**{"not encoded": np.nan})[["not encoded", *reversed(frame.columns)]]
    np.testing.assert_array_equal(encoded(encoding, frame), encoded(encoding, wider))


@settings(deadline=None)
@given(encodings())
def test_an_encoding_survives_json(encoding: Encoding) -> None:
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


@settings(deadline=None)
@given(st.data())
def test_sparse_and_dense_rows_are_the_same(data: st.DataObject) -> None:
    encoding = data.draw(encodings())
    frame = data.draw(frames(encoding))
    padding = Categorical(tuple(str(value) for value in range(2 * WIDE)))
    wide = Encoding((*encoding.columns, ("padding", padding)))
    rows = encoded(wide, frame.assign(padding="none of them"))
    width = len(encoding.names)
    assert wide.sparse
    np.testing.assert_array_equal(rows[:, :width], encoded(encoding, frame))
    assert not rows[:, width:].any()


def test_ranges_are_mapped_and_clipped_and_values_become_indicators() -> None:
    encoding = Encoding((("age", Numeric(20, 60)), ("region", Categorical(("north", "south")))))
    frame = pd.DataFrame({"age": [20, 40, 50, 1000], "region": ["north", "south", "south", "north"]})
    matrix = encoding.matrix(frame)
    assert isinstance(matrix, np.ndarray)
    assert matrix.tolist() == [[-1, 1, 0], [0, 0, 1], [0.5, 0, 1], [1, 1, 0]]
    assert encoding.names == ("age", "region=north", "region=south")
    assert encoding.row_bound == math.sqrt(2)


def test_many_indicators_are_stored_sparsely_and_sorted() -> None:
    encoding = Encoding((("id", Categorical(tuple(map(str, range(100))))), ("age", Numeric(0, 2))))
    matrix = encoding.matrix(pd.DataFrame({"id": [7, 99], "age": [2, 1]}))
    assert not isinstance(matrix, np.ndarray)
    assert (matrix.format, matrix.nnz, matrix.has_canonical_format) == ("csr", 3, True)
    assert (matrix[0, 7], matrix[0, 100], matrix[1, 99]) == (1, 1, 1)


def test_numbers_in_the_majority_stay_dense() -> None:
    assert not Encoding(tuple((f"x{index}", Numeric(0, 1)) for index in range(100))).sparse
    assert not Encoding((("a", Categorical(("b", "c"))),)).sparse


def test_unlisted_values_are_zeros_and_a_warning_counts_them_without_naming_them() -> None:
    encoding = Encoding((("region", Categorical(("north",))), ("size", Categorical(("S",)))))
    frame = pd.DataFrame({"region": ["north", "secret", None], "size": ["S", "S", "S"]})
    with pytest.warns(PrivoptWarning, match=r"'region' \(2 of 3 rows\)\.$") as caught:
        matrix = encoding.matrix(frame)
    assert np.asarray(matrix).tolist() == [[1, 1], [0, 1], [0, 1]]
    assert "secret" not in str(caught[0].message)


def test_missing_is_a_category_if_listed() -> None:
    encoding = Encoding((("region", Categorical(("north", MISSING))),))
    assert encoding.names == ("region=north", "region=(missing)")
    assert np.asarray(encoding.matrix(pd.DataFrame({"region": [None, "north"]}))).tolist() == [[0, 1], [1, 0]]


def test_constant_columns_and_ranges_without_width_are_harmless() -> None:
    encoding = Encoding((("same", Numeric(3, 3)), ("flat", Numeric(0, 10))))
    assert np.asarray(encoding.matrix(pd.DataFrame({"same": [3, 3], "flat": [5, 5]}))).tolist() == [[0, 0], [0, 0]]


def test_refusals_name_the_column() -> None:
    encoding = Encoding((("age", Numeric(0, 1)), ("rate", Numeric(0, 1))))
    with pytest.raises(InputError, match="lack columns that the model was trained on: 'age', 'rate'"):
        encoding.matrix(pd.DataFrame({"Age": [1]}))
    with pytest.raises(InputError, match="'rate' holds missing"):
        encoding.matrix(pd.DataFrame({"age": [1.0], "rate": [np.nan]}))
    with pytest.raises(InputError, match="no column is left"):
        Encoding(())
    with pytest.raises(InputError, match="'a' more than once"):
        Encoding((("a", Numeric(0, 1)), ("a", Numeric(0, 1))))
    for value in ({}, {"columns": [{"name": "a"}]}, {"columns": [{"name": 1, "low": 0, "high": 1}]}):
        with pytest.raises(InputError):
            Encoding.from_json(value)


def test_an_encoding_of_kinds_leaves_out_what_is_ignored_and_refuses_what_is_unknown() -> None:
    age, region = Numeric(0, 1), Categorical(("north",))
    assert Encoding.of({"age": age, "notes": Ignored(), "region": region}).columns == (("age", age), ("region", region))
    with pytest.raises(InputError, match="'rate'"):
        Encoding.of({"age": age, "rate": UnknownNumeric()})


@pytest.mark.parametrize("values", [3, 300])
def test_memory_is_the_matrix_and_a_few_vectors(values: int) -> None:
    import tracemalloc

    size = 20_000
    names = tuple(map(str, range(values)))
    encoding = Encoding(tuple((f"c{index}", Categorical(names)) for index in range(20)))
    frame = pd.DataFrame({f"c{index}": np.arange(size) % values for index in range(20)})
    encoding.matrix(frame)
    tracemalloc.start()
    matrix = encoding.matrix(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = matrix.nbytes if isinstance(matrix, np.ndarray) else matrix.data.nbytes + matrix.indices.nbytes
    assert peak < held + 12 * 8 * size


# ---------------------------------------------------------------- missing numbers, dates, and frames of every library

STAYS: dict[str, Any] = {
    "age": [20.0, math.nan, 80.0],
    "weight": [60, None, 80],
    "ward": ["3", None, "12"],
    "admitted": [date(2020, 1, 31), None, date(2024, 12, 1)],
}
FRAMES = {"pandas": pd.DataFrame, "polars": lambda data: pl.DataFrame(data, strict=False), "pyarrow": pa.table}
STAYS_ENCODING = Encoding(
    (
        ("age", Numeric(0, 100, "indicator")),
        ("weight", Numeric(0, 200, 100)),
        ("ward", Categorical(("3", "12", MISSING))),
        ("admitted", Date(("year", "month", "weekday"), Numeric(2020, 2024), "indicator")),
    )
)


@pytest.mark.parametrize("library", FRAMES)
def test_frames_of_every_library_are_encoded_alike(library: str) -> None:
    data = STAYS if library != "pyarrow" else STAYS | {"age": [20.0, None, 80.0]}
    rows = pd.DataFrame(encoded(STAYS_ENCODING, FRAMES[library](data)), columns=list(STAYS_ENCODING.names))
    assert rows["age"].tolist() == pytest.approx([-0.6, 0.0, 0.6])
    assert rows["age=(missing)"].tolist() == [0, 1, 0]
    assert rows["weight"].tolist() == pytest.approx([-0.4, 0.0, -0.2])
    assert rows[["ward=3", "ward=12", "ward=(missing)"]].to_numpy().tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert rows["admitted.year"].tolist() == [-1, 0, 1]
    assert rows["admitted=(missing)"].tolist() == [0, 1, 0]
    first = {name for name in map(str, rows) if rows[name].iloc[0] == 1 and name.startswith("admitted")}
    assert first == {"admitted.month=January", "admitted.weekday=Friday"}
    assert rows.filter(like="admitted.").iloc[1].abs().sum() == 0


@pytest.mark.parametrize(("library", "column"), [(pl.DataFrame, "polars"), (pa.table, "pyarrow")])
def test_numbers_of_other_libraries_are_not_copied(library: Any, column: str) -> None:
    frame = library({column: np.arange(5.0)})
    assert np.shares_memory(Columns.of(frame)[column].to_numpy(), frame[column].to_numpy())


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (np.zeros((2, 2)), "a frame with named columns is needed.*this is ndarray"),
        (pl.LazyFrame({"a": [1]}), "Collect it first"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "several columns of the same name"),
        (pd.DataFrame([[1, 2]]), "2 columns of the frame have names that are no text"),
    ],
)
def test_what_is_no_frame_is_refused(frame: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Columns.of(frame)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (Numeric(0, 1), [0.5, math.nan], r'column .x. holds missing or infinite numbers.*\{"missing": "indicator"\}'),
        (Numeric(0, 1, "indicator"), [0.5, math.inf], "holds infinite numbers"),
        (Numeric(0, 1), ["secret"], "holds text"),
        (Date(("month",)), ["2020-01-01", "secret"], "is to hold dates, but not all of it is written like 2024-01-31"),
        (Date(("month",)), ["2020-01-01", None], "holds missing dates"),
        (Date(("month",)), [5.0], "is to hold dates"),
        (Date(("month",), format="%d.%m.%Y"), ["2020-01-01"], "is written %d.%m.%Y"),
    ],
)
def test_a_column_that_is_not_of_its_kind_is_refused_without_a_value(kind: Any, values: list[Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        check_columns(pd.DataFrame({"x": pd.Series(values)}), {"x": kind})
    assert "secret" not in str(caught.value)


def test_all_columns_with_missing_numbers_are_named_at_once() -> None:
    frame = pd.DataFrame({"age": [1.0, math.nan], "sex": ["m", None], "weight": [math.nan, 2.0], "height": [1.0, 2.0]})
    kinds = dict.fromkeys(("age", "weight", "height"), UnknownNumeric()) | {"sex": Categorical(("m", "f"))}
    with pytest.raises(InputError, match=r"columns 'age', 'weight' hold missing or infinite.*\{\"missing\": \"indicator\"\}"):
        check_columns(frame, kinds)


@pytest.mark.parametrize(
    ("form", "written"), [(None, "2024-02-01"), (None, "2024-02-01T08:30:00"), ("%d.%m.%Y", "01.02.2024"), ("%Y%m%d", "20240201")]
)
def test_dates_are_read_as_they_are_written(form: str | None, written: str) -> None:
    encoding = Encoding((("day", Date(("month", "weekday"), format=form)),))
    (row,) = encoded(encoding, pd.DataFrame({"day": [written]}))
    assert {name for name, value in zip(encoding.names, row, strict=True) if value} == {
        "day.month=February",
        "day.weekday=Thursday",
    }


def test_a_missing_date_counts_as_the_one_that_is_declared() -> None:
    encoding = Encoding((("day", Date(("month",), missing="2020-03-01")),))
    (row,) = encoded(encoding, pd.DataFrame({"day": pd.Series([None], dtype="datetime64[ns]")}))
    assert encoding.names[int(row.argmax())] == "day.month=March"


def test_a_column_that_a_survey_did_not_see_stays_a_line() -> None:
    kinds = {"a": Numeric(0, 1), "b": Numeric(0, 1, seen=False), "c": Categorical(("x", "y")), "d": Numeric(0, 9)}
    encoding = Encoding.of(kinds)
    assert encoding.numeric == (0, 4)
    assert Encoding.from_json(encoding.to_json()) == encoding  # of a trained model it says nothing
