"""Random mutations of every kind of file: a command that is given one succeeds, or refuses with one line; nothing else.

`PRIVOPT_LONG=1` tries thousands for each kind, other ones each time.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile.commands import SECRET, run, table, train, write_schema

LONG = bool(os.environ.get("PRIVOPT_LONG"))
EXAMPLES = settings(max_examples=4000 if LONG else 40, derandomize=not LONG, database=None)

TOKENS = [
    *(b"", b"\0", b"\n", b"\r", b",", b";", b'"', b"'", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b[2J", b"[red]"),
    *(
        b"nan",
        b"inf",
        b"-1",
        b"1e999",
        b"9" * 30,
        b"1" + b"0" * 400,
        b"0x7f",
        b"True",
        b"null",
        b"[]",
        b"{}",
        b"#",
        b":",
        b" 3:4",
    ),
    *(
        b"\x7f\xff\xff\xff",
        b"\xff" * 8,
        bytes(8),
        b"PK\x03\x04",
        b"PAR1",
        b"\x93NUMPY",
        b"__index_level_0__",
        b"\\ud800",
        b"\\u0000",
    ),
]
EDIT = st.tuples(
    st.sampled_from(["flip", "delete", "insert", "overwrite", "repeat", "cut", "swap"]),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
    st.sampled_from(TOKENS),
)
EDITS = st.lists(EDIT, min_size=1, max_size=4)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**12), 10**12),
        st.sampled_from([10**300, -(10**300), 0, 1, 2**63]),
        st.floats(),
        st.text(max_size=10),
        st.sampled_from(
            ["auto", "pld", "gaussian", "classify", "regress", "add-remove", "\x1b[2J", "age", "dose", "mlp:4", "dp-sgd"]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def edited(content: bytes, edits: list[tuple[str, float, float, int, bytes]]) -> bytes:
    found = bytearray(content)
    for kind, where, length, number, token in edits:
        start = int(where * len(found))
        end = start + 1 + int(length**4 * (len(found) - start))  # mostly short
        if kind == "flip" and found:
            found[start] ^= number or 1
        elif kind == "delete":
            del found[start:end]
        elif kind == "insert":
            found[start:start] = token
        elif kind == "overwrite":
            found[start : start + len(token)] = token
        elif kind == "repeat":
            found[start:start] = found[start:end] * (number % 8)
        elif kind == "cut":
            del found[end:]
        elif kind == "swap":
            found[start:end] = found[start:end][::-1]
    return bytes(found)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind without fault, and runs that were trained on them."""
    folder = tmp_path_factory.mktemp("good")
    frame = table(300)
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_parquet(folder / "a.parquet")
    X, y = frame[["age", "dose"]].to_numpy(float), (frame["sick"] == "yes").to_numpy().astype(int)
    np.savez(folder / "a.npz", X=X, y=y, note=frame["note"].to_numpy(str))
    entries = np.arange(600)
    arrays = {"data": X.ravel(), "indices": entries % 2, "indptr": np.arange(301) * 2, "shape": [300, 2], "y": y}
    np.savez_compressed(folder / "b.npz", **arrays, note=frame["note"].to_numpy(str))  # type: ignore[arg-type]
    lines = (f"{label} 1:{age} 2:{dose} # {SECRET}\n" for label, (age, dose) in zip(y, X, strict=True))
    (folder / "a.svm").write_text("".join(lines))
    write_schema(folder / "schema.json")
    for kind, options in (("a.csv", ("--schema", folder / "schema.json")), ("a.npz", ("--row-norm", 90)), ("a.svm", ())):
        asked = train(folder / kind, *options, "--rounds", 2, "--out", folder / f"run {kind[2:]}")
        assert run(*asked).exit_code == 0
    assert pq.read_schema(folder / "a.parquet").names
    return folder


def mutate(place: Path, tmp_path: Path, name: str, edits: list[tuple[str, float, float, int, bytes]]) -> Path:
    path = tmp_path / name
    path.write_bytes(edited((place / name).read_bytes(), edits))
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.npz", "b.npz", "a.svm"])
def test_data_files(place: Path, tmp_path: Path, name: str) -> None:
    model = place / f"run {'csv' if name == 'a.parquet' else name[2:]}"

    @EXAMPLES
    @given(EDITS, st.booleans())
    def examine(edits: list[Any], training: bool) -> None:
        path = mutate(place, tmp_path, name, edits)
        if training:
            run(*train(path, "--rounds", 2, "--task", "classify"))
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
        else:
            run("predict", model, path, "--out", tmp_path / "predictions.csv")

    examine()


def replace_one(value: Any, choose: Callable[[int], int], by: Any) -> Any:
    """The JSON value with something in it replaced."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    chosen = choose(len(keys) + 1)
    if chosen == len(keys):
        return by
    copy = value.copy()
    copy[keys[chosen]] = replace_one(value[keys[chosen]], choose, by)
    return copy


JSON = {
    "schema.json": "csv",
    "run csv/model.json": "csv",
    "run npz/model.json": "npz",
    "run csv/statement.json": "csv",
    "run csv/run.json": "csv",
}


@pytest.mark.parametrize("name", JSON)
def test_json_files(place: Path, tmp_path: Path, name: str) -> None:
    content, kind = (place / name).read_bytes(), JSON[name]
    data = place / f"a.{kind}"

    @EXAMPLES
    @given(st.data())
    def examine(data_: st.DataObject) -> None:
        if data_.draw(st.booleans()):
            changed = edited(content, data_.draw(EDITS))
        else:
            chosen = replace_one(json.loads(content), lambda most: data_.draw(st.integers(0, most - 1)), data_.draw(VALUES))
            changed = json.dumps(chosen).encode()
        if name == "schema.json":
            (tmp_path / "schema.json").write_bytes(changed)
            run(*train(data, "--schema", tmp_path / "schema.json", "--rounds", 2, "--out", tmp_path / "run"))
        else:
            shutil.copytree(place / f"run {kind}", tmp_path / "run")
            (tmp_path / "run" / Path(name).name).write_bytes(changed)
            if name.endswith("model.json"):
                run("predict", tmp_path / "run", data, "--out", tmp_path / "predictions.csv")
            elif name.endswith("statement.json"):
                run("show", tmp_path / "run")
                run("show", tmp_path / "run", "--json")
            else:
                (tmp_path / "run" / "model.json").unlink()
                run("train", "--resume", tmp_path / "run")
        shutil.rmtree(tmp_path / "run", ignore_errors=True)

    examine()


OPTIONS = [
    *("--n", "--batch", "--noise", "--epsilon", "--rounds", "--epochs", "--delta", "--neighbours", "--sampling", "--accountant"),
    *("--grid", "--d", "--batches", "--lipschitz", "--smoothness", "--gap", "--json", "--help"),
]
NUMBERS = [
    "0",
    "1",
    "-1",
    "10",
    "0.5",
    "1000",
    "60000",
    "1e-9",
    "1e9",
    "1e300",
    "nan",
    "inf",
    "9" * 30,
    "replace-one",
    "fixed-size",
]


@settings(EXAMPLES, max_examples=400 if LONG else 25)
@given(
    st.sampled_from(["account", "plan", "bounds", "methods", "show", "predict"]),
    st.lists(st.tuples(st.sampled_from(OPTIONS), st.sampled_from(NUMBERS) | st.text(max_size=8)), max_size=8),
)
def test_options(command: str, options: list[tuple[str, str]]) -> None:
    text = [word.replace("\0", "") for option in options for word in option]
    run(command, *text)
