"""What each law says, as a function that fails when it does not hold; `test_violations.py` shows that each can fail."""

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from scipy import stats

from privopt.measure.clips import Clip
from privopt.measure.measurement import Measurement, Measuring
from privopt.measure.randomness import Rng, generator
from privopt.perexample.grads import Oracle, PerExampleVectors, Vector
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Neighbours
from privopt.privacy.events import compose
from privopt.state import Known, PublicState

FALSE_ALARM = 1e-6  # of each statistical check; seeds are fixed, so a check that passed once passes always
NOWHERE = PublicState(np.zeros(1), np.array([math.inf]), Known(scale=np.array([0.5])))


def check_bounded(clip: Clip, with_all: PerExampleVectors, without: Iterable[PerExampleVectors], slack: float = 1e-9) -> None:
    """Law 1: removing one example moves the sum by at most the bound (and what rounding adds)."""
    total = with_all.clipped_sum(clip)
    assert np.isfinite(total).all()
    for grads in without:
        moved = float(np.linalg.norm(total - grads.clipped_sum(clip), ord=clip.order))
        assert moved <= clip.bound * (1 + slack)


def check_divisor(measurement: Measurement, oracle: Oracle, expected_size: float, rounds: int = 12) -> None:
    """Law 2: without noise, the answer is the clipped sum of the drawn rows over the expected number of them."""
    for round_ in range(rounds):
        answer = measurement.measure(oracle, NOWHERE, round_, generator(round_)).value
        rows = measurement.sampler.draw(oracle.size, round_, generator(round_))
        total = sum(term.weight * term.query(oracle, rows, NOWHERE).clipped_sum(term.clip) for term in measurement.terms)
        np.testing.assert_allclose(answer * expected_size, total, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- law 6: the stated noise

DIMENSION = 5
DRAWS = 2000


class Releases(Protocol):
    """A mechanism, as far as its noise is seen from outside."""

    def release(self, total: Vector, bound: float, rng: Rng) -> Vector: ...


def _noise(mechanism: Releases, bound: float) -> Vector:
    rng, total = generator(6), np.arange(float(DIMENSION))
    return np.array([mechanism.release(total, bound, rng) - total for _ in range(DRAWS)])


def _check_distribution(sample: Vector, expected: Callable[[Vector], Vector]) -> None:
    assert stats.kstest(sample, expected).pvalue > FALSE_ALARM


def check_gaussian(mechanism: Releases, noise_multiplier: float, bound: float) -> None:
    """N(0, (zC)²) on each coordinate, independently."""
    noise = _noise(mechanism, bound) / (noise_multiplier * bound)
    _check_distribution(noise.ravel(), stats.norm.cdf)
    _check_distribution((noise**2).sum(axis=1), stats.chi2(DIMENSION).cdf)  # coordinates do not share their noise
    _check_distribution(noise.sum(axis=1) / math.sqrt(DIMENSION), stats.norm.cdf)


def check_laplace(mechanism: Releases, noise_multiplier: float, bound: float) -> None:
    """Laplace of scale zC on each coordinate, independently."""
    noise = _noise(mechanism, bound) / (noise_multiplier * bound)
    _check_distribution(noise.ravel(), stats.laplace.cdf)
    _check_distribution(np.abs(noise).sum(axis=1), stats.gamma(DIMENSION).cdf)
    positive = np.bincount((noise > 0).sum(axis=1), minlength=DIMENSION + 1)
    assert stats.chisquare(positive, DRAWS * stats.binom(DIMENSION, 0.5).pmf(np.arange(DIMENSION + 1))).pvalue > FALSE_ALARM


def check_gamma_norm(mechanism: Releases, noise_multiplier: float, bound: float) -> None:
    """Length Gamma(d, zC), and a direction that is uniform and knows nothing of the length."""
    noise = _noise(mechanism, bound) / (noise_multiplier * bound)
    lengths = np.linalg.norm(noise, axis=1)
    directions = noise / lengths[:, None]
    _check_distribution(lengths, stats.gamma(DIMENSION).cdf)
    for axis in (np.eye(DIMENSION)[0], np.full(DIMENSION, 1 / math.sqrt(DIMENSION))):  # any axis sees the same distribution
        shadow = directions @ axis
        _check_distribution((1 + shadow) / 2, stats.beta((DIMENSION - 1) / 2, (DIMENSION - 1) / 2).cdf)
        longer = lengths > np.median(lengths)
        assert stats.ks_2samp(shadow[longer], shadow[~longer]).pvalue > FALSE_ALARM


NOISE_CHECKS: dict[str, Callable[[Releases, float, float], None]] = {
    "gaussian": check_gaussian,
    "laplace": check_laplace,
    "gamma_norm": check_gamma_norm,
}


def check_noise(name: str, mechanism: Releases, noise_multiplier: float, bound: float) -> None:
    """Law 6: the mechanism's noise is what its name and parameters say."""
    NOISE_CHECKS[name](mechanism, noise_multiplier, bound)


# ---------------------------------------------------------------- the claim itself, from outside


def check_indistinguishable(
    measurement: Measuring,
    one: Oracle,
    other: Oracle,
    neighbours: Neighbours,
    *,
    delta: float,
    rounds: int = 1,
    draws: int = 2500,
) -> None:
    """No threshold on an answer tells neighbouring data apart better than (ε, δ) allows.

    P[A > t on one] − e^ε P[A > t on the other] is estimated for 21 thresholds, both sides, both orders, every round. Each
    estimate errs by more than √(ln(k/α)/2N)(1 + e^ε) with probability at most α/k (Hoeffding), so all k together raise a
    false alarm with probability at most `FALSE_ALARM`.
    """
    claimed = math.exp(epsilon(compose(measurement.event(round_) for round_ in range(rounds)), delta, neighbours))
    assert math.isfinite(claimed)
    samples = [_answers(measurement, oracle, rounds, draws, generator(seed)) for seed, oracle in enumerate((one, other))]
    thresholds = np.quantile(np.concatenate(samples), np.linspace(0.025, 0.975, 21), axis=0)
    tests = thresholds.size * 4
    margin = math.sqrt(math.log(tests / FALSE_ALARM) / (2 * draws)) * (1 + claimed)
    above = [(sample[None] > thresholds[:, None]).mean(axis=1) for sample in samples]
    for p, r in (above, above[::-1]):
        for a, b in ((p, r), (1 - p, 1 - r)):
            assert float((a - claimed * b).max()) <= delta + margin


def _answers(measurement: Measuring, oracle: Oracle, rounds: int, draws: int, rng: Rng) -> Vector:
    return np.array(
        [[measurement.measure(oracle, NOWHERE, round_, rng).value[0] for round_ in range(rounds)] for _ in range(draws)]
    )
