"""The table of excess risks: rows as short as it says, minima that are minima, and cells that count rightly."""

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks import data, smooth_erm
from privopt import Budget, epsilon
from privopt.perexample.losses import Huber, Logistic
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent


def test_no_row_is_longer_than_one_and_targets_fit_their_loss() -> None:
    jobs = [smooth_erm.task(table) for table in data.whole_tables()]
    assert [type(job.loss) for job in jobs] == [Logistic, Huber]
    for job in jobs:
        lengths = np.linalg.norm(job.X, axis=1)
        assert 0 < lengths.min() <= lengths.max() <= 1 + 1e-12
    assert set(jobs[0].y) == {0.0, 1.0}
    assert (jobs[1].y.min(), jobs[1].y.max()) == (-1.0, 1.0)


def test_the_least_risk_is_scikit_learn_s() -> None:
    job = smooth_erm.task(data.whole_tables()[0])
    model = LogisticRegression(C=1 / (0.1 * len(job.y)), fit_intercept=False, tol=1e-10, max_iter=1000).fit(job.X, job.y)
    assert job.least(0.1) == pytest.approx(job.risk(0.1)(model.coef_[0])[0], rel=1e-8)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_a_cell_has_every_column(ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smooth_erm, "BATCH", 100_000)  # all rows: sampled ones take the accountant longer
    monkeypatch.setattr(smooth_erm, "PASSES", (300,))
    job = smooth_erm.task(data.whole_tables()[1])
    row = smooth_erm.cell(job, ridge, job.least(ridge), 1.0, seeds=2)
    assert all(row[name][0] > 0 and math.isfinite(row[name][1]) for name in smooth_erm.COLUMNS)
    assert smooth_erm.line(row).count("±") == 4


def test_cells_that_are_lower_are_counted() -> None:
    rows = [{"output perturbation": (value, 0.0), "other": (0.5, 0.0)} for value in (0.4, 0.6, 0.1)]
    assert smooth_erm.won(rows, "other") == 2


@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_the_published_noise_is_private_and_more_than_is_needed(eps: float) -> None:
    size, rounds = 30000, 6000
    noise = smooth_erm.published(Budget(eps, 1e-3, "replace-one"), size, rounds)
    event = SelfComposedDpEvent(PoissonSampledDpEvent(50 / size, GaussianDpEvent(noise)), rounds)
    assert epsilon(event, 1e-3, "replace-one") < eps / 2
