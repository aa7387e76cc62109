"""Private metrics: intervals that hold the truth, statements that hold, and refusals."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import confusion_matrix, log_loss, roc_auc_score

from privopt import Budget, Ledger
from privopt.errors import BudgetExceeded, CompositionError, InputError
from privopt.measure.evaluations import HeldOutSums
from privopt.metrics import ENDS, ClassifierQuality, Estimate, RegressorQuality, evaluate_classifier, evaluate_regressor
from privopt.perexample.grads import Vector
from privopt.privacy.events import GaussianDpEvent, LaplaceDpEvent, atoms
from privopt.privacy.statement import Statement

CLASSES = ("no", "yes")
SURE = Budget(1e5)  # noise of no size
large_delta = pytest.mark.filterwarnings("ignore:delta = 0.1:privopt.errors.PrivoptWarning")
REPEATS, FALSE_ALARM = 240, 1e-4  # of a coverage test, per number: a little less than nominal coverage is not seen


def scored(size: int, seed: int = 0, rate: float = 0.3) -> tuple[Vector, Vector]:
    """True classes and probabilities that are a little too sure."""
    rng = np.random.default_rng(seed)
    score = 1.5 * rng.normal(size=size) + np.log(rate / (1 - rate))
    truth = rng.uniform(size=size) < 1 / (1 + np.exp(-0.8 * score))
    return np.where(truth, "yes", "no"), 1 / (1 + np.exp(-score))


def guessed(size: int, seed: int = 0) -> tuple[Vector, Vector]:
    """Numbers in [0, 10], and predictions of them."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(4, 1.5, size)
    return np.clip(truth, 0, 10), truth + 0.7 * np.exp(0.3 * rng.normal(size=size)) * rng.normal(size=size)


def classifier(size: int = 4000, budget: Budget = SURE, seed: int = 0, **given: Any) -> ClassifierQuality:
    truth, probabilities = scored(size, seed)
    return evaluate_classifier(truth, probabilities, classes=CLASSES, budget=budget, seed=seed, **given)


def regressor(size: int = 4000, budget: Budget = SURE, seed: int = 0, **given: Any) -> RegressorQuality:
    truth, predictions = guessed(size, seed)
    return evaluate_regressor(truth, predictions, target_bounds=(0, 10), budget=budget, seed=seed, **given)


# ---------------------------------------------------------------- without noise it is what scikit-learn computes


def test_without_noise_a_classifier_has_the_usual_scores() -> None:
    truth, probabilities = scored(4000)
    quality = classifier(bins=tuple(np.linspace(0, 1, 401)[1:-1].round(6)))
    called = np.where(probabilities > 0.5, "yes", "no")
    own = np.maximum(np.where(truth == "yes", probabilities, 1 - probabilities), 0.01)
    assert quality.accuracy.value == pytest.approx(np.mean(called == truth), abs=1e-3)
    np.testing.assert_allclose(quality.confusion[:2], confusion_matrix(truth, called, labels=CLASSES), atol=0.5)
    assert quality.log_loss.value == pytest.approx(-np.log(own).mean(), abs=1e-3)
    assert quality.log_loss.value == pytest.approx(log_loss(truth == "yes", probabilities), abs=1e-2)
    assert quality.auc is not None
    assert quality.auc.value == pytest.approx(roc_auc_score(truth == "yes", probabilities), abs=1e-3)
    assert quality.majority.value == pytest.approx(np.mean(truth == "no"), abs=1e-3)
    point = next(point for point in quality.roc if point.threshold == 0.5)
    assert point.true_positive_rate.value == pytest.approx(np.mean(called[truth == "yes"] == "yes"), abs=2e-3)
    assert point.false_positive_rate.value == pytest.approx(np.mean(called[truth == "no"] == "yes"), abs=2e-3)
    middle = next(one for one in quality.calibration if one.low == 0.5)
    inside = (probabilities > middle.low) & (probabilities <= middle.high)
    assert middle.share.value == pytest.approx(np.mean(truth[inside] == "yes"), abs=2e-3)


def test_without_noise_a_regressor_has_the_usual_scores() -> None:
    truth, predictions = guessed(4000)
    errors = np.clip(predictions, 0, 10) - truth
    quality = regressor()
    assert quality.rmse.value == pytest.approx(np.sqrt(np.mean(errors**2)), abs=1e-3)
    assert quality.mae.value == pytest.approx(np.abs(errors).mean(), abs=3e-3)
    assert quality.r2.value == pytest.approx(1 - np.mean(errors**2) / np.var(truth), abs=2e-3)
    assert quality.target_deviation.value == pytest.approx(np.std(truth), abs=1e-3)


def test_several_classes_have_a_confusion_matrix_and_no_curve() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(3), 3000)
    truth = np.array([rng.choice(3, p=row) for row in probabilities])
    quality = evaluate_classifier(truth, probabilities, classes=(0, 1, 2), budget=SURE, seed=0)
    np.testing.assert_allclose(quality.confusion[:3], confusion_matrix(truth, probabilities.argmax(axis=1)), atol=0.5)
    assert (quality.auc, quality.calibration, quality.roc) == (None, (), ())
    assert "Confusion matrix" in str(quality)


def test_a_class_that_the_model_does_not_know_is_wrong_and_no_error() -> None:
    truth, probabilities = scored(3000)
    other = np.where(np.arange(3000) < 1000, "perhaps", truth)
    quality = evaluate_classifier(other, probabilities, classes=CLASSES, budget=SURE, seed=0)
    assert sum(quality.confusion[2]) == pytest.approx(1000, abs=1)
    called = np.where(probabilities > 0.5, "yes", "no")
    assert quality.accuracy.value == pytest.approx(np.mean(called == other), abs=1e-3)
    assert "(other)" in str(quality)


def test_predictions_that_are_not_numbers_count_as_the_worst() -> None:
    quality = evaluate_regressor(np.zeros(100), np.full(100, np.nan), target_bounds=(0, 1), budget=SURE, seed=0)
    assert quality.mae.value == pytest.approx(1.0, abs=1e-3)
    worst = evaluate_classifier(["yes"] * 100, np.full(100, np.nan), classes=CLASSES, budget=SURE, seed=0)
    assert worst.accuracy.value == pytest.approx(0.0, abs=1e-3)


def test_a_person_counts_once() -> None:
    truth, probabilities = np.array(["yes"] * 90 + ["no"] * 10), np.full(100, 0.9)
    persons = [0] * 90 + list(range(1, 11))
    quality = evaluate_classifier(
        truth, probabilities, classes=CLASSES, budget=Budget(1e5, unit="person"), groups=persons, seed=0
    )
    assert quality.size == 11
    assert quality.accuracy.value == pytest.approx(1 / 11, abs=2e-3)
    assert "Unit: one person" in str(quality.privacy.statement)
    assert "the number of persons" in str(quality.privacy.statement)


# ---------------------------------------------------------------- intervals


def coverage(
    truths: dict[str, float], measured: Callable[[int], dict[str, Estimate]], confidence: float = 0.95
) -> dict[str, tuple[int, int]]:
    """By name: how often an interval missed the truth, and how often a right one does so at most, but for a false alarm."""
    missed: Counter[str] = Counter()
    for seed in range(REPEATS):
        found = measured(seed)
        missed.update(name for name, truth in truths.items() if not found[name].low <= truth <= found[name].high)
    most = int(binom.isf(FALSE_ALARM, REPEATS, 1 - confidence))
    return {name: (missed[name], most) for name in truths}


class Population:
    """What a very large sample shows, with these ends of bins."""

    def __init__(self, rate: float, size: int = 1_000_000) -> None:
        truth, probabilities = scored(size, 10**6, rate)
        positive = truth == "yes"
        own = np.maximum(np.where(positive, probabilities, 1 - probabilities), 0.01)
        self.scores = {
            "accuracy": float(np.mean((probabilities > 0.5) == positive)),
            "accuracy of majority class": float(max(positive.mean(), 1 - positive.mean())),
            "log loss": float(-np.log(own).mean()),
        }
        self.sides = [np.sort(probabilities[positive == side]) for side in (False, True)]

    def of(self, edges: tuple[float, ...]) -> dict[str, float]:
        no, yes = (np.diff([0, *np.searchsorted(side, edges, "right"), len(side)]) / len(side) for side in self.sides)
        counts = [share * len(side) for share, side in zip((no, yes), self.sides, strict=True)]
        return self.scores | {
            "AUC": float(yes @ (np.cumsum(no) - no / 2)),
            "calibration": float(counts[1][1] / (counts[0][1] + counts[1][1])),
            "true positive rate": float(1 - yes[0]),
        }


def ends(quality: ClassifierQuality) -> tuple[float, ...]:
    return tuple(one.high for one in quality.calibration[:-1])


@large_delta
@pytest.mark.parametrize(
    ("size", "rate", "budget"),
    [
        (1000, 0.3, Budget(0.1)),  # mostly noise
        (1000, 0.3, Budget(1.0)),
        (1000, 0.05, Budget(0.5)),  # few positives
        (2000, 0.3, Budget(0.5, 0.1)),  # Gaussian noise
        (500, 0.3, Budget(50.0)),  # mostly sampling error
    ],
)
def test_intervals_of_a_classifier_hold_the_truth_as_often_as_they_say(size: int, rate: float, budget: Budget) -> None:
    population = Population(rate)
    missed: Counter[str] = Counter()
    for seed in range(REPEATS):
        truth, probabilities = scored(size, seed, rate)
        quality = evaluate_classifier(truth, probabilities, classes=CLASSES, budget=budget, seed=seed)
        extra = {"calibration": quality.calibration[1].share, "true positive rate": quality.roc[0].true_positive_rate}
        truths = population.of(ends(quality))
        found = quality.numbers | extra
        missed.update(name for name, value in truths.items() if not found[name].low <= value <= found[name].high)
    assert max(missed.values(), default=0) <= int(binom.isf(FALSE_ALARM, REPEATS, 0.05)), missed


@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_the_auc_of_persons_with_a_rare_class_is_found(rate: float) -> None:
    """With fixed bins, almost all rows of a rare class were in the first, and the AUC near ½ whatever the model."""
    exact, found = [], []
    for seed in range(12):
        truth, probabilities = scored(4000, seed, rate)
        budget, persons = Budget(1.0, unit="person"), np.arange(4000) % 2000
        quality = evaluate_classifier(truth, probabilities, classes=CLASSES, budget=budget, groups=persons, seed=seed)
        assert quality.auc is not None
        exact.append(roc_auc_score(truth == "yes", probabilities))
        found.append(quality.auc.value)
    assert np.mean(found) == pytest.approx(np.mean(exact), abs=0.06)


def test_bins_have_about_as_many_units_each() -> None:
    rows = [one.rows for one in classifier(20_000, Budget(1.0)).calibration]
    assert max(rows) < 3 * np.mean(rows)
    assert {0.5} < set(ends(classifier(20_000, Budget(1.0)))) <= set(ENDS)


def test_bins_that_are_given_cost_nothing() -> None:
    free, chosen = (classifier(4000, Budget(1.0), bins=bins) for bins in ((0.2, 0.5, 0.8), None))
    assert [entry.count for entry in free.privacy.ledger.entries] == [1]
    assert [entry.count for entry in chosen.privacy.ledger.entries] == [1, 1]
    assert free.count_deviation[0] * 2 < chosen.count_deviation[0] * len(chosen.calibration) ** 0.5
    assert chosen.privacy.statement.epsilon == pytest.approx(1.0, rel=0.01)


def test_an_evaluation_that_a_ledger_cannot_pay_whole_pays_nothing() -> None:
    ledger = Ledger(Budget(0.05))
    with pytest.raises(BudgetExceeded):
        classifier(4000, Budget(1.0), ledger=ledger)
    assert not ledger.entries
    full = Ledger(Budget(1.0))
    classifier(4000, Budget(1.0), ledger=full)
    assert len(full.entries) == 2


@pytest.mark.parametrize(("size", "budget"), [(1000, Budget(0.3)), (2000, Budget(0.3, 1e-4)), (500, Budget(50.0))])
def test_intervals_of_a_regressor_hold_the_truth_as_often_as_they_say(size: int, budget: Budget) -> None:
    truth, predictions = guessed(1_000_000, 10**6)
    errors = np.clip(predictions, 0, 10) - truth
    mse, deviation = float(np.mean(errors**2)), float(np.std(truth))
    truths = {"RMSE": mse**0.5, "RMSE of the mean": deviation, "MAE": float(np.abs(errors).mean()), "R²": 1 - mse / deviation**2}
    for name, (missed, most) in coverage(truths, lambda seed: regressor(size, budget, seed).numbers).items():
        assert missed <= most, name


def test_intervals_without_the_noise_in_them_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = HeldOutSums.answer

    def boastful(self: HeldOutSums, *given: Any) -> Any:
        noisy = honest(self, *given)
        return type(noisy)(noisy.counts, noisy.sums, noisy.size, 1e-9, noisy.kurtosis)

    monkeypatch.setattr(HeldOutSums, "answer", boastful)
    found = coverage({"accuracy": Population(0.3).scores["accuracy"]}, lambda seed: classifier(1000, Budget(0.1), seed).numbers)
    missed, most = found["accuracy"]
    assert missed > most


def test_intervals_of_persons_with_many_rows_hold_the_truth() -> None:
    """A person's rows are alike, so an interval that counted rows would be far too narrow."""

    def measured(seed: int) -> dict[str, Estimate]:
        truth, probabilities = scored(300, seed)
        rows = np.repeat(np.arange(300), np.random.default_rng(seed).integers(1, 9, 300))
        quality = evaluate_classifier(
            truth[rows], probabilities[rows], classes=CLASSES, budget=Budget(2.0, unit="person"), groups=rows, seed=seed
        )
        return quality.numbers

    for name, (missed, most) in coverage({"accuracy": Population(0.3).scores["accuracy"]}, measured).items():
        assert missed <= most, name


# ---------------------------------------------------------------- what is claimed and paid


@large_delta
@pytest.mark.parametrize("evaluate", [classifier, regressor])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.1])
def test_what_is_planned_is_recorded_and_within_the_budget(evaluate: Any, neighbours: Any, delta: float) -> None:
    ledger, budget = Ledger(), Budget(0.5, delta, neighbours)
    statement = evaluate(2000, budget, ledger=ledger).privacy.statement
    assert ledger.event == statement.event
    kinds = {type(event) for event, _ in atoms(statement.event)}
    assert kinds in ({LaplaceDpEvent}, {GaussianDpEvent})
    assert 0.98 * budget.epsilon <= statement.epsilon <= budget.epsilon
    assert statement.epsilon == pytest.approx(ledger.epsilon(delta, neighbours))
    assert statement.budget == budget


@large_delta
def test_noise_is_of_the_kind_that_has_less_of_it() -> None:
    for budget, kind in ((Budget(1.0, 1e-6), LaplaceDpEvent), (Budget(0.1, 0.1), GaussianDpEvent)):
        assert {type(event) for event, _ in atoms(classifier(2000, budget).privacy.statement.event)} == {kind}


def test_a_ledger_with_a_cap_holds_two_evaluations_and_refuses_the_third() -> None:
    ledger = Ledger(Budget(1.0))
    for seed in range(2):
        classifier(2000, Budget(0.5), seed, ledger=ledger)
    with pytest.raises(BudgetExceeded):
        classifier(2000, Budget(0.5), ledger=ledger)
    assert len({entry.run for entry in ledger.entries}) == 2


def test_a_statement_says_what_is_public_and_that_budgets_add_up() -> None:
    text = str(classifier(2000, Budget(0.5)).privacy)
    for said in (
        "the number of rows",
        "the 2 classes",
        "the budgets of both add up",
        "depends on that row and on the model only",
    ):
        assert said in text


def test_json_reads_back() -> None:
    for quality in (classifier(2000, Budget(0.5)), regressor(200, Budget(0.5))):
        value = json.loads(json.dumps(quality.to_json(), allow_nan=False))
        assert Statement.from_json(value["statement"]).event == quality.privacy.statement.event
        assert set(value["numbers"]) == set(quality.numbers)


def test_tables_fit_into_80_columns() -> None:
    names = ("a class with a name that is rather long", "another class with a name that is rather long")
    truth, probabilities = scored(3000)
    long = np.where(truth == "yes", names[1], names[0])
    for quality in (
        evaluate_classifier(long, probabilities, classes=names, budget=Budget(1.0)),
        regressor(3000, Budget(1.0)),
    ):
        assert max(map(len, str(quality).splitlines())) <= 80


def test_metrics_load_neither_torch_nor_pandas() -> None:
    code = "import privopt.metrics, sys; print(sorted({'torch', 'numba', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"classes": ("yes",)}, "at least two"),
        ({"classes": ("yes", "yes")}, "each once"),
        ({"probabilities": np.zeros((300, 3))}, "shape"),
        ({"probabilities": np.zeros(299)}, "shape"),
        ({"truth": np.zeros((300, 1))}, "one class for each row"),
        ({"truth": []}, "at least one row"),
        ({"bins": (0.2, 0.8)}, "0.5"),
        ({"bins": (0.5, 0.2)}, "in order"),
        ({"least_probability": 0.0}, "least_probability"),
        ({"least_probability": 0.6}, "least_probability"),
        ({"confidence": 95}, "confidence"),
        ({"budget": 0.5}, "Budget"),
        ({"budget": Budget(0.01)}, "too few"),
        ({"budget": Budget(1.0, unit="person"), "groups": [1, 2]}, "groups"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_and_nothing_is_paid(given: dict[str, Any], message: str) -> None:
    truth, probabilities = scored(300)
    ledger = Ledger()
    settings: dict[str, Any] = {
        "truth": truth,
        "probabilities": probabilities,
        "classes": CLASSES,
        "budget": Budget(1.0),
        "ledger": ledger,
    }
    with pytest.raises(InputError, match=message):
        evaluate_classifier(**(settings | given))
    assert not ledger.entries


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_bounds": (1, 0)}, "smaller first"),
        ({"target_bounds": (0, np.inf)}, "finite"),
        ({"error_bound": 11}, "error_bound"),
        ({"error_bound": 0}, "error_bound"),
        ({"truth": ["a"] * 300}, "not a number"),
        ({"predictions": np.zeros(3)}, "300 true values, but 3"),
        ({"budget": Budget(0.01)}, "too few"),
    ],
)
def test_what_cannot_be_regressed_is_refused_and_nothing_is_paid(given: dict[str, Any], message: str) -> None:
    truth, predictions = guessed(300)
    ledger = Ledger()
    settings: dict[str, Any] = {"truth": truth, "predictions": predictions, "target_bounds": (0, 10), "budget": Budget(1.0)}
    with pytest.raises(InputError, match=message):
        evaluate_regressor(**(settings | {"ledger": ledger} | given))
    assert not ledger.entries


def test_a_budget_promises_the_unit_that_is_counted() -> None:
    with pytest.raises(CompositionError, match="one person"):
        classifier(300, Budget(1.0, unit="person"))
    with pytest.raises(CompositionError, match="one example"):
        classifier(300, Budget(1.0), groups=np.arange(300))
