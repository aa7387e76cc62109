"""Private searches: the best of several settings with one price, from Python and from the command line."""

import json
import math
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from privopt import Ledger
from privopt.errors import CompositionError, Diverged, InputError, PrivoptWarning
from privopt.linear_model import HuberRegressor, LogisticRegression, PrivateSearchCV, Ridge
from privopt.measure.evaluations import HeldOutSums
from privopt.measure.mechanisms import gaussian
from privopt.measure.selection import best_of_geometric
from privopt.privacy.events import FailureDpEvent, RepeatAndSelectDpEvent, atoms
from privopt.training import linear
from privopt.training import search as searches
from privopt.training.search import Search
from tests.cli.typed import privopt
from tests.problems import PATIENTS, binary_rows, patients, regression_rows

X, Y = binary_rows(4000)
IDS = np.arange(4000) // 2
GRID: dict[str, Any] = {"rounds": [2, 60], "alpha": [0.0, 0.1]}


def searching(**given: Any) -> PrivateSearchCV:
    return PrivateSearchCV(LogisticRegression(3.0, **{"bounds": (-1, 1), "random_state": 0, **given}), GRID)


def test_a_search_costs_its_budget_and_says_so() -> None:
    ledger = Ledger()
    found = searching(ledger=ledger).fit(X, Y)
    statement = found.privacy_.statement
    (selection,) = (part for part, _ in atoms(ledger.event))
    assert isinstance(selection, RepeatAndSelectDpEvent)
    assert ledger.event == statement.event
    assert 0.97 * 3.0 < statement.epsilon <= 3.0
    assert found.best_params_ in [{"alpha": alpha, "rounds": rounds} for alpha in (0.0, 0.1) for rounds in (2, 60)]
    assert found.score(X, Y) == found.best_estimator_.score(X, Y) > 0.75
    text = statement.text()
    for said in ("the choice among 4 candidates", "how long the search took", "the best of a secret, random number of trials"):
        assert said in text
    assert not hasattr(found.best_estimator_, "__dict__") or "_trainer" not in vars(found.best_estimator_)


def test_what_is_planned_is_what_each_trial_spends_at_most() -> None:
    spent, check = [], best_of_geometric.check

    def noted(self: best_of_geometric, event: Any) -> None:
        spent.append((event, self.noise_multiplier))
        check(self, event)

    with mock.patch.object(best_of_geometric, "check", noted):
        searching().fit(X, Y)
    for event, noise in spent:
        precision = sum(count / part.noise_multiplier**2 for part, count in atoms(event))
        assert 0.99 < precision * noise**2 <= 1  # calibrated within two thousandths of ε


def test_a_trial_without_the_noise_that_was_planned_is_caught() -> None:
    honest = gaussian
    ledger = Ledger()
    with (
        mock.patch.object(searches, "gaussian", lambda noise: honest(noise / 2)),
        pytest.raises(CompositionError, match="nothing is"),
    ):
        searching(ledger=ledger).fit(X, Y)
    assert len(ledger.entries) == 1  # and it is spent


def test_no_row_is_both_trained_on_and_scored_on() -> None:
    trained, scored, train, losses = set[float](), set[float](), linear.train_linear, searches._losses
    rows = np.column_stack([np.arange(4000) / 4000, X])

    def noted(part: Any, *rest: Any) -> Any:
        trained.update(part.matrix[:, 0].tolist())
        return train(part, *rest)

    def weighed(model: Any, part: Any) -> Any:
        scored.update(part.matrix[:, 0].tolist())
        return losses(model, part)

    with mock.patch.object(searches, "train_linear", noted), mock.patch.object(searches, "_losses", weighed):
        searching().fit(rows, Y)
    assert (len(trained), len(scored), trained & scored) == (3200, 800, set())


def test_persons_are_cut_whole_and_count_once() -> None:
    trained, scored, train, measure = set[int](), [], linear.train_linear, HeldOutSums.measure

    def noted(part: Any, *rest: Any) -> Any:
        trained.update(IDS[part.persons.trained.rows].tolist())
        assert set(part.persons.surveyed) <= set(part.persons.trained.rows)
        return train(part, *rest)

    def weighed(self: HeldOutSums, votes: Any, values: Any, persons: Any, **given: Any) -> Any:
        scored.append((len(values), int(persons.max()) + 1))
        return measure(self, votes, values, persons, **given)

    with mock.patch.object(searches, "train_linear", noted), mock.patch.object(HeldOutSums, "measure", weighed):
        found = searching().fit(X, Y, groups=IDS)
    assert len(trained) == 1600
    assert set(scored) == {(800, 400)}
    assert found.privacy_.statement.budget.unit == "person"
    assert "400 persons" in found.privacy_.statement.text() or "2000 persons" in found.privacy_.statement.text()


def test_the_better_setting_is_chosen_when_it_matters() -> None:
    chosen = [
        PrivateSearchCV(LogisticRegression(5.0, bounds=(-1, 1), random_state=seed), {"alpha": [0.0, 1000.0]}, trials=20).fit(X, Y)
        for seed in range(5)
    ]
    assert all(found.best_params_ == {"alpha": 0.0} for found in chosen)
    assert all(-0.693 < found.best_score_ < 0 for found in chosen)


@pytest.mark.parametrize("kind", [Ridge, HuberRegressor])
def test_regressions_are_searched(kind: Any) -> None:
    rows, targets = regression_rows(4000)
    reach = float(np.ceil(np.abs(targets).max()))
    found = PrivateSearchCV(
        kind(3.0, bounds=(-2, 2), target_bounds=(-reach, reach), random_state=0), {"method": ["dp-adam", "dp-gd"]}
    )
    assert found.fit(rows, targets).score(rows, targets) > 0.8
    with pytest.raises(InputError, match="declare target_bounds"):
        PrivateSearchCV(kind(3.0), {"rounds": [5, 10]}).fit(rows, targets)


def test_a_trial_that_diverges_is_the_worst_and_nobody_is_told() -> None:
    wild: dict[str, Any] = {"method": ["dp-gd"], "learning_rate": [0.1, 1e308]}
    found = PrivateSearchCV(LogisticRegression(3.0, bounds=(-1, 1), random_state=1), wild, trials=20).fit(X, Y)
    assert found.best_params_["learning_rate"] == 0.1
    ledger = Ledger()
    hopeless = LogisticRegression(3.0, bounds=(-1, 1), method="dp-gd", ledger=ledger, random_state=1)
    with (
        mock.patch.object(searches, "train_linear", mock.Mock(side_effect=Diverged("x"))),
        pytest.raises(Diverged, match="all others"),
    ):
        PrivateSearchCV(hopeless, wild).fit(X, Y)
    assert len(ledger.entries) == 1


def test_trials_are_silent() -> None:
    told: list[object] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivoptWarning)
        searching(bounds=None, observer=told.append).fit(X, Y)
    assert not told


def test_frames_are_surveyed_once_for_all_trials() -> None:
    frame = pd.DataFrame(X, columns=list("abcde")).assign(kind=np.where(X[:, 0] > 0, "high", "low"))
    found = searching(bounds=None, schema={}).fit(frame, Y)
    events = [part for part, _ in atoms(found.privacy_.statement.event)]
    assert sum(isinstance(part, FailureDpEvent) for part in events) == 1
    assert isinstance(events[-1], RepeatAndSelectDpEvent)
    assert found.privacy_.statement.epsilon <= 3.0
    assert found.predict(frame).shape == (4000,)


def test_scikit_learn_can_clone_a_search_and_read_its_tags() -> None:
    found = clone(searching())
    assert found.get_params()["estimator__epsilon"] == 3.0
    assert found.__sklearn_tags__().estimator_type == "classifier"
    assert not hasattr(PrivateSearchCV(Ridge(), GRID), "predict_proba")


@pytest.mark.parametrize(
    ("estimator", "grid", "settings", "says"),
    [
        (LogisticRegression(), {"epsilon": [1.0, 2.0]}, {}, "tries 'epsilon'.*the budget is that of the whole search"),
        (LogisticRegression(), {"rounds": [10]}, {}, "has one candidate"),
        (LogisticRegression(), GRID, {"trials": 1.0}, "trials is 1.0"),
        (LogisticRegression(), GRID, {"holdout": 1.0}, "holdout is 1"),
        (LogisticRegression(batch_size=100), GRID, {}, "does not use Gaussian noise on all rows"),
        (LogisticRegression(), {"method": ["dp-adam", "sagd-lap"]}, {}, "method=sagd-lap.*does not use Gaussian noise"),
        (LogisticRegression(), {"alpha": [0.0, -1.0]}, {}, "alpha is -1.0"),
        (LogisticRegression(), {"method": ["dp-adam", "no-such"]}, {}, "no-such"),
        (LogisticRegression(delta=0.0, bounds=1.0), GRID, {}, "need delta > 0"),
        (make_pipeline(Normalizer(), LogisticRegression()), GRID, {}, "estimator is Pipeline"),
    ],
)
def test_searches_that_cannot_be_are_refused_before_anything_is_paid(estimator: Any, grid: Any, settings: Any, says: str) -> None:
    ledger = Ledger()
    if hasattr(estimator, "ledger"):
        estimator = clone(estimator).set_params(ledger=ledger)
    with pytest.raises((InputError, CompositionError), match=says):
        PrivateSearchCV(estimator, grid, **settings).fit(X, Y)
    assert not ledger.entries


def test_the_price_is_told_from_public_numbers() -> None:
    price = searching().price(4000)
    assert price.startswith("4 candidates, 8 trials on average: each is trained with 2.")
    assert "ε = 3, δ = 1e-05" in price
    assert math.isclose(float(price.split("trained with ")[1].split(" ×")[0]), 2.15, abs_tol=0.2)
    assert Search.from_json(json.loads(json.dumps(Search(({"rounds": 1}, {"rounds": 2})).to_json()))).mean == 4


# ---------------------------------------------------------------- the command


def test_tune_says_the_price_first_and_leaves_a_run_folder(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv"), tmp_path / "run"
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    options = ("--target", "readmitted", "--epsilon", 2, "--schema", tmp_path / "schema.json", "--seed", 1, "--out", run)
    printed = privopt("tune", file, *options, "--try", "rounds=5,60", "--try", "alpha=0,0.1")
    assert printed.index("4 candidates, 8 trials on average") < printed.index("Privacy statement")
    assert "the choice among 4 candidates" in printed
    assert "Spent, from the ledger: ε = 1.99" in printed
    assert "accuracy 0." in privopt("predict", run, file, "--target", "readmitted", "--out", tmp_path / "predictions.csv")
    assert "candidates" in privopt("train", "--resume", run)
    assert (run / "report.html").exists()


def test_tune_protects_persons_and_refuses_a_number_without_a_range_before_anything_is_written(tmp_path: Path) -> None:
    file = patients(tmp_path / "patients.csv")
    frame = pd.read_csv(file).assign(patient_id=[f"P{place // 2}" for place in range(3000)])
    frame.to_csv(file, index=False)
    options = ("--drop", "cost", "--epsilon", 3, "--seed", 1, "--try", "rounds=5,20", "--person", "patient_id")
    assert "1500 persons" in privopt("tune", file, "--target", "readmitted", *options, "--out", tmp_path / "run")
    refused = privopt("tune", file, "--target", "income", *options, "--out", tmp_path / "other", code=2)
    assert "declare the target's range in a --schema" in refused
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("tried", "says"),
    [
        (["rounds"], "--try is 'rounds'"),
        (["rounds=5"], "has one candidate"),
        (["epsilon=1,2"], "tries 'epsilon'"),
        (["rounds=5,6", "rounds=7,8"], "names rounds twice"),
        (["rounds=-5,6"], "rounds is -5"),
    ],
)
def test_what_cannot_be_tried_is_refused(tmp_path: Path, tried: list[str], says: str) -> None:
    file = patients(tmp_path / "patients.csv", 400)
    options = [part for one in tried for part in ("--try", one)]
    assert says in privopt("tune", file, "--target", "readmitted", "--epsilon", 5, "--drop", "cost", *options, code=2)
