"""The utility program scores models rightly, and each of its sections runs on tiny synthetic data."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from benchmarks import data, peers, report, utility

TINY = utility.Size(seeds=1, rows=400)


@pytest.fixture(autouse=True)
def _without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "installed", lambda: False)


@pytest.mark.parametrize("section", [utility.a9a, utility.tables, utility.regressions, utility.chosen, utility.mnist])
@pytest.mark.filterwarnings("ignore")  # few rows, and scikit-learn's own
def test_every_section_runs(section: Callable[[utility.Size], Iterator[report.Row]]) -> None:
    for row in itertools.islice(section(TINY), 5):
        assert "±" in row.value
        assert row.passed is None  # synthetic data have no requirement


def test_scores_are_those_of_a_perfect_and_of_an_ignorant_model() -> None:
    truth = np.array([0.0, 1.0, 1.0, 0.0])
    assert utility.classified(truth, truth)["accuracy"] == 1.0
    assert utility.classified(truth, np.full(4, 0.5))["loss"] == pytest.approx(np.log(2))


def test_a_requirement_is_met_by_low_losses_and_high_accuracies() -> None:
    scores = [{"loss": 0.3, "accuracy": 0.9}, {"loss": 0.5, "accuracy": 0.9}]
    assert utility.result("", "", scores, {"loss": 0.4, "accuracy": 0.9}).passed
    assert not utility.result("", "", scores, {"loss": 0.39}).passed
    assert not utility.result("", "", scores, {"accuracy": 0.91}).passed


def test_synthetic_rows_have_the_shape_of_the_real_ones() -> None:
    assert data.a9a().X.shape == (32561, 123)
    rows = data.imdb(50).X
    assert rows.shape == (50, 10000)
    assert np.allclose((rows.multiply(rows)).sum(axis=1), 1.0)
