"""Mechanisms with a state: noise that is correlated across rounds is one new class.

`paired` is one for two rounds at a time. The second round takes back the noise of the first, so that the sum of both answers has
the noise of one release.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from scipy import stats

import privopt.loop
from privopt.checkpoint import Checkpoint
from privopt.errors import CompositionError
from privopt.loop import Result, run
from privopt.measure.clips import l2, l2_moved
from privopt.measure.measurement import Carry, Measurement, Noisy, OpenRound
from privopt.measure.mechanisms import State, gaussian
from privopt.measure.queries import gradient, gradient_difference
from privopt.measure.randomness import Rng, Sum, generator
from privopt.measure.samplers import Sampler, disjoint_batches, fixed_size, full_batch, poisson
from privopt.measure.without_mechanism import unasked
from privopt.needs import check_slots
from privopt.perexample.grads import Oracle, Vector
from privopt.postprocess.updates import sgd
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import DpEvent, GaussianDpEvent, NoOpDpEvent, compose
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe, after, always
from privopt.state import PublicState
from tests.laws.checks import FALSE_ALARM, NOWHERE, check_indistinguishable
from tests.problems import Given, Unreadable
from tests.stopped import StopAt, Stopped

SIZE, ROUNDS = 12, 7
DATA = Given(np.random.default_rng(0).standard_normal((SIZE, 2)))


@dataclass(frozen=True)
class paired:  # noqa: N801  # a constructor that reads as a phrase
    """N₁ in even rounds, N₂ − N₁ in odd ones, both N(0, (z · bound)²) on each coordinate.

    **Guarantee** Gaussian(z) and Gaussian(z/2) for two rounds, paid in the first. Their answers a₁ and a₂ say as much as a₁ and
    a₁ + a₂: a sum that one example moves by `bound` and one that it moves by 2 · `bound`, each with fresh noise. The second sum
    may depend on the first answer (adaptive composition).
    """

    noise_multiplier: float
    order: ClassVar[Literal[1, 2]] = 2

    def event_in(self, round_: int) -> DpEvent:
        if round_ % 2:
            return NoOpDpEvent()
        return compose([GaussianDpEvent(self.noise_multiplier), GaussianDpEvent(self.noise_multiplier / 2)])

    def start(self, like: Vector) -> State:
        return {"taken_back": 0 * like}

    def step(self, state: State, round_: int, like: Vector, bound: float, rng: Rng) -> Callable[[Sum], tuple[Vector, State]]:
        noise = self.noise_multiplier * bound * rng.standard_normal(like.shape)
        kept = noise if round_ % 2 == 0 else 0 * noise
        return lambda total: (total(noise - state["taken_back"]), {"taken_back": kept})


@dataclass(frozen=True)
class underpriced(paired):  # noqa: N801
    """Priced as if the noise of each round were fresh."""

    def event_in(self, round_: int) -> DpEvent:
        return GaussianDpEvent(self.noise_multiplier)


def measurement(mechanism: Any = paired(1.5), sampler: Sampler = full_batch()) -> Measurement:  # noqa: B008
    return Measurement(sampler, [gradient() @ l2(1.0)], mechanism)


def recipe(mechanism: Any = paired(1.5)) -> Recipe:
    return Recipe(ROUNDS, always(measurement(mechanism)), sgd(0.1))


# ---------------------------------------------------------------- the laws hold


def test_the_planned_event_is_the_recorded_event() -> None:
    ledger = Ledger()
    result = run(recipe(), DATA, np.zeros(2), spending=ledger.run(), rng=generator(3))
    pair = [GaussianDpEvent(1.5), GaussianDpEvent(0.75)]
    assert ledger.event == result.event == recipe().planned_event() == compose(4 * pair)  # the last round begins a pair
    assert epsilon(ledger.event, 1e-5) == pytest.approx(epsilon(GaussianDpEvent(1.5 / math.sqrt(4 * 5)), 1e-5), rel=1e-3)


def test_the_second_round_takes_back_the_noise_of_the_first() -> None:
    """False alarm: 1e-6 for each of three distributions."""
    asked, rng, zero = measurement(paired(2.0)), generator(1), Given(np.zeros((1, 4000)))
    at = PublicState(np.zeros(4000))
    first = asked.measure(zero, at, 0, rng)
    second = asked.measure(zero, at, 1, rng, first.carry)
    third = asked.measure(zero, at, 2, rng, second.carry)
    for fresh in (first.value, first.value + second.value, third.value):
        assert stats.kstest(fresh / 2.0, stats.norm.cdf).pvalue > FALSE_ALARM
    assert np.var(second.value) == pytest.approx(2 * 2.0**2, rel=0.1)


@dataclass(frozen=True)
class Pair:
    """Two rounds in one, whose answer is the likelihood ratio of neighbours: nothing tells them apart better."""

    asked: Measurement

    def event(self, round_: int) -> DpEvent:
        return compose([self.asked.event(0), self.asked.event(1)])

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        first = self.asked.measure(oracle, at, 0, rng)
        second = self.asked.measure(oracle, at, 1, rng, first.carry)
        return Noisy(first.value + 2 * (first.value + second.value), self.event(0))


def test_two_rounds_tell_neighbours_apart_no_better_than_their_events_allow_and_fresh_prices_are_too_low() -> None:
    neighbours = Given(np.array([[9.0], [0.0]])), Given(np.array([[0.0], [0.0]]))
    check_indistinguishable(Pair(measurement()), *neighbours, "add-remove", delta=0.2, draws=5000)
    with pytest.raises(AssertionError):
        check_indistinguishable(Pair(measurement(underpriced(1.5))), *neighbours, "add-remove", delta=0.2, draws=5000)


# ---------------------------------------------------------------- the state is saved, and needed


def train(folder: Path, *, stop_after: int | None = None) -> Result:
    checkpoint = Checkpoint(folder / "checkpoint", "these data")
    with Ledger(path=folder / "ledger") as ledger:
        name, rng = checkpoint.begin("the run", generator(7))
        progress = StopAt(stop_after)
        result = run(recipe(), DATA, np.zeros(2), spending=ledger.run(name), rng=rng, checkpoint=checkpoint, progress=progress)
        checkpoint.remove()
    return result


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_an_interrupted_run_takes_back_the_noise_that_it_drew_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setattr(privopt.loop, "DURABILITY", 1e9)  # saved after every block
    complete = run(recipe(), DATA, np.zeros(2), rng=generator(7))
    with pytest.raises(Stopped):
        train(tmp_path, stop_after=stop)
    result = train(tmp_path)
    np.testing.assert_array_equal(result.parameters, complete.parameters)
    assert Ledger.read(tmp_path / "ledger").event == complete.event


def test_a_round_without_the_state_of_the_round_before_is_refused() -> None:
    asked = measurement()
    with pytest.raises(CompositionError, match="begins in round 0"):
        asked.measure(Unreadable(), NOWHERE, 1, generator(0))
    with pytest.raises(CompositionError, match="begins in round 0"):
        OpenRound(asked, SIZE, 1, generator(0), np.zeros(2), 5)


# ---------------------------------------------------------------- what its events do not speak of is refused


@pytest.mark.parametrize("sampler", [poisson(0.5), fixed_size(3, SIZE), disjoint_batches(2, key=5)], ids=str)
def test_correlated_noise_on_samples_is_refused(sampler: Sampler) -> None:
    with pytest.raises(CompositionError, match="correlated across rounds"):
        measurement(sampler=sampler)


def test_correlated_noise_has_one_scale_in_every_round() -> None:
    difference = gradient_difference()
    with pytest.raises(CompositionError, match="finite bound"):
        Measurement(full_batch(), [difference @ l2_moved(1.0)], paired(1.5))
    limited = Measurement(full_batch(), [difference @ l2_moved(1.0, most=3.0)], paired(1.5))
    at = PublicState(np.zeros(2), np.zeros(2))  # nothing moved, so the clip of this round is 0
    np.testing.assert_allclose(limited.measure(DATA, at, 0, generator(0)).value, 1.5 * 3 / SIZE * generator(0).standard_normal(2))


def test_correlated_noise_needs_every_round() -> None:
    with pytest.raises(CompositionError, match="every round"):
        Recipe(3, after(1, measurement(), before=unasked()), sgd(0.1))
    with pytest.raises(CompositionError, match="every round"):
        check_slots(measurement().needs, frozenset(), "a training loop of your own")


def test_independent_noise_carries_nothing() -> None:
    answer = measurement(gaussian(1.0)).measure(DATA, NOWHERE, 5, generator(0), {"kept": 7})
    assert answer.carry == {}
