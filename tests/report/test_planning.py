"""What `privopt plan` tells of each ε: quality that the estimators do reach, and attackers that no test beats."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import r2_score, roc_auc_score

from privopt.linear_model import LogisticRegression, Ridge
from privopt.privacy.budget import Budget, default_delta, detection_rate
from privopt.report.planning import EPSILONS, compare_epsilons, render_plan
from privopt.report.plots import can_draw
from tests.report.finished import Page


def made_up(n: int, d: int, best: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two normal classes in a random direction, whose best AUC is as given."""
    rng = np.random.default_rng(seed)
    direction = np.random.default_rng(d).normal(size=d)
    direction *= norm.ppf(best) / np.sqrt(2) / np.linalg.norm(direction)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, d)) + np.outer(2 * y - 1, direction), y


@pytest.mark.filterwarnings("ignore:too few rows to learn privately")  # standardised columns, whose ranges nobody declared
@pytest.mark.parametrize(("n", "d", "epsilon"), [(1000, 50, 0.1), (1000, 50, 1.0), (3000, 10, 0.5), (3000, 10, 3.0)])
def test_a_classifier_reaches_the_expected_auc_of_the_made_up_task(n: int, d: int, epsilon: float) -> None:
    """Seeds are fixed, so this is one comparison: within 0.06, where the range is from 0.5 to 0.85."""
    budget = Budget(epsilon, default_delta(n))
    expected = next(one.expected for one in compare_epsilons(n, d, budget) if one.epsilon == epsilon)
    fresh = made_up(4000, d, 0.85, seed=100)
    areas = []
    for seed in range(3):
        model = LogisticRegression(epsilon, random_state=seed).fit(*made_up(n, d, 0.85, seed))
        areas.append(roc_auc_score(fresh[1], model.decision_function(fresh[0])))
    assert np.mean(areas) == pytest.approx(expected, abs=0.06)


@pytest.mark.filterwarnings("ignore:too few rows to learn privately")  # standardised columns, whose ranges nobody declared
@pytest.mark.parametrize(("n", "d", "epsilon"), [(3000, 50, 0.3), (1000, 10, 1.0)])
def test_a_regression_reaches_the_expected_r2_of_the_made_up_task(n: int, d: int, epsilon: float) -> None:
    rng = np.random.default_rng(d)
    slopes = rng.normal(size=d)
    slopes *= np.sqrt(0.6) / np.linalg.norm(slopes)
    rows = rng.normal(size=(n + 4000, d))
    target = rows @ slopes + np.sqrt(0.4) * rng.normal(size=n + 4000)
    budget = Budget(epsilon, default_delta(n))
    expected = next(one.expected for one in compare_epsilons(n, d, budget, task="regress") if one.epsilon == epsilon)
    scores = [
        r2_score(target[n:], Ridge(epsilon, random_state=seed).fit(rows[:n], target[:n]).predict(rows[n:])) for seed in range(3)
    ]
    assert np.mean(scores) == pytest.approx(expected, abs=0.1)


def test_quality_rises_with_epsilon_and_n_and_falls_with_d() -> None:
    def expected(n: int, d: int) -> list[float]:
        return [one.expected for one in compare_epsilons(n, d, Budget(1.0, 1e-6))]

    assert expected(1000, 50) == sorted(expected(1000, 50))
    assert all(more > less for more, less in zip(expected(4000, 50), expected(1000, 50), strict=True))
    assert all(more > less for more, less in zip(expected(1000, 10), expected(1000, 50), strict=True))
    assert all(0.5 < one < 0.85 for one in expected(1000, 50))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.01), (3.0, 1e-3)])
def test_no_test_of_the_worst_release_beats_the_trade_off_curve_and_one_reaches_it(epsilon: float, delta: float) -> None:
    """(ε, δ) as one outcome of randomised response, or an outcome that gives it away: every threshold of its likelihood ratio."""
    keep = (1 - delta) / (1 + np.exp(-epsilon))
    part, none = np.array([delta, keep, 1 - delta - keep, 0.0]), np.array([0.0, 1 - delta - keep, keep, delta])
    alarms, found = none.cumsum(), part.cumsum()
    assert [detection_rate(epsilon, delta, one) for one in alarms] == pytest.approx(found)
    for share in (0.1, 0.5, 0.9):  # a test that tosses a coin between two thresholds
        mixed = share * alarms[0] + (1 - share) * alarms[2], share * found[0] + (1 - share) * found[2]
        assert detection_rate(epsilon, delta, mixed[0]) >= mixed[1]


@pytest.mark.parametrize("plots", [True, False])
def test_the_page_says_all_that_its_plots_show(plots: bool) -> None:
    budget = Budget(50.0, 1e-5)
    text = render_plan(compare_epsilons(500, 5, budget), budget, 500, 5, "classify", 0.85, plots=plots)
    page = Page(text)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("svg") == (2 if plots and can_draw() else 0)
    assert tags.count("table") == 2
    assert "script" not in tags
    assert "promises next to nothing" in page.text
    assert all(f"{epsilon:g}" in page.text for epsilon in (*EPSILONS, 50))
    assert "> 99.9 %" in page.text
