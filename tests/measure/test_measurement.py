"""Terms and measurements: weights, bounds, and what one answers."""

import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.measure.clips import Clip, l1, l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gamma_norm, gaussian, laplace
from privopt.measure.queries import Term, gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch, poisson
from privopt.perexample.grads import Materialized, Oracle, PerExampleVectors, Rows, Vector
from privopt.privacy.events import GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent, PureDpEvent
from privopt.state import PublicState
from tests.laws.table import MECHANISMS
from tests.problems import Given


@given(st.floats(-10, 10), st.floats(0, 10), st.just(0.0) | st.floats(1e-9, 10))
def test_a_weight_scales_a_term_s_bound_whatever_its_sign(weight: float, factor: float, bound: float) -> None:
    term = weight * (gradient() @ l2(bound))
    assert term.bound == abs(weight) * bound
    assert (factor * term).bound == pytest.approx(factor * abs(weight) * bound)


def test_a_gradient_is_asked_for_where_the_iterate_is() -> None:
    class Here:
        size = 3

        def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
            return Materialized(np.tile(parameters, (3, 1)))

    at = PublicState(current=np.array([0.3, 0.4]), previous=np.array([9.0, 9.0]))
    measurement = Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(0.0))
    np.testing.assert_allclose(measurement.measure(Here(), at, 0, generator(0)).value, [0.3, 0.4])


def test_terms_that_ask_at_points_of_their_own_are_each_answered_there() -> None:
    """The points of a round stay alive: another that lay where one was could be taken for it."""
    visited: list[weakref.ref[Vector]] = []

    class Here:
        size = 1

        def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
            visited.append(weakref.ref(parameters))
            assert all(point() is not None for point in visited)
            return Materialized(parameters[None].copy())

    @dataclass(frozen=True)
    class Elsewhere:
        times: float

        def __call__(self, oracle: Oracle, rows: Rows, at: PublicState) -> PerExampleVectors:
            return oracle(self.times * at.current, rows)

        def __matmul__(self, clip: Clip) -> Term:
            return Term(1.0, self, clip)

    at = PublicState(current=np.ones(1000))
    measurement = Measurement(full_batch(), [Elsewhere(float(k)) @ l2(1e9) for k in range(1, 6)], gaussian(0.0))
    np.testing.assert_allclose(measurement.measure(Here(), at, 0, generator(0)).value, np.full(1000, 15.0))


def test_an_answer_carries_the_event_that_was_planned_for_its_round() -> None:
    measurement = Measurement(poisson(0.5), [gradient() @ l2(1.0)], gaussian(2.0))
    at = PublicState(np.zeros(2), np.zeros(2))
    noisy = measurement.measure(Given(np.ones((4, 2))), at, 3, generator(0))
    assert noisy.event == measurement.event(3) == PoissonSampledDpEvent(0.5, GaussianDpEvent(2.0))


def test_mechanisms_name_their_events() -> None:
    assert gaussian(2.0).event == GaussianDpEvent(2.0)
    assert laplace(2.0).event == LaplaceDpEvent(2.0)
    assert gamma_norm(2.0).event == PureDpEvent(0.5)
    assert gamma_norm(0.0).event == NonPrivateDpEvent()


@pytest.mark.parametrize("name", MECHANISMS)
def test_without_noise_or_without_a_bound_a_mechanism_adds_nothing(name: str) -> None:
    total = np.array([1.0, -2.0, 3.0])
    np.testing.assert_array_equal(MECHANISMS[name](0.0).release(total, 5.0, generator(0)), total)
    np.testing.assert_array_equal(MECHANISMS[name](2.0).release(total, 0.0, generator(0)), total)


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_is_drawn_in_double_precision_and_the_sum_is_left_as_it_is(name: str) -> None:
    total = np.zeros(3, dtype="float32")
    hidden = MECHANISMS[name](1.0).release(total, 1.0, generator(0))
    assert hidden.dtype == np.float64
    np.testing.assert_array_equal(total, np.zeros(3))


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_release_has_fresh_noise(name: str) -> None:
    rng, mechanism = generator(0), MECHANISMS[name](1.0)
    one, other = (mechanism.release(np.zeros(3), 1.0, rng) for _ in range(2))
    assert (one != other).all()


def test_one_dimensional_gamma_norm_noise_is_laplace_noise() -> None:
    """exp(−|x|/zC) either way: the mean of |x| is zC. 20000 draws, 7 standard errors."""
    rng = generator(0)
    for mechanism in (gamma_norm(2.0), laplace(2.0)):
        sizes = [abs(mechanism.release(np.zeros(1), 0.5, rng)[0]) for _ in range(20_000)]
        assert np.mean(sizes) == pytest.approx(1.0, abs=0.05)


def test_a_zero_clip_under_either_norm_asks_nothing_and_hides_nothing() -> None:
    at = PublicState(np.zeros(2), np.zeros(2))
    for clip, mechanism in ((l1(0.0), laplace(1.0)), (l2(0.0), gaussian(1.0)), (l2(0.0), gamma_norm(1.0))):
        answer = Measurement(full_batch(), [gradient() @ clip], mechanism).measure(Given(np.ones((4, 2))), at, 0, generator(0))
        np.testing.assert_array_equal(answer.value, [0.0, 0.0])
