"""Searches: the best of several settings, chosen privately, with one price and one statement for all of it.

Rows are cut in two, at random and by no value: a fifth is for scores only. Each trial (`privopt.measure.selection`) trains one
candidate on the other rows and measures its mean loss on the fifth, with noise. Both are paid within the trial: a fifth of its
squared budget is for the score. A row is in one of the two parts, and pays for one of the two only; that it is charged for both
costs 12 % more noise, and needs no argument. The best trial's model is released as it is: training it again on all rows would
have to be paid for again.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax

from privopt.errors import CompositionError, Diverged, InputError, PrivoptWarning
from privopt.measure.evaluations import HeldOutSums
from privopt.measure.mechanisms import gaussian
from privopt.measure.randomness import Rng, key
from privopt.measure.samplers import held_out_rows
from privopt.measure.selection import best_of_geometric
from privopt.methods.problem import LossFacts
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Loss
from privopt.perexample.persons import Persons
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, atoms
from privopt.privacy.ledger import Ledger
from privopt.training.linear import Trained, loss_facts, planned_recipe, train_linear
from privopt.training.scaling import DrawnRows, TrainingRows
from privopt.training.session import Session
from privopt.training.settings import Settings

SCORE_SHARE = 0.2  # of the squared budget of a trial measures its score
TRIALS = 2  # for each candidate, on average
HELD_OUT = 0.2  # share of the rows that is for scores
LARGEST_LOSS = 3.0  # log loss of a row, in a score: larger ones count as this; of a regression, half the target's range
MAY_DIFFER = ("method", "numeric", "clip_bound", "rounds", "learning_rate", "alpha", "penalty", "fit_intercept", "options")


@dataclass(frozen=True)
class Search:
    """What is tried: settings that replace those of a fit, as many trials on average, and the share of rows for scores."""

    candidates: tuple[Mapping[str, Any], ...]
    trials: float | None = None
    holdout: float = HELD_OUT

    def __post_init__(self) -> None:
        if len(self.candidates) < 2:
            found = "one candidate" if self.candidates else "no candidate"
            raise InputError(f"a search has {found}; it chooses from two or more.")
        for name in {name for one in self.candidates for name in one}:
            if name not in MAY_DIFFER:
                raise InputError(
                    f"a search tries {name!r}, but candidates may differ in {', '.join(MAY_DIFFER)} only: the rest is the "
                    "same for all, and the budget is that of the whole search."
                )
        if self.trials is not None and not self.trials > 1:
            raise InputError(f"trials is {self.trials}, but it is the mean number of trials, and > 1.")
        if not 0 < self.holdout < 1:
            raise InputError(f"holdout is {self.holdout:g}, but it is a share of the rows, between 0 and 1, such as 0.2.")

    @property
    def mean(self) -> float:
        """The mean number of trials."""
        return float(TRIALS * len(self.candidates) if self.trials is None else self.trials)

    def settings(self, base: Settings) -> list[Settings]:
        """The settings of each candidate."""
        return [replace(base, **{name: _plain(value) for name, value in one.items()}) for one in self.candidates]

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {"candidates": [dict(one) for one in self.candidates], "trials": self.trials, "holdout": self.holdout}

    @classmethod
    def from_json(cls, value: Any) -> "Search":
        """What `to_json` wrote."""
        match value:
            case {"candidates": [*candidates], "trials": int() | float() | None as trials, "holdout": float(holdout)} if all(
                isinstance(one, dict) for one in candidates
            ):
                return cls(tuple(candidates), trials, holdout)
        raise InputError("run.json is damaged: what it says about the search cannot be read. Start a new run.")

    def describe_price(self, budget: Budget) -> str:
        """What searching costs, in noise; of public numbers only."""
        single = calibrate(GaussianDpEvent, budget)
        each = calibrate(lambda z: best_of_geometric(self.mean, z).event, budget) / math.sqrt(1 - SCORE_SHARE)
        missed = _missed(len(self.candidates), self.mean)
        return (
            f"{len(self.candidates)} candidates, {self.mean:.4g} trials on average: each is trained with {each / single:.2f} × "
            f"the noise of a single training with {budget}. The best candidate is tried with probability {1 - missed:.0%}."
        )


@dataclass(frozen=True)
class Found:
    """The best trial: which candidate, its noisy score (minus the mean loss on held-out rows), and its model."""

    candidate: int
    score: float
    trained: Trained = field(repr=False)


def check_search(
    search: Search, base: Settings, loss: LossFacts, *, size: int, columns: int, budget: Budget, public: bool, unit: Any
) -> None:
    """Refuse a search that cannot be made or priced, before anything is measured or paid."""
    if budget.delta == 0:
        raise InputError("delta is 0, but a search is priced by Rényi divergences of Gaussian noise, which need delta > 0.")
    if not 1 <= round(search.holdout * size) < size:
        raise InputError(f"holdout is {search.holdout:g}, which of {size} rows or persons leaves one part empty.")
    for named, settings in zip(search.candidates, search.settings(base), strict=True):
        planned = planned_recipe(settings, loss, size=size, columns=columns, budget=budget, public=public, unit=unit)
        if not all(isinstance(part, GaussianDpEvent) for part, _ in atoms(planned.planned_event())):
            raise CompositionError(
                f"a candidate of the search ({_words(named)}) does not use Gaussian noise on all rows, and trials of several "
                "kinds have no common price. Leave batch_size out, and search among dp-adam, dp-rmsprop, dp-gd and the like."
            )


def search_linear(
    rows: TrainingRows, loss: Callable[[float], Loss], base: Settings, session: Session, *, search: Search
) -> Trained:
    """The private linear model of the best candidate, with a statement about the whole search.

    **Guarantee** That of `best_of_geometric`, paid for before the first trial. Surveys of a table's columns come before, once for
    all trials; scales are surveyed in each trial, within its price. The score of a trial is one Gaussian answer (`HeldOutSums`):
    the mean loss of the units set aside, each in [0, 1].
    """
    facts, public = loss_facts(loss(1.0)), rows.public is not None
    columns = int(rows.matrix.shape[1])
    check_search(search, base, facts, size=rows.size, columns=columns, budget=session.budget, public=public, unit=rows.unit)
    if rows.regression and rows.target_bounds is None:
        raise InputError("a search scores errors in units of the target's range, which has to be public: declare target_bounds.")
    noise = session.noise_for(lambda z: best_of_geometric(search.mean, z).event)
    selection, training_noise = best_of_geometric(search.mean, noise), noise / math.sqrt(1 - SCORE_SHARE)
    within = replace(
        session.budget,
        epsilon=epsilon(GaussianDpEvent(training_noise), session.budget.delta, session.budget.neighbours),
    )
    part, held_out = _cut(rows, search.holdout, key(session.rng))
    query = HeldOutSums(0, 1, gaussian(noise / math.sqrt(SCORE_SHARE)), rows.unit)
    settings = search.settings(base)

    def trial(candidate: int, spent: Ledger, rng: Rng) -> tuple[float, Found | None]:
        inner = Session(within, part.size, ledger=spent, seed=rng, accountant="auto", surveys=True)
        try:
            trained = train_linear(part, loss, settings[candidate], inner)
        except Diverged:  # that it did is for the selection to tell, if this is the best trial
            return -math.inf, None
        values, persons = _losses(trained, held_out)
        sums = query.measure(np.zeros(0, dtype=np.int64), values[:, None], persons, spending=spent.run(), rng=rng)
        score = -float(sums.sums[0]) / sums.size * _largest_loss(rows)
        return score, Found(candidate, score, trained)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)  # of trials, whose number is secret
        chosen, _, found = selection.release(len(settings), trial, spending=session.spending, rng=session.rng)
    if found is None:
        raise Diverged(
            "the best trial of the search diverged, as all others did: use smaller learning rates, or fewer candidates."
        )
    return _state(found, search, settings[chosen], rows, session)


def _state(found: Found, search: Search, settings: Settings, rows: TrainingRows, session: Session) -> Trained:
    """The best trial's model, with the statement of the search in the place of its own."""
    own, unit = found.trained.statement, "rows" if rows.persons is None else "persons"
    statement = session.state(
        "the coefficients of the best of several linear models, the settings and scales below, and its noisy score",
        assumed_public=[
            f"the {len(search.candidates)} candidates, and {session.size} {unit}, of which {search.holdout:.1%} were for scores",
            *own.assumed_public,
        ],
        paid_for=[*own.paid_for, f"the choice among {len(search.candidates)} candidates, by a noisy score of each trial"],
        public_data=own.public_data,
        settings={
            **own.settings,
            "candidate": found.candidate + 1,
            "chosen": _words(search.candidates[found.candidate]),
            "score": found.score,
        },
    )
    secret = "how long the search took (see the times of files): it tells how many trials there were, which has to stay secret"
    return replace(found.trained, statement=replace(statement, beside=(secret,)))


def _missed(candidates: int, mean: float) -> float:
    """The probability that a candidate is in no trial: E[(1 − 1/k)^K] for a geometric K.

    >>> round(_missed(2, 2.0), 3)
    0.333
    """
    stop, other = 1 / mean, 1 - 1 / candidates
    return other * stop / (1 - (1 - stop) * other)


# ---------------------------------------------------------------- rows of a trial, and its score


def _cut(rows: TrainingRows, share: float, cut: int) -> tuple[TrainingRows, TrainingRows]:
    """Units to train on and units to score on; which is which depends on their number and a key alone."""
    trained, held_out = held_out_rows(rows.size, share, cut)
    return _take_rows(rows, trained), _take_rows(rows, held_out)


def _take_rows(rows: TrainingRows, units: Vector) -> TrainingRows:
    if rows.persons is None:
        return replace(rows, matrix=rows.matrix[units], targets=rows.targets[units])
    drawn, chosen = rows.persons.trained, np.zeros(rows.size, dtype=bool)
    chosen[units] = True
    stay = chosen[drawn.person_of]
    persons = Persons(drawn.rows[stay], drawn.counts[units])
    return replace(rows, persons=DrawnRows(persons, rows.persons.surveyed[units], rows.persons.most))


def _losses(trained: Trained, rows: TrainingRows) -> tuple[Vector, Vector | None]:
    """The loss of each held-out row, in [0, 1]; and whose row it is. A row without a known class has the largest."""
    persons = None if rows.persons is None else rows.persons.trained
    matrix, targets = (rows.matrix, rows.targets) if persons is None else (rows.matrix[persons.rows], rows.targets[persons.rows])
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        features = matrix if trained.columns is None else trained.columns.transform(matrix)
        scores = np.asarray(features @ trained.slopes.T) + trained.intercepts
        if rows.regression:
            losses = np.abs(scores[:, 0] - targets)
        else:
            places = np.nan_to_num(targets).astype(int)
            binary = scores.shape[1] == 1
            logs = log_expit(np.hstack([-scores, scores])) if binary else log_softmax(scores, axis=1)
            losses = -logs[np.arange(len(places)), places]
        losses = losses / _largest_loss(rows)
    finite = np.isfinite(losses) & ~np.isnan(targets)
    return np.where(finite, np.clip(losses, 0.0, 1.0), 1.0), None if persons is None else persons.person_of


def _largest_loss(rows: TrainingRows) -> float:
    """The largest loss of a row that a score knows: of a log loss, or of an error in units of the target."""
    if rows.regression and rows.target_bounds is not None:
        return (rows.target_bounds[1] - rows.target_bounds[0]) / 2
    return LARGEST_LOSS


def _plain(value: Any) -> Any:
    """A value of a grid, without NumPy's types."""
    return value.item() if isinstance(value, np.generic) else value


def _words(named: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in named.items()) or "no change"
