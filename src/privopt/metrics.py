"""Private metrics: how good predictions are on private held-out rows, with noise, intervals and a statement.

    quality = evaluate_classifier(truth, probabilities, classes=("no", "yes"), budget=Budget(0.5))
    print(quality)

Each evaluation is one release of noisy sums (`privopt.measure.evaluations`), charged to a ledger before it is measured. Accuracy,
confusion matrix, calibration, ROC and so on are computed from it, and cost nothing more.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.errors import InputError
from privopt.escaping import printable
from privopt.measure.evaluations import HeldOutSums, NoisySums, Places, pay
from privopt.measure.mechanisms import gaussian, laplace
from privopt.measure.units import check_unit, each_person, each_row
from privopt.postprocess.intervals import (
    Estimate,
    Noise,
    area_under_roc,
    mean_of_unit_values,
    ratio_of_variances,
    share_of_all,
    share_of_some,
)
from privopt.privacy.budget import Budget
from privopt.privacy.events import DpEvent, GaussianDpEvent, LaplaceDpEvent, compose
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Privacy
from privopt.training.session import Session

__all__ = ["ClassifierQuality", "Estimate", "RegressorQuality", "evaluate_classifier", "evaluate_regressor"]

LEAST_PROBABILITY = 0.01  # probabilities below it count as this, so that one row's log loss is bounded
_LOW = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15)
_MIDDLE = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
ENDS = (*_LOW, *_MIDDLE, *(round(1 - end, 4) for end in reversed(_LOW)))  # that bins of a probability may have
BINS = (16, 8, 4)  # with about as many units each; the noise of their counts decides which
LOOSER = 9.0  # noise of the counts by which bins are chosen, in noise of the others: those then have a tenth more than alone
OTHER = "(other)"  # the true class of rows whose class the model does not know
WIDEST = 0.5  # half of an interval that says nothing: with so few units an evaluation is refused
SHORT = 18  # characters of a class name that are printed


@dataclass(frozen=True)
class Bin:
    """Rows whose predicted probability of the second class lies in (low, high]: how many, and their share of that class."""

    low: float
    high: float
    rows: float
    share: Estimate


@dataclass(frozen=True)
class RocPoint:
    """Rows with a probability above `threshold` called positive: the share of negatives and positives that are."""

    threshold: float
    false_positive_rate: Estimate
    true_positive_rate: Estimate


@dataclass(frozen=True)
class ClassifierQuality:
    """How good a classifier is. `confusion[i][j]` is the noisy number of units of true class i that were called class j.

    `majority` is the accuracy of always saying the most frequent class. `auc`, `calibration` and `roc` are of two classes only.
    Each interval holds the truth with probability `confidence`, each by itself.
    """

    classes: tuple[str, ...]
    size: int
    confidence: float
    accuracy: Estimate
    majority: Estimate
    log_loss: Estimate
    confusion: tuple[tuple[float, ...], ...]  # the last row is that of other classes
    count_deviation: tuple[float, ...]  # of the noise of an entry of each column of `confusion`
    auc: Estimate | None
    calibration: tuple[Bin, ...]
    roc: tuple[RocPoint, ...]
    privacy: Privacy

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The numbers by name."""
        found = {"accuracy": self.accuracy, "accuracy of majority class": self.majority}
        return found | ({} if self.auc is None else {"AUC": self.auc}) | {"log loss": self.log_loss}

    def __str__(self) -> str:
        return "\n".join([*_numbers(self), "", *_confusion(self), *_calibration(self)])

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return _json(self) | {
            "task": "classify",
            "classes": list(self.classes),
            "confusion": [list(row) for row in self.confusion],
            "count_deviation": list(self.count_deviation),
            "calibration": [
                {"low": one.low, "high": one.high, "rows": one.rows, "share": one.share.to_json()} for one in self.calibration
            ],
            "roc": [
                {
                    "threshold": point.threshold,
                    "false_positive_rate": point.false_positive_rate.to_json(),
                    "true_positive_rate": point.true_positive_rate.to_json(),
                }
                for point in self.roc
            ],
        }


@dataclass(frozen=True)
class RegressorQuality:
    """How good a regression is. `target_deviation` is the RMSE of always predicting the mean."""

    target_bounds: tuple[float, float]
    size: int
    confidence: float
    rmse: Estimate
    mae: Estimate
    r2: Estimate
    target_deviation: Estimate
    privacy: Privacy

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The numbers by name."""
        return {"RMSE": self.rmse, "RMSE of the mean": self.target_deviation, "MAE": self.mae, "R²": self.r2}

    def __str__(self) -> str:
        return "\n".join(_numbers(self))

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return _json(self) | {"task": "regress", "target_bounds": list(self.target_bounds)}


# ---------------------------------------------------------------- classification


def evaluate_classifier(
    truth: ArrayLike,
    probabilities: ArrayLike,
    *,
    classes: Sequence[object],
    budget: Budget,
    groups: ArrayLike | None = None,
    ledger: Ledger | None = None,
    bins: Sequence[float] | None = None,
    least_probability: float = LEAST_PROBABILITY,
    confidence: float = 0.95,
    seed: Any = None,
) -> ClassifierQuality:
    """Measure how good predicted probabilities are on private rows that the model was not trained on.

    `probabilities` has a column for each of `classes`, or, of two classes, the probabilities of the second. `groups` says which
    person a row belongs to, for a budget with `unit="person"`: then each person counts once, as the mean of their rows. `bins`
    are public ends of bins of the second class's probability, between 0 and 1, among them 0.5. By default there are 4, 8 or 16
    bins with about as many units each, by a rule of the number of units and the noise.

    **Guarantee** `HeldOutSums`: the histogram true class × bin of the probability (several classes: × predicted class), with one
    more row of cells for classes that the model does not know, and the sum of log losses, of probabilities no smaller than
    `least_probability`, in units of the largest. Add-remove bound 1.5 in l1, √1.25 in l2, of a row or of a person. Before it,
    where there are two classes and no `bins`, a histogram of the probabilities alone on public ends: bound 1, with `LOOSER`
    times the noise multiplier. The bins are computed from its noisy counts. Both are paid together, from one budget. Laplace or
    Gaussian noise, whichever has the smaller deviation at this budget; without δ Laplace. The number of rows, or of persons, is
    public, and so are the classes and the model. No error depends on a row.

    The log loss is a sum of its own and not read off the histogram, because a bin's rows have different losses.

    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(size=20_000)
    >>> truth = rng.uniform(size=20_000) < scores
    >>> quality = evaluate_classifier(truth, scores, classes=(False, True), budget=Budget(1.0), seed=0)
    >>> print(quality.accuracy, quality.auc)
    0.7532 (0.747 to 0.7595) 0.8341 (0.8285 to 0.84)
    """
    names = tuple(map(str, classes))
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"classes are {', '.join(names) or 'none'}: a classifier has at least two, each once.")
    places = _places(truth, classes)
    scores = _scores(probabilities, len(names), len(places))
    if not 0 < least_probability < 1 / len(names):
        raise InputError(f"least_probability is {least_probability}, but it lies between 0 and 1/{len(names)}.")
    _check_confidence(confidence)
    given = None if bins is None else _checked_bins(bins)
    persons, size = _persons(groups, len(places), budget)
    session = Session(budget, size, ledger=ledger, seed=seed)
    ranked = len(names) == 2 and given is None
    mechanism = _mechanism(session, values=1, ranked=ranked, cells=True)
    unit = each_row() if persons is None else each_person()
    check_unit(budget, HeldOutSums(1, 1, mechanism, unit))
    columns = len(names)
    if len(names) == 2:
        deviation = HeldOutSums(1, 1, mechanism, unit).deviation
        asked = next((most for most in BINS if 8 * most * deviation**2 <= size), BINS[-1])
        columns = asked + 1 if given is None else len(given) + 1
    query = HeldOutSums((len(names) + 1) * columns, 1, mechanism, unit)
    _check_size(size, math.sqrt(columns) * query.deviation)
    edges = given or ()
    if ranked:
        ranking = HeldOutSums(len(ENDS) + 1, 0, type(mechanism)(LOOSER * mechanism.noise_multiplier), unit)
        pay([ranking, query], session.spending)
        found = ranking.answer(np.searchsorted(ENDS, scores[:, 1]), np.zeros((len(places), 0)), persons, session.rng)
        edges = _even_bins(found, asked)
        columns = len(edges) + 1
        query = replace(query, cells=(len(names) + 1) * columns)
    else:
        pay([query], session.spending)
    predicted = np.searchsorted(edges, scores[:, 1], side="left") if len(names) == 2 else scores.argmax(axis=1)
    known = places >= 0
    votes = np.where(known, places, len(names)) * columns + predicted
    own = np.where(known, scores[np.arange(len(places)), np.maximum(places, 0)], 0.0)
    losses = np.log(np.maximum(own, least_probability)) / math.log(least_probability)
    noisy = query.answer(votes, losses[:, None], persons, session.rng)
    public = [
        f"the number of {'rows' if persons is None else 'persons'}",
        f"the {len(names)} classes; rows of another class count as wrong",
        f"probabilities below {least_probability:g} count as {least_probability:g} in the log loss",
        *([f"the {columns} bins of probabilities, with ends {_listed(given)}"] if given else []),
    ]
    paid = [f"the ends of {columns} bins of probabilities, with about as many units in each: {_listed(edges)}"] if ranked else []
    privacy = _privacy(session, "accuracy, confusion matrix and log loss, and what follows from the same counts", public, paid)
    return _classifier(noisy, names, edges, least_probability, confidence, privacy)


def _even_bins(ranking: NoisySums, bins: int) -> tuple[float, ...]:
    """Ends of at most so many bins, and 0.5, with about as many units in each: quantiles of noisy counts between public ends."""
    counts, cells = ranking.counts, len(ranking.counts)
    share = (ranking.size - counts.sum()) / cells  # the number of units is public: what noise added is taken away again
    below = np.maximum.accumulate(np.cumsum(counts + share)[:-1])
    places = np.searchsorted(below, ranking.size * np.arange(1, bins) / bins).clip(max=len(ENDS) - 1)
    return tuple(sorted({0.5, *(ENDS[place] for place in places.tolist())}))


def _listed(edges: Sequence[float]) -> str:
    return ", ".join(f"{edge:g}" for edge in edges)


def _classifier(
    noisy: NoisySums,
    names: tuple[str, ...],
    edges: tuple[float, ...],
    least_probability: float,
    confidence: float,
    privacy: Privacy,
) -> ClassifierQuality:
    """What follows from noisy counts: no row is seen any more."""
    noise, size = Noise(noisy.deviation, noisy.kurtosis, confidence), noisy.size
    counts = noisy.counts.reshape(len(names) + 1, -1)
    middle = edges.index(0.5) + 1 if edges else 0
    called = [counts[:, :middle], counts[:, middle:]] if edges else [counts[:, [place]] for place in range(len(names))]
    right = np.concatenate([called[place][place] for place in range(len(names))])
    most = max(range(len(names)), key=lambda place: float(counts[place].sum()))
    largest = -math.log(least_probability)
    loss = mean_of_unit_values(
        float(noisy.sums[0]), size, noise, _loss_variance(counts, edges, noisy, largest) if edges else None
    )
    return ClassifierQuality(
        classes=names,
        size=size,
        confidence=confidence,
        accuracy=share_of_all(right, size, noise),
        majority=share_of_all(counts[most], size, noise),
        log_loss=Estimate(largest * loss.value, largest * loss.low, largest * loss.high),
        confusion=tuple(tuple(float(block[row].sum()) for block in called) for row in range(len(counts))),
        count_deviation=tuple(noisy.deviation * math.sqrt(block.shape[1]) for block in called),
        auc=area_under_roc(counts[0], counts[1], noise) if edges else None,
        calibration=_bins(counts, edges, noise) if edges else (),
        roc=_roc(counts, edges, noise) if edges else (),
        privacy=privacy,
    )


def _loss_variance(counts: NDArray[Any], edges: tuple[float, ...], noisy: NoisySums, largest: float) -> float:
    """An upper bound on the variance of loss/largest: in a bin no loss exceeds that at its worse end; one deviation is added."""
    low, high = np.array([0.0, *edges]), np.array([*edges, 1.0])
    with np.errstate(divide="ignore"):
        worst = np.minimum(1.0, np.stack([-np.log(1 - high), -np.log(low), np.full(len(low), np.inf)]) / largest)
    second = float((counts * worst**2).sum()) / noisy.size + noisy.deviation * math.sqrt((worst**4).sum()) / noisy.size
    mean = max(0.0, (float(noisy.sums[0]) - noisy.deviation) / noisy.size)
    return max(second - mean**2, 1 / noisy.size)


def _bins(counts: NDArray[Any], edges: tuple[float, ...], noise: Noise) -> tuple[Bin, ...]:
    ends = (0.0, *edges, 1.0)
    return tuple(
        Bin(
            ends[place],
            ends[place + 1],
            float(counts[:2, place].sum()),
            share_of_some(counts[1, [place]], counts[0, [place]], noise),
        )
        for place in range(len(edges) + 1)
    )


def _roc(counts: NDArray[Any], edges: tuple[float, ...], noise: Noise) -> tuple[RocPoint, ...]:
    return tuple(
        RocPoint(edge, *(share_of_some(counts[row, place + 1 :], counts[row, : place + 1], noise) for row in (0, 1)))
        for place, edge in enumerate(edges)
    )


# ---------------------------------------------------------------- regression


def evaluate_regressor(
    truth: ArrayLike,
    predictions: ArrayLike,
    *,
    target_bounds: tuple[float, float],
    budget: Budget,
    groups: ArrayLike | None = None,
    ledger: Ledger | None = None,
    error_bound: float | None = None,
    confidence: float = 0.95,
    seed: Any = None,
) -> RegressorQuality:
    """Measure how good predicted numbers are on private rows that the model was not trained on.

    True values and predictions are set to the ends of the public `target_bounds` if they lie outside; errors larger than
    `error_bound` (by default the width of the range) count as that large. A smaller bound means less noise. `groups` is as for
    `evaluate_classifier`.

    **Guarantee** One release (`HeldOutSums`) of five sums, each of numbers in [0, 1]: |e|, e² and e⁴ of the error e in units of
    its bound, and v and v² of the target v in units of its range. Add-remove bound 2.5 in l1, √5/2 in l2, of a row or of a
    person. Noise and what is public are as for `evaluate_classifier`. The fourth moment is for the interval of the RMSE; that of
    R² uses a bound in its place, and is too wide rather than too narrow.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.uniform(0, 10, 20_000)
    >>> guess = truth + rng.normal(size=20_000)
    >>> quality = evaluate_regressor(truth, guess, target_bounds=(0, 10), budget=Budget(1.0), seed=0)
    >>> print(quality.rmse)
    0.9831 (0.9487 to 1.025)
    """
    low, high = map(float, target_bounds)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"target_bounds are ({low:g}, {high:g}), but they are two finite numbers, the smaller first.")
    width = high - low
    bound = width if error_bound is None else float(error_bound)
    if not 0 < bound <= width:
        raise InputError(f"error_bound is {bound:g}, but it is a number > 0, and at most the width of the range, {width:g}.")
    _check_confidence(confidence)
    true, guessed = _column(truth, "truth"), _column(predictions, "predictions")
    if len(true) != len(guessed):
        raise InputError(f"there are {len(true)} true values, but {len(guessed)} predictions.")
    persons, size = _persons(groups, len(true), budget)
    session = Session(budget, size, ledger=ledger, seed=seed)
    query = HeldOutSums(0, 5, _mechanism(session, cells=False, values=5), each_row() if persons is None else each_person())
    check_unit(budget, query)
    _check_size(size, query.deviation)
    target = (np.clip(true, low, high) - low) / width
    error = np.minimum(np.abs(np.clip(guessed, low, high) - np.clip(true, low, high)) / bound, 1.0)
    values = np.stack([error, error**2, error**4, target, target**2], axis=1)
    noisy = query.measure(np.zeros(len(true), np.int64), values, persons, spending=session.spending, rng=session.rng)
    public = [
        f"the number of {'rows' if persons is None else 'persons'}",
        f"the range of the target, {low:g} to {high:g}; what lies outside counts as its ends",
        f"errors above {bound:g} count as {bound:g}",
    ]
    privacy = _privacy(session, "RMSE, MAE and R², from five noisy moments", public)
    return _regressor(noisy, (low, high), bound, confidence, privacy)


def _regressor(
    noisy: NoisySums, target_bounds: tuple[float, float], bound: float, confidence: float, privacy: Privacy
) -> RegressorQuality:
    """What follows from noisy moments: no row is seen any more. One deviation of the noise is added to variances."""
    noise, size = Noise(noisy.deviation, noisy.kurtosis, confidence), noisy.size
    first, second, fourth, mean, square = (float(total) / size for total in noisy.sums)
    doubt, width = noisy.deviation / size, target_bounds[1] - target_bounds[0]
    mae = mean_of_unit_values(first * size, size, noise, second + doubt - max(first - doubt, 0.0) ** 2)
    squared_spread = max(fourth + doubt - max(second - doubt, 0.0) ** 2, 0.0)
    squared = mean_of_unit_values(second * size, size, noise, squared_spread)
    centre = min(max(mean, 0.0), 1.0)
    variance = square - mean**2 + doubt**2  # the noise of `mean` adds doubt² to its square
    largest = max(centre, 1 - centre) ** 2
    likely = min(max(variance + 3 * doubt, 0.0), largest / 2)
    target_spread = likely * (largest - likely)  # Bhatia, Davis
    scale = (bound / width) ** 2
    ratio = ratio_of_variances(
        scale * second * size,
        variance * size,
        lambda r: size * (scale * math.sqrt(squared_spread) + r * math.sqrt(target_spread)) ** 2,
        (scale, 2 * centre, 1.0),
        noise,
    )
    reach = noise.quantile(1.0, 1, 0) * math.sqrt(target_spread / size + doubt**2 * (1 + 4 * centre**2)) * 1.1
    return RegressorQuality(
        target_bounds=target_bounds,
        size=size,
        confidence=confidence,
        rmse=_root(squared, bound),
        mae=Estimate(bound * mae.value, bound * mae.low, bound * mae.high),
        r2=Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low),
        target_deviation=_root(Estimate(variance, variance - reach, variance + reach), width),
        privacy=privacy,
    )


def _root(square: Estimate, unit: float) -> Estimate:
    return Estimate(*(unit * math.sqrt(max(number, 0.0)) for number in (square.value, square.low, square.high)))


# ---------------------------------------------------------------- both


def _mechanism(session: Session, *, cells: bool, values: int, ranked: bool = False) -> laplace | gaussian:
    """The kind of noise with the smaller deviation within the budget; a public rule. With `ranked`, bins are chosen beside it."""

    def noise(kind: Callable[[float], DpEvent]) -> float:
        return session.noise_for(lambda z: compose([kind(LOOSER * z), kind(z)]) if ranked else kind(z))

    pure = laplace(noise(LaplaceDpEvent))
    if not session.budget.delta:
        return pure
    normal = gaussian(noise(GaussianDpEvent))
    deviations = [HeldOutSums(int(cells), values, kind).deviation for kind in (pure, normal)]
    return pure if deviations[0] <= deviations[1] else normal


def _privacy(session: Session, released: str, public: Sequence[str], paid: Sequence[str] = ()) -> Privacy:
    statement = session.state(
        released,
        settings={"confidence intervals": "sampling error and noise"},
        assumed_public=[*public, "the model; if these rows took part in its training, the budgets of both add up"],
        assumed=["the prediction for a row depends on that row and on the model only"],
        paid_for=paid,
    )
    return Privacy(statement, session.ledger)


def _places(truth: ArrayLike, classes: Sequence[object]) -> Places:
    """The place of each true class among the classes, or −1."""
    values = np.asarray(truth)
    if values.ndim != 1 or not len(values):
        raise InputError(f"truth has the shape {values.shape}, but it is one class for each row, of at least one row.")
    found = np.full(len(values), -1, np.int64)
    for place, name in enumerate(classes):
        found[np.asarray(values == name, bool)] = place
    return found


def _scores(probabilities: ArrayLike, classes: int, rows: int) -> NDArray[Any]:
    scores = np.asarray(probabilities, float)
    if scores.ndim == 1 and classes == 2:
        scores = np.stack([1 - scores, scores], axis=1)
    if scores.shape != (rows, classes):
        raise InputError(
            f"probabilities have the shape {np.shape(probabilities)}, but there are {rows} rows and {classes} classes."
        )
    return np.clip(np.nan_to_num(scores, nan=0.0), 0.0, 1.0)


def _column(values: ArrayLike, name: str) -> NDArray[Any]:
    try:
        column = np.asarray(values, float)
    except (TypeError, ValueError):  # its message quotes a value
        raise InputError(f"{name} holds something that is not a number.") from None
    if column.ndim != 1 or not len(column):
        raise InputError(f"{name} has the shape {column.shape}, but it is one number for each row, of at least one row.")
    return column


def _persons(groups: ArrayLike | None, rows: int, budget: Budget) -> tuple[Places | None, int]:
    """Number the persons, and count the units. The budget has to promise what is counted."""
    if not isinstance(budget, Budget):
        raise InputError(f"budget is {budget!r}, but it is a Budget, such as Budget(0.5).")
    check_unit(budget, HeldOutSums(0, 0, laplace(1.0), each_row() if groups is None else each_person()))
    if groups is None:
        return None, rows
    ids = np.asarray(groups)
    if ids.shape != (rows,):
        raise InputError(f"groups has the shape {ids.shape}, but it says whose row it is, for each of {rows} rows.")
    persons = np.unique(ids.astype(str) if ids.dtype == object else ids, return_inverse=True)[1].astype(np.int64)
    return persons, int(persons.max()) + 1


def _checked_bins(bins: Sequence[float]) -> tuple[float, ...]:
    ends = tuple(map(float, bins))
    if 0.5 not in ends or list(ends) != sorted(set(ends)) or ends[0] <= 0 or ends[-1] >= 1:
        raise InputError("bins are ends between 0 and 1, in order, among them 0.5, such as (0.2, 0.5, 0.8).")
    return ends


def _check_confidence(confidence: float) -> None:
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence is {confidence}, but it lies between 0.5 and 1, such as 0.95.")


def check_size(size: int, budget: Budget, classes: int) -> None:
    """Refuse an evaluation of so many units, and classes (0: of numbers), that is certain to say nothing. No rows are read."""
    values = 1 if classes else 5
    query = HeldOutSums(
        classes, values, _mechanism(Session(budget, size), cells=bool(classes), values=values, ranked=classes == 2)
    )
    columns = BINS[-1] + 1 if classes == 2 else max(classes, 1)
    _check_size(size, math.sqrt(columns) * query.deviation)


def _check_size(size: int, deviation: float) -> None:
    """Refuse what is certain to say nothing; the number of units is public."""
    if 2 * deviation > WIDEST * size:
        raise InputError(
            f"{size} are too few to say anything at this budget: about {math.ceil(4 * deviation / WIDEST)} would give a rough "
            "idea. Nothing was spent."
        )


def _json(quality: "ClassifierQuality | RegressorQuality") -> dict[str, Any]:
    numbers: Mapping[str, Estimate] = quality.numbers
    return {
        "size": quality.size,
        "confidence": quality.confidence,
        "numbers": {name: number.to_json() for name, number in numbers.items()},
        "statement": quality.privacy.statement.to_json(),
    }


def _numbers(quality: "ClassifierQuality | RegressorQuality") -> list[str]:
    head = f"{'':28}{'estimate':>10}   {100 * quality.confidence:g} % interval"
    rows = [
        f"{name:28}{_digits(number.value):>10}   {_digits(number.low)} to {_digits(number.high)}"
        for name, number in quality.numbers.items()
    ]
    return [head, *rows]


def _short(name: str) -> str:
    """A class's name, for a line of a table."""
    name = printable(name)
    return name if len(name) <= SHORT else name[: SHORT - 1] + "…"


def _digits(number: float) -> str:
    if math.isinf(number):
        return "-∞" if number < 0 else "∞"
    return f"{number:.3f}" if abs(number) < 10 else f"{number:.4g}" if abs(number) < 1e4 else f"{number:.0f}"


def _confusion(quality: ClassifierQuality) -> list[str]:
    """A row for each true class, a column for each predicted one; of many classes, only those that are often confused."""
    names = list(map(_short, (*quality.classes, OTHER)))
    sure = 3 * max(quality.count_deviation)
    count = len(quality.classes)
    shown = [row for row in range(count + 1) if row < count or any(number > sure for number in quality.confusion[row])]
    if count > 4:
        pairs = sorted(((quality.confusion[i][j], i, j) for i in shown for j in range(count) if i != j), reverse=True)[:5]
        return [
            f"Most confused (counts, noise ± {sure / 3:.3g}):",
            *(f"  {names[i]} called {names[j]}: {number:.0f}" for number, i, j in pairs if number > sure),
        ]
    width = max(10, *(len(name) + 2 for name in names[:count]))
    return [
        f"Confusion matrix (noise ± {max(quality.count_deviation):.3g})",
        f"{'true class':{SHORT + 2}}" + "".join(f"{name:>{width}}" for name in names[:count]) + "   (called)",
        *(f"{names[row]:{SHORT + 2}}" + "".join(f"{number:{width}.0f}" for number in quality.confusion[row]) for row in shown),
    ]


def _calibration(quality: ClassifierQuality) -> list[str]:
    if not quality.calibration:
        return []
    lines = [
        "",
        f"Calibration: probability of {_short(quality.classes[1])}, and the share that is",
        f"{'predicted':14}{'rows':>8}{'share':>8}   interval",
    ]
    for one in quality.calibration:
        share = f"{one.share.value:8.3f}   {one.share.low:.3f} to {one.share.high:.3f}"
        lines.append(f"{f'{one.low:g} to {one.high:g}':14}{max(one.rows, 0):8.0f}{share}")
    return [*lines, f"The AUC is that of these {len(quality.calibration)} bins: rows of the same bin count as ties."]
