"""The checks of the laws can fail: each is shown a part that breaks the law, as such parts have been broken elsewhere."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.measure import queries
from privopt.measure.clips import Clip, l1, l2
from privopt.measure.measurement import Carry, Measurement, Noisy
from privopt.measure.mechanisms import Independent, gamma_norm, gaussian, laplace
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng, Sum
from privopt.measure.samplers import disjoint_batches, full_batch, poisson
from privopt.perexample.grads import ClipFactors, Materialized, Oracle, Rows, Vector
from privopt.privacy.events import DpEvent
from privopt.state import PublicState
from tests.laws.checks import check_bounded, check_divisor, check_indistinguishable, check_noise
from tests.laws.table import FITTING, MECHANISMS, SAMPLES, composed
from tests.laws.test_measurements import FAR, neighbouring
from tests.problems import Given

LARGE = np.array([[30.0, 40.0], [0.1, 0.2], [-5.0, 0.0]])

# ---------------------------------------------------------------- clips


class understated(l2):  # noqa: N801
    """Clips to twice what it states."""

    def factors(self, norms: Vector, weight: float = 1.0) -> Vector:
        return l2(2 * self.bound).factors(norms, weight)


class of_the_mean(l2):  # noqa: N801
    """Clips the mean norm of the batch instead of each example's."""

    def factors(self, norms: Vector, weight: float = 1.0) -> Vector:
        return np.full(len(norms), weight * min(1.0, self.bound / norms.mean()))


@dataclass(frozen=True)
class by_the_batch:  # noqa: N801
    """Scales by the largest norm in the batch, which one example decides for all."""

    bound: float
    order: ClassVar[Literal[1, 2]] = 2

    def at(self, state: PublicState) -> Clip:
        return self

    def factors(self, norms: Vector, weight: float = 1.0) -> Vector:
        return np.full(len(norms), weight * self.bound / norms.max())


class InL2(Materialized):
    """Vectors that give their l2 norms, whatever they are asked for."""

    def norms(self, order: int) -> Vector:
        return super().norms(2)


class Trusting(Materialized):
    """Vectors that believe that every number is a number."""

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Vector | None = None) -> Vector:
        return self.weighted_sum(clip.factors(self.norms(clip.order), weight))


@pytest.mark.parametrize(
    ("clip", "vectors"),
    [
        (understated(1.0), Materialized),
        (of_the_mean(1.0), Materialized),
        (by_the_batch(1.0), Materialized),
        (l1(1.0), InL2),
    ],
    ids=str,
)
def test_a_clip_that_lets_one_example_move_the_sum_further_is_found(clip: Clip, vectors: type[Materialized]) -> None:
    same = np.vstack([LARGE, np.tile([3.0, 4.0], (5, 1))])
    without = [vectors(np.delete(same, row, axis=0)) for row in range(len(same))]
    with pytest.raises(AssertionError):
        check_bounded(clip, vectors(same), without)


def test_a_nan_that_gets_through_a_clip_is_found() -> None:
    rows = np.array([[math.nan, 1.0], [0.1, 0.1]])
    check_bounded(l2(1.0), Materialized(rows), [])
    with pytest.raises(AssertionError):
        check_bounded(l2(1.0), Trusting(rows), [])


# ---------------------------------------------------------------- noise


class half_gaussian(gaussian):  # noqa: N801
    def begin(self, like: Vector, bound: float, rng: Rng) -> Callable[[Sum], Vector]:
        return super().begin(like, bound / 2, rng)


class half_laplace(laplace):  # noqa: N801
    def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
        return super().release(total, bound / 2, rng)


class half_gamma_norm(gamma_norm):  # noqa: N801
    def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
        return super().release(total, bound / 2, rng)


class shared(gaussian):  # noqa: N801
    """One draw for all coordinates: each alone looks right."""

    def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
        return total + self.noise_multiplier * bound * rng.standard_normal()


class of_wrong_degree(gamma_norm):  # noqa: N801
    """Length Gamma(1, ·): right in one dimension, too short in more."""

    def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
        direction = rng.standard_normal(total.shape)
        return total + rng.gamma(1, self.noise_multiplier * bound) * direction / np.linalg.norm(direction)


class along_an_axis(gamma_norm):  # noqa: N801
    """The right length, in one of 2d directions."""

    def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
        direction = rng.choice([-1.0, 1.0]) * np.eye(total.size)[rng.integers(total.size)]
        return total + rng.gamma(total.size, self.noise_multiplier * bound) * direction


class slightly_less(gaussian):  # noqa: N801
    def begin(self, like: Vector, bound: float, rng: Rng) -> Callable[[Sum], Vector]:
        return super().begin(like, bound * 0.93, rng)


HALVES: dict[str, Callable[[float], Independent]] = {
    "gaussian": half_gaussian,
    "laplace": half_laplace,
    "gamma_norm": half_gamma_norm,
}


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("gaussian", half_gaussian(1.5)),
        ("gaussian", shared(1.5)),
        ("gaussian", slightly_less(1.5)),
        ("laplace", half_laplace(1.5)),
        ("gamma_norm", half_gamma_norm(1.5)),
        ("gamma_norm", of_wrong_degree(1.5)),
        ("gamma_norm", along_an_axis(1.5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_noise_that_is_not_what_it_says_is_found(name: str, mechanism: gaussian | laplace | gamma_norm) -> None:
    with pytest.raises(AssertionError):
        check_noise(name, mechanism, 1.5, 2.0)


@pytest.mark.parametrize(("clip", "mechanism"), FITTING)
def test_half_the_noise_is_found_from_outside(clip: str, mechanism: str) -> None:
    honest = composed(("full_batch", "gradient", clip, mechanism), len(FAR), bound=1.0, noise_multiplier=1.0)
    broken = Measurement(honest.sampler, honest.terms, HALVES[mechanism](1.0))
    with pytest.raises(AssertionError):
        check_indistinguishable(broken, *neighbouring("full_batch"), "add-remove", delta=0.05)


def test_a_doubled_sensitivity_is_found_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompositionError, match="leave vectors longer"):
        gradient() @ understated(1.0)
    monkeypatch.setattr(queries, "check_factors", lambda clip: None)  # as if nobody had tried the clip
    broken = Measurement(full_batch(), [gradient() @ understated(1.0)], gaussian(1.0))
    with pytest.raises(AssertionError):
        check_indistinguishable(broken, *neighbouring("full_batch"), "add-remove", delta=0.05)


# ---------------------------------------------------------------- recipes

ROUND = 6  # after a warm start, between anchors, in a phase that divides
ELSEWHERE = {  # recipes whose rounds hide no clipped sum, and where theirs are broken
    "dp-agd": "tests/papers/test_dp_agd.py",
    "output-perturbation": "tests/measure/test_solutions.py",
    "sagd-sparse": "tests/measure/test_sparse_vector.py",
    "ideal": "has no guarantee",
    "adas": "has no guarantee",
}
EPOCH = {"sagd-minibatch": 3}  # rounds that are paid for as one


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - set(ELSEWHERE)))
def test_half_the_noise_of_a_recipe_is_found_from_outside(name: str) -> None:
    honest = SAMPLES[name](9, 1.0).measurement(ROUND)
    assert isinstance(honest, Measurement)
    if isinstance(honest.sampler, poisson):  # which hides part of what noise does not
        honest = replace(honest, sampler=full_batch())
    kind = type(honest.mechanism).__name__
    assert honest.mechanism == MECHANISMS[kind](1.0)
    broken = replace(honest, mechanism=HALVES[kind](1.0))
    for measurement, found in ((honest, False), (broken, True)):
        with pytest.raises(AssertionError) if found else nullcontext():
            check_indistinguishable(measurement, *neighbouring("full_batch"), "add-remove", delta=0.05, rounds=EPOCH.get(name, 1))


# ---------------------------------------------------------------- samplers and divisors


class of_everybody(poisson):  # noqa: N801
    """Claims the amplification of a sample, and takes everybody."""

    def draw(self, size: int, round_: int, rng: Rng) -> Rows:
        return None


def test_a_sample_that_was_not_drawn_is_found_from_outside() -> None:
    broken = Measurement(of_everybody(0.2), [gradient() @ l2(1.0)], gaussian(1.5))
    with pytest.raises(AssertionError):
        check_indistinguishable(broken, *neighbouring("poisson"), "add-remove", delta=0.05)


class by_position(disjoint_batches):  # noqa: N801
    """Cuts the rows where they stand: one row less, and all behind it stand elsewhere."""

    def draw(self, size: int, round_: int, rng: Rng) -> Rows:
        return np.array_split(np.arange(size), self.batches)[round_ % self.batches]


class CutAgain:
    """Many runs of one epoch: each draws the secret key of its cut, over which the guarantee is."""

    def __init__(self, measurement: Measurement, cut: type[disjoint_batches]) -> None:
        self._measurement, self._cut = measurement, cut

    def event(self, round_: int) -> DpEvent:
        return self._measurement.event(round_)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        if round_ == 0:
            self._measurement = replace(self._measurement, sampler=self._cut(3, key=int(rng.integers(2**62))))
        return self._measurement.measure(oracle, at, round_, rng, carry)


def test_a_cut_by_position_is_found_from_outside() -> None:
    """Three parts of two rows. Without the first row each part gets another row for one of its own: two bounds apart, twice."""
    honest = SAMPLES["sagd-minibatch"](9, 1.0).measurement(0)
    assert isinstance(honest, Measurement)
    rows = np.array([[9.0], [9.0], [-9.0], [-9.0], [9.0], [9.0]])
    neighbours = Given(rows), Given(np.vstack([rows[1:], [[0.0]]]))  # a row of zeros, so that both have one size
    check_indistinguishable(CutAgain(honest, disjoint_batches), *neighbours, "add-remove", delta=0.05, rounds=3)
    with pytest.raises(AssertionError):
        check_indistinguishable(CutAgain(honest, by_position), *neighbours, "add-remove", delta=0.05, rounds=3)


class ByDrawnSize(Measurement):
    """Divides by the number of rows that happened to be drawn."""

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        rows = self.sampler.draw(oracle.size, round_, rng)
        sums = [term.weight * term.query(oracle, rows, at).clipped_sum(term.clip) for term in self.terms]
        assert isinstance(self.mechanism, Independent)
        hidden = self.mechanism.release(sum(sums[1:], sums[0]), self.bound, rng)
        return Noisy(hidden / max(1, oracle.size if rows is None else len(rows)), self.event(round_))


class rounded(poisson):  # noqa: N801
    """Expects int(n q) rows."""

    def expected(self, size: int) -> float:
        return float(int(self.sampling_probability * size))


def test_a_mean_over_the_drawn_size_is_found() -> None:
    with pytest.raises(AssertionError):
        check_divisor(ByDrawnSize(poisson(0.9), [gradient() @ l2(1.0)], gaussian(0.0)), Given(LARGE), 2.7)


def test_a_rounded_batch_size_is_found() -> None:
    with pytest.raises(AssertionError):
        check_divisor(Measurement(rounded(0.9), [gradient() @ l2(1.0)], gaussian(0.0)), Given(LARGE), 2.7)


class Forgetful(Measurement):
    """Noise relative to the first term only."""

    def begin(self, like: Vector, bound: float, round_: int, rng: Rng, carry: Carry = {}) -> Callable[[Sum], Noisy]:  # noqa: B006
        return super().begin(like, bound * self.terms[0].bound / self.bound, round_, rng, carry)


def test_noise_that_forgets_a_term_is_found_from_outside() -> None:
    broken = Forgetful(full_batch(), [gradient() @ l2(0.5), gradient() @ l2(1.0)], gaussian(1.0))
    with pytest.raises(AssertionError):
        check_indistinguishable(broken, *neighbouring("full_batch"), "add-remove", delta=0.05)
