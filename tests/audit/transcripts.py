"""Transcripts: every answer of a run, scored by how much likelier it is with the canary than without.

A claim covers all answers of all rounds, so the adversary sees all of them, knows both data sets and everything public, and
weighs the answers by their likelihoods. No score of the released model can tell more. Only the stated distributions are used:
where code does not keep what it states, the score is still a score.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
from array_api_compat import array_namespace
from scipy import stats

from privopt.loop import run
from privopt.measure.line_search import LineSearch
from privopt.measure.measurement import Carry, Measurement, Measuring, Noisy, shared_noise
from privopt.measure.mechanisms import Mechanism, gamma_norm, gaussian, laplace
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import fixed_size, full_batch, poisson
from privopt.measure.solutions import stable_solution
from privopt.measure.sparse_vector import SparseVector
from privopt.measure.without_mechanism import unasked
from privopt.perexample.grads import Oracle, PerExampleGrads, Rows, Vector
from privopt.privacy.events import DpEvent
from privopt.recipe import Plan, Recipe
from privopt.state import PublicState

PART = 1 << 20  # numbers of the long vector of first rounds that are drawn at a time
NOBODY = generator(0)  # for measurements that are asked for all rows and no noise


def log_density(mechanism: Mechanism, scale: float, noise: Vector) -> Any:
    """Of this much noise, or of that in each row, up to a constant; `scale` is noise multiplier × bound."""
    match mechanism:
        case gaussian():
            return -np.einsum("...i,...i", noise, noise) / (2 * scale**2)
        case laplace():
            return -np.abs(noise).sum(axis=-1) / scale
        case gamma_norm():
            return -math.sqrt(noise @ noise) / scale
        case _:
            raise NotImplementedError(type(mechanism).__name__)


def log_ratio(mechanism: Mechanism, scale: float, share: float, answer: Vector, one: Vector, other: Vector) -> Any:
    """ln of how much likelier an answer is around `one` than around `other`, or each of several, one a row.

    If the canary takes part with probability `share` only, the rest of the data is taken to add nothing.
    """
    if share == 1:
        return log_density(mechanism, scale, answer - one) - log_density(mechanism, scale, answer - other)
    none = log_density(mechanism, scale, answer)

    def seen(mean: Vector) -> Any:
        likelier = log_density(mechanism, scale, answer - mean) - none
        return np.logaddexp(math.log1p(-share), math.log(share) + likelier)

    return seen(one) - seen(other)


@dataclass
class Ratio:
    """ln P[answers | canary] − ln P[answers | none], as the answers come. `first` keeps what every first round finds anew."""

    present: Oracle
    absent: Oracle
    first: dict[str, Any] = field(default_factory=dict)
    total: float = 0.0
    _hidden: "_Hidden | None" = None

    def restart(self) -> None:
        """Forget the answers of a run before the next one."""
        self.total, self._hidden = 0.0, None

    def observe(self, measuring: Measuring, at: PublicState, round_: int, carry: Carry, noisy: Noisy) -> None:
        """Weigh one more answer."""
        match measuring:
            case shared_noise(sampler=sampler, term=term):  # the sum carries the noise of one Gaussian
                one_gaussian = Measurement(sampler, [term], gaussian(measuring.noise_multiplier), unit=measuring.unit)
                self.observe(one_gaussian, at, round_, carry, noisy)
            case Measurement() | stable_solution():
                scale, share, one, other = self._means(measuring, at, round_)
                self.total += log_ratio(measuring.mechanism, scale, share, _vector(noisy.value), one, other)
            case LineSearch():
                self._line_search(measuring, at, carry, noisy)
            case SparseVector():
                self._sparse_vector(measuring, at, noisy)
            case unasked():
                pass
            case _:
                raise NotImplementedError(type(measuring).__name__)

    def weigh_all(self, measuring: Measurement, at: PublicState, answers: Vector) -> Vector:
        """The logarithms of many first answers, one a row."""
        scale, share, one, other = self._means(measuring, at, 0)
        weighed: Vector = log_ratio(measuring.mechanism, scale, share, answers, one, other)
        return weighed

    def _means(
        self, measuring: Measurement | stable_solution, at: PublicState, round_: int
    ) -> tuple[float, float, Vector, Vector]:
        """The scale of the noise, how likely the canary takes part, and the answers without noise of either data set."""
        if round_ == 0 and "means" in self.first:
            found: tuple[float, float, Vector, Vector] = self.first["means"]
            return found
        mechanism: Any = measuring.mechanism
        size, share = self.present.size, 1.0
        if isinstance(measuring, stable_solution):
            silent, bound = replace(measuring, mechanism=type(mechanism)(0.0)), measuring.bound(size)
            answers = [silent.measure(oracle, at, round_, NOBODY).value for oracle in (self.present, self.absent)]
        else:
            expected, terms = measuring.sampler.expected(size), [term.at(at) for term in measuring.terms]
            bound = sum(term.bound for term in terms) / expected
            if sampled := isinstance(measuring.sampler, poisson | fixed_size):
                share = expected / size
            rows = None if sampled else measuring.sampler.draw(size, round_, NOBODY)
            answers = [
                sum(term.query(oracle, rows, at).clipped_sum(term.clip, term.weight / expected) for term in terms)
                for oracle in (self.present, self.absent)
            ]
        one, other = (_vector(answer) for answer in answers)
        found = mechanism.noise_multiplier * bound, share, one, other
        if round_ == 0:
            self.first["means"] = found
        return found

    def _line_search(self, search: LineSearch, at: PublicState, carry: Carry, noisy: Noisy) -> None:
        """The gradient's new answer, made again from the averages that are carried; then which of two candidates was chosen."""
        before, after = carry or {"spent": 0.0, "held": 0.0, "gradient": 0.0, "longest": search.longest}, noisy.carry
        taken, held = after["spent"] - before["spent"], before["held"]
        if taken == 0:  # the pool is used up
            return
        old, average = (_vector(gradient) for gradient in (before["gradient"], after["gradient"]))
        answer = ((held + taken) * average - held * old) / taken
        size = self.present.size
        one, other = (
            _vector(oracle(at.current, None).clipped_sum(search.clip, 1 / size)) for oracle in (self.present, self.absent)
        )
        scale = search.pool.noise_multiplier / math.sqrt(taken) * search.clip.bound / size
        self.total += log_ratio(gaussian(1.0), scale, 1.0, answer, one, other)
        assert search.candidates == 1
        direction = after["gradient"] / max(float(np.linalg.norm(average)), 1e-300)
        places = at.current, at.current - before["longest"] * direction
        moved = bool(np.any(_vector(noisy.value) != 0))
        for oracle, sign in ((self.present, 1), (self.absent, -1)):
            stay, go = (search._score(oracle, place) for place in places)  # type: ignore[arg-type]  # it knows losses
            further = (go - stay) / (search.selection.noise_multiplier * search.loss_bound)
            goes = 0.5 * math.exp(-further) if further >= 0 else 1 - 0.5 * math.exp(further)  # of two exponential noises
            self.total += sign * math.log(goes if moved else 1 - goes)

    def _sparse_vector(self, sparse: SparseVector, at: PublicState, noisy: Noisy) -> None:
        """Yes or no, given that one hidden threshold decided since the last yes; and after a yes the Laplace answer."""
        bound, size, z = sparse.term.bound, self.present.size, sparse.noise_multiplier
        public = _vector(at.known.gradient)
        if self._hidden is None:
            self._hidden = _Hidden(sparse.answers)
        if self._hidden.left == 0:
            return
        sums = [_vector(oracle(at.current, None).clipped_sum(sparse.term.clip)) for oracle in (self.present, self.absent)]
        length = math.sqrt(2 * len(public) / sparse.answers) * z * bound
        threshold = sparse.threshold * length + 2 * z * bound * self._hidden.noise
        yes = bool(np.any(_vector(noisy.value) != public))
        gaps = np.array([np.linalg.norm(total - size * public) for total in sums])
        self.total += self._hidden.compare(stats.laplace.sf((threshold - gaps[:, None]) / (4 * z * bound)), yes)
        if yes:
            answer = size * _vector(noisy.value)
            self.total += log_ratio(laplace(1.0), z * bound, 1.0, answer, *sums)


class _Hidden:
    """What is known of a hidden threshold: the noise that it may have, and how likely each is with and without the canary."""

    noise = stats.laplace.ppf((np.arange(200) + 0.5) / 200)

    def __init__(self, left: int) -> None:
        self.left = left
        self._weights = np.full((2, len(self.noise)), 1 / len(self.noise))

    def compare(self, exceeds: Vector, yes: bool) -> float:
        """How much likelier this comparison is with the canary, after those before; `exceeds` is how likely each makes a yes."""
        before = self._weights.sum(axis=1)
        self._weights = self._weights * (exceeds if yes else 1 - exceeds)
        after = np.log(self._weights.sum(axis=1) / before)
        if yes:
            self.left, self._weights = self.left - 1, np.full_like(self._weights, 1 / len(self.noise))
        return float(after[0] - after[1])


def _vector(value: Any) -> Vector:
    return np.asarray(value, dtype=float).reshape(-1)


# ---------------------------------------------------------------- replays


@dataclass(frozen=True)
class Watched:
    """A measurement whose answers are weighed as they leave it; in all else it is the one that is watched."""

    measuring: Measuring
    ratio: Ratio

    def event(self, round_: int) -> DpEvent:
        return self.measuring.event(round_)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        noisy = self.measuring.measure(oracle, at, round_, rng, carry)
        self.ratio.observe(self.measuring, at, round_, carry, noisy)
        return noisy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.measuring, name)


def _watched(plan: Plan, ratio: Ratio) -> Plan:
    """The same plan; what is measured in several rounds is one thing there, too."""
    known: dict[int, Watched] = {}

    def watched(round_: int) -> Watched:
        measuring = plan(round_)
        return known.setdefault(id(measuring), Watched(measuring, ratio))

    return watched


@dataclass(frozen=True)
class Start:
    """What a front end handed to the loop."""

    recipe: Recipe
    oracle: Oracle
    parameters: Any


def replays(present: Start, absent: Start, seed: int = 1) -> Callable[[bool, int], Vector]:
    """Runs of the real loop, from what a front end made of either data set; a seed repeats the game."""
    first: dict[str, Any] = {}

    def play(canary: bool, count: int) -> Vector:
        start, rng = present if canary else absent, generator(2 * seed + canary)
        ratio, scores = Ratio(present.oracle, absent.oracle, first), np.empty(count)
        recipe = replace(start.recipe, measurement=_watched(start.recipe.measurement, ratio))
        for place in range(count):
            ratio.restart()
            run(recipe, start.oracle, start.parameters, rng=rng)
            scores[place] = ratio.total
        return scores

    return play


class Recalled:
    """An oracle that computes the vectors of all rows at one point once: in every first round they are the same."""

    def __init__(self, oracle: Oracle, point: Any) -> None:
        self._oracle, self._point = oracle, point
        self._vectors: PerExampleGrads | None = None

    def __call__(self, parameters: Any, rows: Rows) -> PerExampleGrads:
        if parameters is not self._point or rows is not None:
            return self._oracle(parameters, rows)
        self._vectors = self._vectors or self._oracle(parameters, rows)
        return self._vectors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)


def _first_round(start: Start) -> tuple[Measuring, PublicState]:
    known, _ = start.recipe.side.at(start.parameters, start.recipe.side.start(start.parameters), 0)
    return start.recipe.measurement(0), PublicState(start.parameters, start.parameters, known)


def first_rounds(present: Start, absent: Start, seed: int = 1) -> Callable[[bool, int], Vector]:
    """The first round alone, again and again: clipped, summed and hidden anew, without the loop around it."""
    first: dict[str, Any] = {}

    def play(canary: bool, count: int) -> Vector:
        start, rng = present if canary else absent, generator(2 * seed + canary)
        measuring, at = _first_round(start)
        ratio = Ratio(present.oracle, absent.oracle, first)
        if _hides_each_number_alone(measuring):
            most = max(1, PART // len(start.parameters))
            parts = [min(most, count - done) for done in range(0, count, most)]
            return np.concatenate(
                [ratio.weigh_all(measuring, at, _first_answers(measuring, start, at, part, rng)) for part in parts]
            )
        oracle, scores = Recalled(start.oracle, start.parameters), np.empty(count)
        for place in range(count):
            ratio.restart()
            ratio.observe(measuring, at, 0, {}, measuring.measure(oracle, at, 0, rng))
            scores[place] = ratio.total
        return scores

    return play


def _hides_each_number_alone(measuring: Measuring) -> TypeGuard[Measurement]:
    """Whether a round has all rows, and noise that is independent from one number of the sum to the next."""
    if not isinstance(measuring, Measurement):
        return False
    return isinstance(measuring.sampler, full_batch) and isinstance(measuring.mechanism, gaussian | laplace)


def _first_answers(measuring: Measurement, start: Start, at: PublicState, count: int, rng: Rng) -> Vector:
    """So many answers of a first round, one a row: one measurement of vectors that are repeated so often, end to end.

    The real rows are clipped by their real norms, by the real clip, and their sum is repeated. The real mechanism hides it with
    noise of the same scale on each number, which is drawn independently for each.
    """
    point = array_namespace(start.parameters).tile(start.parameters, (count,))
    oracle: Any = Repeated(start.oracle, start.parameters, count)
    noisy = measuring.measure(oracle, at._replace(current=point, previous=point), 0, rng)
    return _vector(noisy.value).reshape(count, -1)


class Repeated:
    """An oracle whose vectors are those of another at one point, so often end to end, with the norm that they have once."""

    def __init__(self, oracle: Any, point: Any, times: int) -> None:
        self.size, self._oracle, self._point, self._times = oracle.size, oracle, point, times

    def __call__(self, parameters: Any, rows: Rows) -> "RepeatedVectors":
        return RepeatedVectors(self._oracle(self._point, rows), self._times)

    def changes(self, parameters: Any, *asked: Any) -> "RepeatedVectors":
        return RepeatedVectors(self._oracle.changes(self._point, *asked), self._times)


class RepeatedVectors:
    """Vectors so often end to end; what they are scaled and shifted by is repeated, too."""

    def __init__(self, vectors: Any, times: int) -> None:
        self._vectors, self._times = vectors, times

    def scaled(self, diagonal: Any) -> "RepeatedVectors":
        return RepeatedVectors(self._vectors.scaled(diagonal), self._times)

    def shifted(self, vector: Any, weight: float = 1.0) -> "RepeatedVectors":
        return RepeatedVectors(self._vectors.shifted(vector, weight), self._times)

    def clipped_sum(self, clip: Any, weight: float = 1.0, out: Any = None) -> Any:
        total = self._vectors.clipped_sum(clip, weight)
        repeated = array_namespace(total).tile(total, (self._times,))
        return repeated if out is None else out + repeated
