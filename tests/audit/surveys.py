"""Games against surveys: their noisy histograms, or, of categories, the names that leave."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from privopt.measure import surveys
from privopt.measure.mechanisms import gaussian
from privopt.measure.randomness import Rng, generator
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Vector
from privopt.privacy.accountants import epsilon
from privopt.privacy.ledger import Ledger, Run
from tests.audit.auditing import Game
from tests.audit.transcripts import Repeated, log_ratio

DELTA, FAILURE = 0.1, 0.02
ONE, TWO = 0.66, 0.93  # noise multipliers with which one release, or two, cost about ε = 2
OTHERS = np.random.default_rng(4).uniform(1.0, 2.0, (19, 2))
CANARY = np.array([[1e6, -1e-6]])

Votes = Callable[[Any, bool], Vector]  # of what a survey asks: its answer without noise, with or without the canary


class Asked(NamedTuple):
    """What a survey asks, how far one example moves it, the noise multiplier, and the noisy answer."""

    oracle: Any
    bound: float
    noise_multiplier: float
    answer: Vector

    def weigh(self, answers: Vector, votes: Votes) -> Any:
        """How much likelier this answer is with the canary, or each of several, one a row."""
        scale, sides = self.noise_multiplier * self.bound, (votes(self.oracle, True), votes(self.oracle, False))
        return log_ratio(gaussian(1.0), scale, 1.0, answers * self.oracle.size, *sides)


@contextmanager
def _watching() -> Iterator[list[Asked]]:
    """Note what a survey asks."""
    noted: list[Asked] = []
    mean = surveys._mean

    def watched(oracle: Any, bound: float, noise_multiplier: float, spending: Run, rng: Rng) -> Vector:
        value = mean(oracle, bound, noise_multiplier, spending, rng)
        noted.append(Asked(oracle, bound, noise_multiplier, value))
        return value

    with mock.patch.object(surveys, "_mean", watched):
        yield noted


def _game(ask: Callable[[bool, Run, Rng], Any], votes: Votes, *, tight: bool = False) -> Game:
    """Replays of a survey, weighed by the likelihoods of its noisy answers.

    A survey that asks once is asked once: what it asked for is measured again and again, as one long vector.
    """

    def play(canary: bool, count: int) -> Vector:
        rng, scores = generator(7 + canary), np.zeros(count)
        for place in range(count):
            with _watching() as noted:
                ask(canary, Ledger().run(), rng)
            if len(noted) == 1:
                (asked,) = noted
                repeated = Repeated(asked.oracle, np.zeros(0), count)
                answers = surveys._mean(repeated, asked.bound, asked.noise_multiplier, Ledger().run(), rng)
                weighed: Vector = asked.weigh(answers.reshape(count, -1), votes)
                return weighed
            scores[place] = sum(asked.weigh(asked.answer, votes) for asked in noted)
        return scores

    return Game(_price(lambda spending: ask(True, spending, generator(0))), DELTA, play, tight)


def _price(ask: Callable[[Run], Any]) -> float:
    """What a survey pays, at our δ."""
    ledger = Ledger()
    ask(ledger.run())
    return epsilon(ledger.event, DELTA)


def _cast(oracle: Any, values: Vector) -> Vector:
    """The votes of these rows in the bins that a survey asks for."""
    total = np.zeros((oracle.columns, oracle._bins))
    for row in oracle._place(values):
        total[np.arange(oracle.columns), row] += 1
    return total.ravel()


def column_ranges() -> Game:
    """Two histograms; the second one's bins depend on the first one's answer."""

    def ask(canary: bool, spending: Run, rng: Rng) -> Any:
        rows = np.concatenate([CANARY, OTHERS]) if canary else OTHERS
        return surveys.column_ranges(lambda: iter([rows]), 20, 2, noise_multiplier=TWO, spending=spending, rng=rng)

    return _game(ask, lambda oracle, canary: _cast(oracle, np.concatenate([CANARY, OTHERS]) if canary else OTHERS))


def typical_norm() -> Game:
    """One histogram of lengths."""
    norms = np.concatenate([[1e6], OTHERS[:, 0]])

    def ask(canary: bool, spending: Run, rng: Rng) -> Any:
        return surveys.typical_norm(norms if canary else norms[1:], noise_multiplier=ONE, spending=spending, rng=rng)

    return _game(ask, lambda oracle, canary: _cast(oracle, (norms if canary else norms[1:])[:, None]))


def column_sizes() -> Game:
    """The sum of rows' absolute values, of which the canary's is cut to the bound."""
    return _sum_of_rows(surveys.column_sizes, np.abs)


def mean_row() -> Game:
    """The sum of rows, of which the canary is cut to the bound."""
    return _sum_of_rows(surveys.mean_row, np.asarray)


def _sum_of_rows(survey: Callable[..., Any], vectors: Callable[[Vector], Vector]) -> Game:
    bound = 3.0
    designs = [Design(np.concatenate([row, OTHERS]), Frame(intercept=0.0)) for row in (0 * CANARY, CANARY)]

    def ask(canary: bool, spending: Run, rng: Rng) -> Any:
        return survey(designs[canary], bound=bound, noise_multiplier=ONE, spending=spending, rng=rng)

    def votes(oracle: Any, canary: bool) -> Vector:
        rows = vectors(np.concatenate([CANARY, OTHERS]) if canary else OTHERS)
        return np.asarray((rows * np.minimum(1, bound / np.linalg.norm(rows, axis=1))[:, None]).sum(axis=0))

    return _game(ask, votes, tight=True)


def column_knots() -> Game:
    """One histogram between public ends."""
    low, high = np.array([0.0, -1.0]), np.array([4.0, 2.0])

    def ask(canary: bool, spending: Run, rng: Rng) -> Any:
        rows = np.concatenate([CANARY, OTHERS]) if canary else OTHERS
        return surveys.column_knots(
            lambda: iter([rows]), 20, low, high, knots=4, noise_multiplier=ONE, spending=spending, rng=rng
        )

    return _game(ask, lambda oracle, canary: _cast(oracle, np.concatenate([CANARY, OTHERS]) if canary else OTHERS), tight=True)


def mean_target() -> Game:
    """The sum of targets, of which the canary's is cut to length 1."""

    def ask(canary: bool, spending: Run, rng: Rng) -> Any:
        targets = np.concatenate([CANARY if canary else 0 * CANARY, 0.1 * OTHERS])
        return surveys.mean_target(targets, noise_multiplier=ONE, spending=spending, rng=rng)

    def votes(oracle: Any, canary: bool) -> Vector:
        return 0.1 * OTHERS.sum(axis=0) + canary * CANARY[0] / np.linalg.norm(CANARY)

    return _game(ask, votes, tight=True)


def _categories(own: str, other: int) -> Game:
    """Four columns in which `other` rows have the category "a", and the canary has its own; how often that is named."""
    columns = 4

    def ask(canary: bool, spending: Run, rng: Rng) -> list[list[str]]:
        column = np.array(([own] if canary else []) + ["a"] * other + ["b"])
        return surveys.categories([column] * columns, noise_multiplier=ONE, failure=FAILURE, spending=spending, rng=rng)

    def play(canary: bool, count: int) -> Vector:
        rng = generator(9 + canary)
        return np.array([sum(own in column for column in ask(canary, Ledger().run(), rng)) for _ in range(count)], dtype=float)

    return Game(_price(lambda spending: ask(True, spending, generator(0))), DELTA, play)


def common_category() -> Game:
    """A category that as many rows have as make it likely, and not certain, to be named."""
    return _categories("a", math.ceil(1 + 2 * ONE * 2.5))


def new_category() -> Game:
    """A category that nobody else has."""
    return _categories("z", 30)
