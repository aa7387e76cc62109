"""JSON files: schemas, and what a run folder holds, with entries of the wrong kind."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privopt.datasets import Categorical
from tests.hostile.commands import SCHEMA, refused, run, table, train, write_schema

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "rows.csv"
    table().to_csv(file, index=False)
    return file


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """The folder of a finished run."""
    schema = write_schema(data.parent / "schema.json")
    assert run(*train(data, "--schema", schema)).exit_code == 0
    return data.parent / "run"


# ---------------------------------------------------------------- schemas


def column(entry: str) -> str:
    return f'{{"columns": {{"age": {entry}}}}}'


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (column(f'{{"low": 0, "high": 1{"0" * 400}}}'), "401 digits"),
        (column(f'{{"low": 0, "high": 1{"0" * 5000}}}'), "5001 digits"),
        (column('{"low": 0, "high": 1e400}'), "finite number"),
        (column('{"low": NaN, "high": 1}'), "finite number"),
        (column(DEEP), "nested too deeply"),
        (column('{"values": ' + "[" * 500 + "]" * 500 + "}"), "list of strings or numbers"),
        (column('{"values": ["\\ud800"]}'), "surrogate"),
        ('{"columns": {"\\udfff": {"ignore": true}}}', "surrogate"),
        (column('{"values": ["a", "a"]}'), "more than once"),
        ("\x00", "not JSON"),
        ("", "not JSON"),
        ("[]", "the schema is []"),
        (json.dumps({"columns": {f"column {place}": {"low": 1} for place in range(5000)}}), "column 0"),
        (column(json.dumps({"x" * 10_000: 1})), "has the key"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_one_short_line(tmp_path: Path, data: Path, schema: str, words: str) -> None:
    (tmp_path / "schema.json").write_text(schema)
    message = refused(*train(data, "--schema", tmp_path / "schema.json", "--out", tmp_path / "run"))
    assert words in message
    assert "schema.json" in message
    assert len(message) < 500


def test_a_schema_in_another_encoding_is_refused(tmp_path: Path, data: Path) -> None:
    (tmp_path / "schema.json").write_bytes(column('{"values": ["ä"]}').encode("latin1"))
    assert "not UTF-8" in refused(*train(data, "--schema", tmp_path / "schema.json"))


def test_a_schema_without_end_is_refused(data: Path) -> None:
    assert "larger than" in refused(*train(data, "--schema", "/dev/zero"))


class Counted(str):
    """Text that counts how often it is compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)


def test_listed_values_are_not_each_compared_with_each() -> None:
    Categorical(tuple(Counted(place) for place in range(2000)))
    assert Counted.comparisons < 20_000


def test_a_hundred_thousand_values_can_be_listed(tmp_path: Path, data: Path) -> None:
    values = [f"value {place}" for place in range(100_000)]
    write_schema(tmp_path / "schema.json", {"columns": {**SCHEMA["columns"], "note": {"values": values}}})
    assert run(*train(data, "--schema", tmp_path / "schema.json", "--rounds", 2, "--out", tmp_path / "run")).exit_code == 0


# ---------------------------------------------------------------- run folders

WRONG: list[Any] = [None, True, 0, -1, 1.5, 10**300, float("nan"), "", "\u001b[2J", [], [[]], {}, {"x": 1}, [None], ["\ud800"]]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


COMMANDS: dict[str, list[list[str]]] = {
    "statement.json": [["show"], ["show", "--json"]],
    "run.json": [["show"], ["train", "--resume"]],
    "model.json": [["predict"]],
}


def arguments(words: list[str], folder: Path, data: Path) -> list[object]:
    return [*words, folder, *([data] if words == ["predict"] else [])]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_entry_of_the_wrong_kind_is_no_traceback(tmp_path: Path, trained: Path, data: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    if name == "run.json":
        (folder / "model.json").unlink()  # so that the run is unfinished, and run.json is read
    content = json.loads((folder / name).read_text())
    for place, path in enumerate(paths(content)):
        wrong = WRONG[place % len(WRONG)]
        (folder / name).write_text(json.dumps(replaced(content, path, wrong)))
        for words in COMMANDS[name]:
            run(*arguments(words, folder, data))
            if name == "run.json":
                (folder / "model.json").unlink(missing_ok=True)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", DEEP, '{"format": ' + "9" * 5000 + "}", "\ud800".encode("utf-8", "surrogatepass")]
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, trained: Path, data: Path, name: str, content: str | bytes) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    words = ["train", "--resume"] if name == "run.json" else COMMANDS[name][0]
    if name == "run.json":
        (folder / "model.json").unlink()
    assert "run" in refused(*arguments(words, folder, data))


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "repeated", "count": 10**15, "event": {"kind": "composed", "events": 2 * [{"kind": "pure", "epsilon": 1.0}]}},
        {"kind": "repeated", "count": -1, "event": {"kind": "pure", "epsilon": 1.0}},
        {"kind": "gaussian", "noise_multiplier": float("nan")},
        {"kind": "gaussian", "noise_multiplier": -1.0},
        {"kind": "poisson", "sampling_probability": 2.0, "event": {"kind": "gaussian", "noise_multiplier": 1.0}},
        {"kind": "fixed-size", "size": 1, "sample": 2, "event": {"kind": "gaussian", "noise_multiplier": 1.0}},
        {"kind": ["\u001b[2J"]},
    ],
)
def test_an_event_with_impossible_numbers_is_refused(tmp_path: Path, trained: Path, event: dict[str, Any]) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "statement.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "event": event}))
    assert "statement.json is damaged" in refused("show", tmp_path / "run")
