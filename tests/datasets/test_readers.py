"""Readers: what comes out of real files, and what is refused, without ever quoting a value."""

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from privopt.datasets import numbers, read
from privopt.datasets.table import Table
from privopt.errors import InputError

CSV = "age,region,income\n30,north,low\n40,south,high\n"
LIBSVM = "+1 1:0.5 3:2\n-1 2:1\n+1\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def frame_of(table: Table) -> pd.DataFrame:
    assert table.frame is not None
    return table.frame


def dense(table: Table) -> list[list[float]]:
    assert sp.issparse(table.matrix)
    rows: list[list[float]] = table.matrix.toarray().tolist()  # type: ignore[union-attr]
    return rows


# ---------------------------------------------------------------- CSV


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_finds_its_separator_and_takes_the_target_out(tmp_path: Path, separator: str) -> None:
    table = read(write(tmp_path / "people.csv", CSV.replace(",", separator)), "income")
    assert (table.name, table.names, len(table)) == ("people", ("age", "region"), 2)
    assert frame_of(table)["age"].tolist() == [30, 40]
    assert table.target is not None
    assert table.target.tolist() == ["low", "high"]
    assert table.matrix is None


def test_csv_without_a_target_keeps_every_column(tmp_path: Path) -> None:
    table = read(str(write(tmp_path / "people.csv", CSV)))
    assert table.target is None
    assert table.names == ("age", "region", "income")


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_text_may_be_compressed(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    assert len(read(write(tmp_path / f"people.csv.{suffix}", compress(CSV.encode())), "income")) == 2
    assert len(read(write(tmp_path / f"a9a.{suffix}", compress(LIBSVM.encode())))) == 3


def test_csv_with_a_byte_order_mark_spaces_quotes_and_windows_lines(tmp_path: Path) -> None:
    text = '\ufeffage, "region, as told"\r\n30, "north, far"\r\n\r\n40, south\r\n'
    table = read(write(tmp_path / "people.csv", text.encode()))
    assert table.names == ("age", "region, as told")
    assert frame_of(table)["region, as told"].tolist() == ["north, far", "south"]


def test_a_csv_of_one_column_is_one(tmp_path: Path) -> None:
    assert read(write(tmp_path / "one.csv", "age\n1\n2\n")).names == ("age",)


def test_a_column_nobody_uses_may_hold_anything_and_one_that_is_used_may_not(tmp_path: Path) -> None:
    table = read(write(tmp_path / "gaps.csv", "age,cabin\n30,\n40,7\n"))
    with pytest.raises(InputError, match="'cabin' holds missing or infinite"):
        numbers(frame_of(table)["cabin"])
    assert numbers(frame_of(table)["age"]).tolist() == [30, 40]


def test_an_empty_last_field_is_not_ragged(tmp_path: Path) -> None:
    assert len(read(write(tmp_path / "gaps.csv", "age,note\n30,\n40,x\n"))) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n  \n", "is empty"),
        ("age,income\n", "columns but no rows"),
        ("age,age,income\n1,2,3\n", "more than once: age"),
        ("age,income\n1,2,3\n1,2,3\n", "ragged"),
        ("age,income\n1,2\n1,2,3\n", "ragged: Expected 2 fields in line 3, saw 3"),
        ("age,region,income\n1,n,2\n1\n", "line 3 has 1 fields, but the header has 3"),
        ('age,income\n1,"2\n', "ragged"),
        ("income\n1\n", "no column but the target"),
        ("age,income\n1,\n2,3\n", "target 'income' has missing"),
        ("age,income\n1,inf\n2,3\n", "target 'income' holds infinite"),
        ("age,incone\n1,2\n", "no column 'income' to be the target. Closest: incone"),
    ],
)
def test_csv_refusals(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(write(tmp_path / "people.csv", text), "income")


def test_csv_in_another_encoding_is_refused(tmp_path: Path) -> None:
    for content in (b"\xe4ge\n1\n", b"age\n1\n\xe4\n"):
        with pytest.raises(InputError, match="not UTF-8"):
            read(write(tmp_path / "people.csv", content))


def test_an_unknown_target_without_a_close_one_lists_the_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There are: age, region, income"):
        read(write(tmp_path / "people.csv", CSV), "zzz")


# ---------------------------------------------------------------- Parquet


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [30, 40], "paid": [Decimal("1.5"), Decimal("2.5")], "income": pd.array([1, 0], dtype="Int64")})
    frame.to_parquet(tmp_path / "people.parquet")
    table = read(tmp_path / "people.parquet", "income")
    assert table.names == ("age", "paid")
    assert numbers(frame_of(table)["paid"]).tolist() == [1.5, 2.5]
    assert table.target is not None
    assert table.target.tolist() == [1, 0]
    assert table.target.dtype.kind in "if"


def test_parquet_refusals(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(InputError, match="not a Parquet file, or is damaged"):
        read(write(tmp_path / "bad.parquet", b"PAR1 nonsense"))
    pq.write_table(pa.table([[1], [2]], names=["age", "age"]), tmp_path / "twice.parquet")
    with pytest.raises(InputError, match="more than once: age"):
        read(tmp_path / "twice.parquet")
    pd.DataFrame({"age": []}).to_parquet(tmp_path / "none.parquet")
    with pytest.raises(InputError, match="columns but no rows"):
        read(tmp_path / "none.parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.lib", None)
    with pytest.raises(InputError, match=r"pip install 'privopt\[parquet\]'"):
        read(write(tmp_path / "people.parquet", b"PAR1"))


# ---------------------------------------------------------------- LIBSVM


@pytest.mark.parametrize("name", ["a.svm", "a.libsvm", "a.svmlight", "a.txt", "a9a", "a9a.t", "a.libsvm.gz"])
def test_libsvm_comes_with_many_names(tmp_path: Path, name: str) -> None:
    content = gzip.compress(LIBSVM.encode()) if name.endswith("gz") else LIBSVM
    table = read(write(tmp_path / name, content))
    assert dense(table) == [[0.5, 0, 2], [0, 1, 0], [0, 0, 0]]
    assert list(table.names) == ["1", "2", "3"]
    assert table.target is not None
    assert table.target.tolist() == [1, -1, 1]


def test_libsvm_counting_from_zero_is_noticed(tmp_path: Path) -> None:
    table = read(write(tmp_path / "zero.svm", "1 0:5\n2 1:7\n"))
    assert (list(table.names), dense(table)) == (["0", "1"], [[5, 0], [0, 7]])


def test_libsvm_rows_to_predict_have_the_features_of_the_model(tmp_path: Path) -> None:
    table = read(write(tmp_path / "test.svm", "1 2:7\n"), names=("1", "2", "3"))
    assert dense(table) == [[0, 7, 0]]
    shifted = read(tmp_path / "test.svm", names=("0", "1", "2"))
    assert dense(shifted) == [[0, 0, 7]]
    for names in (("1",), ("0", "1")):
        with pytest.raises(InputError, match="features that the model does not know"):
            read(tmp_path / "test.svm", names=names)
    with pytest.raises(InputError, match="features that the model does not know"):
        read(write(tmp_path / "zero.svm", "1 0:7\n"), names=("1", "2"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 1:secret\n", "not a LIBSVM file"),
        ("1 2:1 1:1\n", "increasing indices"),
        ("1,2 1:1\n", "one label"),
        ("1 1:nan\n", "feature 1 of a holds missing or infinite"),
        ("nan 1:1\n", "target of a holds missing"),
        ("# nothing\n", "0 rows"),
        ("1\n-1\n", "0 features"),
    ],
)
def test_libsvm_refusals(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(write(tmp_path / "a.svm", text))
    assert "secret" not in str(caught.value)


# ---------------------------------------------------------------- npz


def test_npz_dense(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=np.arange(4).reshape(2, 2), y=np.array(["a", "b"]))
    table = read(tmp_path / "d.npz", "y")
    assert isinstance(table.matrix, np.ndarray)
    assert table.matrix.dtype == np.float64
    assert (table.matrix.tolist(), list(table.names)) == ([[0, 1], [2, 3]], ["x0", "x1"])
    assert table.target is not None
    assert table.target.tolist() == ["a", "b"]


def test_npz_keeps_single_precision_and_may_lack_a_target(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=np.ones((2, 2), dtype=np.float32))
    table = read(tmp_path / "d.npz")
    assert isinstance(table.matrix, np.ndarray)
    assert table.matrix.dtype == np.float32
    assert table.target is None


def test_npz_as_scipy_saves_it(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_matrix(np.eye(3)))
    assert dense(read(tmp_path / "s.npz")) == np.eye(3).tolist()


def test_npz_csr_adds_up_entries_that_occur_twice(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", data=[1.0, 1.0], indices=[0, 0], indptr=[0, 2], shape=[1, 2], y=[1])
    table = read(tmp_path / "s.npz")
    assert dense(table) == [[2, 0]]
    assert table.matrix is not None
    assert table.matrix.nnz == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"X": np.ones(3)}, "shape"),
        ({"X": np.ones((2, 2)), "y": np.ones(3)}, "target y has shape"),
        ({"X": np.array([[0.0, np.nan]])}, "feature x1 of d holds missing"),
        ({"X": np.array([["secret"]])}, "numbers are needed"),
        ({"X": np.ones((0, 2))}, "0 rows"),
        ({"X": np.array([["secret"]], dtype=object)}, "Python objects"),
        ({"X": np.ones((1, 1)), "y": np.array(["secret"], dtype=object)}, "Python objects"),
        ({"Z": np.ones(3)}, "holds Z, but neither X"),
        ({"data": [1.0], "indices": [5], "indptr": [0, 1], "shape": [1, 2]}, "do not fit together"),
        ({"data": [np.inf], "indices": [1], "indptr": [0, 1], "shape": [1, 2]}, "feature x1 of d"),
    ],
)
def test_npz_refusals(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=says) as caught:
        read(tmp_path / "d.npz")
    assert "secret" not in str(caught.value)


def test_npz_finds_a_bad_number_in_a_long_matrix(tmp_path: Path) -> None:
    X = np.zeros((1000, 500))
    X[-1, 321] = np.inf
    np.savez(tmp_path / "d.npz", X=X)
    with pytest.raises(InputError, match="feature x321"):
        read(tmp_path / "d.npz")


def test_npz_of_another_sparse_format_or_width_is_refused(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "c.npz", sp.csc_matrix(np.eye(3)))
    with pytest.raises(InputError, match="not CSR"):
        read(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", X=np.ones((2, 2)))
    with pytest.raises(InputError, match="2 features, but the model knows 3"):
        read(tmp_path / "d.npz", names=("x0", "x1", "x2"))


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "d.npz", X=np.random.default_rng(0).random((50, 50)))
    content = (tmp_path / "d.npz").read_bytes()
    middle = len(content) // 2
    for broken in (content[:middle], b"nonsense", content[:middle] + bytes(50) + content[middle + 50 :]):
        with pytest.raises(InputError, match="damaged"):
            read(write(tmp_path / "broken.npz", broken))
    np.save(tmp_path / "single.npy", np.ones(3))
    with pytest.raises(InputError, match="not an npz"):
        read((tmp_path / "single.npy").rename(tmp_path / "single.npz"))


# ---------------------------------------------------------------- any file


def test_files_that_are_not_there_empty_or_unknown(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is a directory"):
        read(tmp_path)
    with pytest.raises(InputError, match="is empty"):
        read(write(tmp_path / "none.svm", ""))
    for name in ("table.xlsx", "notes.txt", "people.parquet.gz"):
        content = gzip.compress(b"words\n") if name.endswith("gz") else b"words, secret\n"
        with pytest.raises(InputError, match=r"none of the formats .* CSV .* Parquet .* LIBSVM .* NumPy") as caught:
            read(write(tmp_path / name, content))
        assert "secret" not in str(caught.value)


def test_a_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    content = gzip.compress(np.random.default_rng(0).bytes(5000))
    for name in ("people.csv.gz", "a.svm.gz"):
        for broken in (content[:3000], b"not gzip"):
            with pytest.raises(InputError):
                read(write(tmp_path / name, broken))


def test_formats_without_named_columns_take_no_target_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=np.ones((2, 2)), y=np.ones(2))
    for path in (tmp_path / "d.npz", write(tmp_path / "a9a", LIBSVM)):
        with pytest.raises(InputError, match="Leave the target out"):
            read(path, "income")


def test_importing_datasets_loads_neither_pandas_nor_scipy() -> None:
    import subprocess

    code = "import sys, privopt.datasets; sys.exit(any(m in sys.modules for m in ('pandas', 'scipy', 'sklearn', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
