"""DP-AdamBC, DP²-RMSProp and the three kinds of SAGD behind the estimators, from files and from the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.linear_model import LogisticRegression
from privopt.measure.samplers import disjoint_batches
from privopt.privacy.events import LaplaceDpEvent, PureDpEvent, atoms
from privopt.runs import execution as runs
from privopt.training.settings import Settings
from tests.cli.typed import privopt
from tests.linear_model.test_estimators import beside
from tests.problems import PATIENTS, binary_rows, patients, patients_request
from tests.stopped import StopAt, Stopped

NAMES = ["dp-adam-bc", "dp2-rmsprop", "sagd-lap", "sagd-minibatch", "sagd-sparse"]
PURE = [name for name in NAMES if name.startswith("sagd")]


def fitted(method: str, X: Any, y: Any, **settings: Any) -> LogisticRegression:
    common = {"epsilon": 1.0, "bounds": 2.0, "rounds": 40, "random_state": 3, **beside(method, binary_rows(200, seed=9))}
    return LogisticRegression(method=method, **{**common, **settings}).fit(X, y)


def counts(model: LogisticRegression) -> list[tuple[type, int]]:
    return [(type(part), count) for part, count in atoms(model.privacy_.statement.event)]


@pytest.mark.parametrize("method", NAMES)
def test_dense_and_sparse_rows_give_the_same_model(method: str) -> None:
    X, y = binary_rows()
    dense, sparse = fitted(method, X, y), fitted(method, sp.csr_matrix(X), y)
    np.testing.assert_allclose(dense.coef_, sparse.coef_, rtol=1e-8)
    assert dense.privacy_.statement.event == sparse.privacy_.statement.event


@pytest.mark.parametrize("method", NAMES)
def test_a_fit_spends_its_budget_and_no_more(method: str) -> None:
    model = fitted(method, *binary_rows())
    assert 0.99 <= model.privacy_.statement.epsilon <= 1.0
    assert model.privacy_.statement.event == model.privacy_.ledger.event


@pytest.mark.parametrize("method", NAMES)
def test_settings_that_are_given_are_taken(method: str) -> None:
    shown = fitted(method, *binary_rows(), rounds=24, clip_bound=0.7, learning_rate=0.01).privacy_.statement.settings
    assert (shown["rounds"], shown["learning rate"]) == (24, 0.01)
    assert str(shown["clip bound"]).startswith("0.7")


@pytest.mark.parametrize("method", PURE)
def test_without_delta_the_epsilons_add_up_to_the_budget(method: str) -> None:
    X, y = binary_rows(4000)
    model = fitted(method, X, y, delta=0.0, bounds=(-1, 1))
    spent = sum(count * (part.epsilon if isinstance(part, PureDpEvent) else 1 / part.noise_multiplier)
                for part, count in atoms(model.privacy_.statement.event))  # fmt: skip
    assert spent == pytest.approx(model.privacy_.statement.epsilon)
    assert 0.99 <= spent <= 1.0
    assert model.score(X, y) > 0.75


@pytest.mark.parametrize("method", ["dp-adam-bc", "dp2-rmsprop"])
def test_gaussian_noise_without_delta_is_refused(method: str) -> None:
    with pytest.raises(InputError, match="needs delta > 0"):
        fitted(method, *binary_rows(300), delta=0.0)


def test_disjoint_batches_cost_one_answer_an_epoch() -> None:
    model = fitted("sagd-minibatch", *binary_rows(), batch_size=200, rounds=25)
    assert counts(model) == [(LaplaceDpEvent, 3)]  # two epochs of ten parts, and half of one
    assert "10 disjoint parts" in model.privacy_.statement.settings["batch size"]


def test_the_cut_into_parts_is_another_one_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[int] = []

    def cut(batches: int, key: int) -> disjoint_batches:
        if key:  # the settings are tried with another
            keys.append(key)
        return disjoint_batches(batches, key)

    monkeypatch.setattr("privopt.methods.sagd_minibatch.disjoint_batches", cut)
    for state in (3, 3, 4, None, None):
        fitted("sagd-minibatch", *binary_rows(100), random_state=state)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert min(keys) > 2**100


def test_a_sparse_vector_charges_comparisons_and_answers_and_names_the_public_rows() -> None:
    model = fitted("sagd-sparse", *binary_rows(), options={"answers": 7})
    assert counts(model) == [(PureDpEvent, 7), (LaplaceDpEvent, 7)]
    assert "200 rows" in model.privacy_.statement.public_data[0]
    assert "Public data used" in str(model.privacy_)


def test_public_rows_that_are_like_the_private_ones_help_when_there_is_little_budget() -> None:
    """Mean accuracy on new rows over five seeds; a high threshold keeps noise from buying answers that are nothing but noise."""
    X, y = binary_rows(600)
    X_test, y_test = binary_rows(4000, seed=5)
    scores = {}
    for method, own in {
        "sagd-sparse": {"public": binary_rows(2000, seed=9), "options": {"threshold": 50.0}},
        "sagd-lap": {},
    }.items():
        settings = {"epsilon": 0.2, "delta": 0.0, "bounds": (-1, 1), **own}
        scores[method] = np.mean([fitted(method, X, y, random_state=seed, **settings).score(X_test, y_test) for seed in range(5)])
    assert scores["sagd-sparse"] > scores["sagd-lap"] + 0.05


@pytest.mark.parametrize("method", ["sagd-lap", "sagd-sparse"])
def test_batches_are_refused_where_there_are_none(method: str) -> None:
    with pytest.raises(InputError, match=f"{method} uses every row"):
        fitted(method, *binary_rows(300), batch_size=50)


def test_sagd_sparse_without_public_rows_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="sagd-sparse needs public data"):
        LogisticRegression(method="sagd-sparse").fit(*binary_rows(300))


def test_the_default_rule_of_dp2_keeps_steps_bounded_when_there_is_much_budget() -> None:
    X, y = binary_rows(4000)
    assert fitted("dp2-rmsprop", X, y, epsilon=1000.0).score(X, y) > 0.8


# ---------------------------------------------------------------- files and the command line


def test_a_resumed_run_cuts_the_rows_as_it_did(tmp_path: Path) -> None:
    """Another cut under the same noise would reveal both."""
    file = patients(tmp_path / "patients.csv")
    asked = patients_request(file, seed=None, delta=0.0, settings=Settings(method="sagd-minibatch", rounds=40))
    with pytest.raises(Stopped):
        runs.start(asked, tmp_path / "run", StopAt(21))
    models = []
    for name in ("one", "other"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        models.append(runs.resume(tmp_path / name).model())
    np.testing.assert_array_equal(models[0].slopes, models[1].slopes)


@pytest.mark.parametrize("method", NAMES)
def test_each_trains_from_the_command_line(method: str, tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    options: list[object] = ["--target", "readmitted", "--epsilon", 2, "--schema", tmp_path / "schema.json", "--rounds", 40]
    options += ["--method", method, "--out", tmp_path / "run"]
    if method in PURE:
        options += ["--delta", 0]
    if method == "sagd-sparse":
        options += ["--public", patients(tmp_path / "public.csv", 300, seed=7), "--option", "answers=10"]
    printed = privopt("train", file, *options)
    assert "differentially private" in printed
    assert f"method: {method}" in printed
    assert json.loads(privopt("show", tmp_path / "run", "--json"))["spent"] <= 2.0
