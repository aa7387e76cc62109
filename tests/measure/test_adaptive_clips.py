"""Adaptive clips: the bound follows a quantile of the norms, and the round costs what it would with a fixed one."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.clips import adaptive, l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian, laplace
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch, poisson
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.grads import Materialized, Rows
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent
from privopt.state import PublicState

SIZE, WIDTH, NOISE, SHARE = 50, 20_000, 3.0, 0.2


class Examples:
    """Examples with given vectors, the same everywhere."""

    def __init__(self, vectors: Any) -> None:
        self._vectors = np.asarray(vectors, dtype=float)
        self.size = len(self._vectors)

    def __call__(self, parameters: Any, rows: Rows) -> Materialized:
        return Materialized(self._vectors if rows is None else self._vectors[rows])


def asked(clip: adaptive, noise: float = NOISE, sampler: Any = full_batch()) -> Measurement:  # noqa: B008
    return Measurement(sampler, [gradient() @ clip], gaussian(noise))


def test_without_noise_the_bound_converges_to_the_quantile() -> None:
    norms = np.exp(np.random.default_rng(0).standard_normal(2001))
    oracle, carry = Examples(norms[:, None]), dict[str, Any]()
    for round_ in range(300):
        carry = (
            asked(adaptive(50.0, quantile=0.7), 0.0).measure(oracle, PublicState(np.zeros(1)), round_, generator(0), carry).carry
        )
    assert carry["clip_bound"] == pytest.approx(np.quantile(norms, 0.7), rel=0.02)


def test_a_round_costs_what_it_does_with_a_fixed_bound() -> None:
    assert asked(adaptive(1.0)).event(0) == GaussianDpEvent(NOISE)
    assert asked(adaptive(1.0), sampler=poisson(0.1)).event(0) == PoissonSampledDpEvent(0.1, GaussianDpEvent(NOISE))


def test_the_sum_has_noise_of_the_stated_deviation() -> None:
    """z₁ = z/√(1 − p) on the sum; the count is next. A false alarm in a million."""
    noisy = asked(adaptive(2.0, share=SHARE)).measure(
        Examples(np.zeros((SIZE, WIDTH))), PublicState(np.zeros(WIDTH)), 0, generator(5)
    )
    found = math.sqrt(np.mean((noisy.value * SIZE / 2.0) ** 2))
    low, high = stats.chi2.interval(1 - 1e-6, WIDTH)
    stated = NOISE / math.sqrt(1 - SHARE)
    assert math.sqrt(low / WIDTH) * stated <= found <= math.sqrt(high / WIDTH) * stated


def test_the_count_has_noise_of_the_stated_deviation() -> None:
    """The count of 50 zeros is 50, so half of its noise is cut off above: what is below tells the deviation. False alarm 1e-6."""
    oracle, clip = Examples(np.zeros((SIZE, 1))), adaptive(2.0, share=SHARE, rate=1.0)
    rng, below = generator(5), []
    for _ in range(4000):
        carry = asked(clip).measure(oracle, PublicState(np.zeros(1)), 0, rng).carry
        below.append(SIZE * (1 - (0.5 - math.log(carry["clip_bound"] / 2.0))))  # 0 where the noisy count is above 50
    stated = NOISE / (2 * math.sqrt(SHARE))
    found = np.array(below)[np.array(below) > 1e-9]
    assert stats.kstest(found, stats.halfnorm(scale=stated).cdf).pvalue > 1e-6
    assert stats.kstest(found, stats.halfnorm(scale=stated / 2).cdf).pvalue < 1e-6  # half of the noise would be told


def test_one_example_moves_sum_and_count_together_by_at_most_one_noise_unit() -> None:
    """Removing an example: in units of the noise of each, the move of both together is at most 1/z."""
    rng = np.random.default_rng(1)
    for bound, length in ((1.0, 0.3), (1.0, 1.0), (1.0, 40.0)):
        vector = rng.standard_normal(4)
        vector *= length / np.linalg.norm(vector)
        grads = Materialized(vector[None])
        moved_sum = np.linalg.norm(grads.clipped_sum(l2(bound))) / (bound * NOISE / math.sqrt(1 - SHARE))
        moved_count = abs(grads.count_within(bound) - 0.5) / (NOISE / (2 * math.sqrt(SHARE)))
        assert math.hypot(moved_sum, moved_count) <= 1 / NOISE * (1 + 1e-9)


def test_a_run_goes_on_with_the_bound_of_the_round_before() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 2)) * 30
    recipe = dp_sgd(rounds=40, noise_multiplier=1.0, clip_bound=adaptive(1.0), learning_rate=0.01)
    result = run(recipe, Examples(vectors), np.zeros(2), rng=generator(0))
    assert result.event == recipe.planned_event()


@pytest.mark.parametrize("wrong", [{"bound": 0.0}, {"quantile": 1.0}, {"rate": 0.0}, {"share": 0.0}, {"share": 1.0}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(CompositionError):
        adaptive(**({"bound": 1.0} | wrong))


def test_what_cannot_share_its_noise_is_refused() -> None:
    with pytest.raises(CompositionError, match="Gaussian"):
        Measurement(full_batch(), [gradient() @ adaptive(1.0), gradient() @ l2(1.0)], gaussian(1.0))
    with pytest.raises(CompositionError):
        Measurement(full_batch(), [gradient() @ adaptive(1.0)], laplace(1.0))
    with pytest.raises(CompositionError, match=r"\.at\(state\)"):
        adaptive(1.0).factors(np.ones(2))
