"""Public files and options through run folders and the command line: stated, resumed, refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import privopt.loop
from privopt.errors import InputError
from privopt.runs import execution as runs
from privopt.runs.folder import RunFolder
from privopt.runs.request import Request
from privopt.training.settings import Settings
from tests.cli.typed import privopt as command
from tests.problems import patients
from tests.stopped import StopAt, Stopped


def order(tmp_path: Path, **changed: Any) -> Request:
    asked: dict[str, Any] = {
        "file": patients(tmp_path / "patients.csv", 3000),
        "target": "readmitted",
        "epsilon": 2.0,
        "public": patients(tmp_path / "public.csv", 300, seed=9),
        "settings": Settings(method="adadps", rounds=40, options={"rule": "adam"}),
        "seed": 4,
    }
    return Request(**{**asked, **changed})


def test_train_with_public_rows_and_options_from_the_command_line(tmp_path: Path) -> None:
    file, public = patients(tmp_path / "patients.csv", 3000), patients(tmp_path / "public.csv", 300, seed=9)
    run = tmp_path / "run"
    arguments = ["train", file, "--target", "readmitted", "--epsilon", 1, "--rounds", 40, "--out", run]
    printed = command(*arguments, "--method", "adadps", "--public", public, "--option", "rule=adam", "--option", "decay=0.8")
    assert "public.csv: 300 rows, sha256" in printed
    asked = json.loads((run / "run.json").read_text())
    assert asked["settings"]["options"] == {"rule": "adam", "decay": 0.8}
    assert asked["public"] == str(public)
    statement = RunFolder.open(run).statement()
    assert statement.settings["rule"] == "adam"
    assert statement.settings["decay"] == 0.8
    assert "Spent, from the ledger: ε = 0.99" in command("show", run)


def test_an_order_comes_back_from_json(tmp_path: Path) -> None:
    asked = order(tmp_path)
    assert Request.from_json(json.loads(json.dumps(asked.to_json()))) == asked


def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(privopt.loop, "DURABILITY", 1e9)  # a checkpoint after every round
    with pytest.raises(Stopped):
        runs.start(order(tmp_path), tmp_path / "run", StopAt(17))
    return tmp_path / "run"


def test_a_run_with_public_rows_is_resumed_to_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runs.start(order(tmp_path), tmp_path / "whole")
    resumed = runs.resume(interrupted(tmp_path, monkeypatch))
    np.testing.assert_array_equal(resumed.model().slopes, whole.model().slopes)
    assert resumed.ledger().event == whole.ledger().event


def test_a_run_is_not_resumed_with_other_public_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = interrupted(tmp_path, monkeypatch)
    patients(tmp_path / "public.csv", 300, seed=10)
    with pytest.raises(InputError, match="not those that this run began with"):
        runs.resume(folder)


@pytest.mark.parametrize("store", ["dense", "csr", "libsvm"])
def test_public_rows_of_plain_matrices_have_their_columns(tmp_path: Path, store: str) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.random((2000, 6)) < 0.4).astype(float)
    targets = (rows @ [3.0, -3.0, 2.0, 0.0, 1.0, -1.0] + rng.logistic(size=2000) > 0).astype(float)
    rows[:200, 5] = 0.0  # the public file does not show its last column

    def saved(name: str, part: slice) -> Path:
        path = tmp_path / (name + (".svm" if store == "libsvm" else ".npz"))
        if store == "dense":
            np.savez(path, X=rows[part], y=targets[part])
        elif store == "csr":
            matrix = sp.csr_matrix(rows[part])
            arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
            np.savez(path, **arrays, y=targets[part])
        else:
            lines = [
                f"{int(y)} " + " ".join(f"{column + 1}:1" for column in np.flatnonzero(row))
                for row, y in zip(rows[part], targets[part], strict=True)
                if row.any()
            ]
            path.write_text("\n".join(lines) + "\n")
        return path

    asked = order(tmp_path, file=saved("private", slice(200, None)), target=None, public=saved("public", slice(200)))
    folder = runs.start(asked, tmp_path / "run")
    assert np.isfinite(folder.model().slopes).all()
    assert folder.statement().public_data[0].startswith("public.")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"drop": "age"}, "lacks columns of .*'age'"),
        ({"age": "old"}, "'age'"),
        ({"readmitted": "perhaps"}, "has classes that .* does not have; it has no, yes"),
    ],
)
def test_public_rows_that_are_not_like_the_private_ones_are_refused_and_nothing_is_written(
    tmp_path: Path, columns: dict[str, str], message: str
) -> None:
    import pandas as pd

    asked = order(tmp_path)
    assert asked.public is not None
    table = pd.read_csv(asked.public)
    table = table.drop(columns=columns["drop"]) if "drop" in columns else table.assign(**columns)
    table.to_csv(asked.public, index=False)
    with pytest.raises(InputError, match=message):
        runs.start(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "adadps"], "adadps needs public data"),
        (["--public", "public.csv"], "dp-adam does not use public data"),
        (["--method", "adadps", "--public", "nowhere.csv"], "no file nowhere.csv"),
        (["--method", "adadps", "--public", "public.csv", "--option", "rule"], "name=value"),
        (["--method", "adadps", "--public", "public.csv", "--option", "rule=nadam"], "'rmsprop' or 'adagrad' or 'adam'"),
        (["--method", "adadps", "--public", "public.csv", "--option", "rules=adam"], "no option rules"),
        (["--method", "ideal"], "no privacy guarantee"),
    ],
)
def test_the_command_line_refuses_in_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    patients(tmp_path / "patients.csv", 1000)
    patients(tmp_path / "public.csv", 200, seed=9)
    asked = ["train", "patients.csv", "--target", "readmitted", "--epsilon", 2, "--out", "run", *arguments]
    assert message in command(*asked, code=2)
    assert not (tmp_path / "run").exists()


def test_a_run_without_privacy_says_so_everywhere(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv", 1000), tmp_path / "run"
    arguments = ["train", file, "--target", "readmitted", "--epsilon", 2, "--rounds", 20, "--out", run]
    printed = command(*arguments, "--method", "ideal", "--option", "without_privacy=true")
    for text in (printed, command("show", run), (run / "statement.txt").read_text()):
        assert "NO GUARANTEE" in text
        assert "differentially private" not in text
    assert "everything: not private" in printed
    shown = json.loads(command("show", run, "--json"))
    assert shown["spent"] is None
    assert shown["statement"]["epsilon"] is None
    assert "no guarantee" in (run / "statement.html").read_text()
