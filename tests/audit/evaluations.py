"""Games against evaluations: the noisy counts and sums of private metrics, with and without a canary among the held-out rows."""

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from privopt.errors import PrivoptWarning
from privopt.measure.evaluations import HeldOutSums
from privopt.measure.randomness import generator
from privopt.metrics import evaluate_classifier, evaluate_regressor
from privopt.perexample.grads import Vector
from privopt.privacy.budget import Budget
from privopt.privacy.statement import Statement
from tests.audit.auditing import Game
from tests.audit.transcripts import log_ratio

DELTA, OTHERS = 0.1, 40
_rng = np.random.default_rng(8)
TRUTH, PROBABILITIES = _rng.choice(["no", "yes"], OTHERS), _rng.uniform(size=OTHERS)
NUMBERS, GUESSES = _rng.uniform(size=OTHERS), _rng.uniform(size=OTHERS)

Asked = tuple[list[tuple[HeldOutSums, tuple[Any, ...]]], Statement]  # what an evaluation asks, of which rows, and its claim
BINS = (0.2, 0.5, 0.8)


def _asked(evaluate: Callable[[], Any]) -> Asked:
    """What one evaluation asks of its rows; of all bins that the first answer may choose, these."""
    noted: list[tuple[HeldOutSums, tuple[Any, ...]]] = []
    honest = HeldOutSums.answer

    def watched(self: HeldOutSums, *given: Any) -> Any:
        noted.append((self, given[:-1]))  # the last is the generator
        return honest(self, *given)

    bins = mock.patch("privopt.metrics._even_bins", return_value=BINS)
    with mock.patch.object(HeldOutSums, "answer", watched), bins, warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)  # of a large δ
        quality = evaluate()
    return noted, quality.privacy.statement


def _game(present: Callable[[], Any], absent: Callable[[], Any], *, tight: bool = True) -> Game:
    """Replays of an evaluation, weighed by the likelihood of its noisy sums. Sums are centred: the number of units is public."""
    (others, _), (asked, statement) = _asked(absent), _asked(present)
    assert [query for query, _ in others] == [query for query, _ in asked]  # the same questions, whoever is there

    def play(canary: bool, count: int) -> Vector:
        rng, scores = generator(11 + canary), np.zeros(count)
        for (query, without), (_, rows) in zip(others, asked, strict=True):
            votes, values, persons = rows if canary else without
            sums = query.total(*rows), query.total(*without)
            (one, _), (other, _) = sums
            with mock.patch.object(HeldOutSums, "total", lambda *_, found=sums[not canary]: found):  # the same in each replay
                noisy = [query.answer(votes, values, persons, rng) for _ in range(count)]
            answers = np.array([np.concatenate([each.counts, each.sums - each.size / 2]) for each in noisy])
            scale = query.mechanism.noise_multiplier * query.bound
            scores += log_ratio(query.mechanism, scale, 1.0, answers, one, other)
        return scores

    return Game(statement.epsilon, statement.budget.delta, play, tight)


def _classified(budget: Budget, canary: tuple[str, float] | None) -> Callable[[], Any]:
    """The others, and a canary with a class and a probability."""
    truth = TRUTH if canary is None else np.append(TRUTH, canary[0])
    probabilities = PROBABILITIES if canary is None else np.append(PROBABILITIES, canary[1])
    return lambda: evaluate_classifier(truth, probabilities, classes=("no", "yes"), budget=budget, seed=0)


def classifier() -> Game:
    """A row that is as wrong as can be; Gaussian noise."""
    budget = Budget(2.0, DELTA)
    return _game(_classified(budget, ("yes", 0.0)), _classified(budget, None))


def pure_classifier() -> Game:
    """Laplace noise."""
    budget = Budget(2.0)
    return _game(_classified(budget, ("yes", 0.0)), _classified(budget, None), tight=False)


def replaced() -> Game:
    """A row that is as wrong as can be, or one that is right."""
    budget = Budget(2.0, DELTA, "replace-one")
    return _game(_classified(budget, ("yes", 0.0)), _classified(budget, ("yes", 1.0)), tight=False)


def persons() -> Game:
    """A person with five rows, all wrong."""

    def evaluate(rows: int) -> Callable[[], Any]:
        return lambda: evaluate_classifier(
            np.append(TRUTH, ["yes"] * rows),
            np.append(PROBABILITIES, [0.0] * rows),
            classes=("no", "yes"),
            budget=Budget(2.0, DELTA, unit="person"),
            groups=np.append(np.arange(OTHERS), [OTHERS] * rows),
            seed=0,
        )

    return _game(evaluate(5), evaluate(0))


def regressor() -> Game:
    """A prediction at the wrong end of the range."""

    def evaluate(*canary: float) -> Callable[[], Any]:
        truth, guesses = np.append(NUMBERS, canary), np.append(GUESSES, [0.0 for _ in canary])
        return lambda: evaluate_regressor(truth, guesses, target_bounds=(0, 1), budget=Budget(2.0, DELTA), seed=0)

    return _game(evaluate(1.0), evaluate())
