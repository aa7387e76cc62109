"""Laws 2 and 6, for every sampler × query × clip × mechanism that fit together."""

import numpy as np
import pytest
from scipy import stats

from privopt.errors import UnsupportedEvent
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import Sampler, disjoint_batches, full_batch
from privopt.perexample.grads import Vector
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import NoOpDpEvent, SelfComposedDpEvent, compose
from tests.laws.checks import FALSE_ALARM, NOISE_CHECKS, NOWHERE, check_divisor, check_indistinguishable, check_noise
from tests.laws.table import (
    COMPOSITIONS,
    FITTING,
    MECHANISMS,
    NEIGHBOURS,
    SAMPLERS,
    TURNS,
    UNPRICED,
    composed,
)
from tests.problems import Given

SIZE = 7  # no multiple of anything: a rounded batch size shows
VECTORS = np.random.default_rng(1).standard_normal((SIZE, 3)) * [[0.1], [1], [2], [3], [0.2], [5], [9]]
EXPECTED_SIZE = {"poisson": 0.3 * SIZE, "fixed_size": 2.0, "full_batch": 7.0, "disjoint_batches": 7 / 3}


def drawn(sampler: Sampler, size: int, rng: Rng) -> Vector:
    """The rows of a round, as numbers."""
    rows = sampler.draw(size, 0, rng)
    return np.arange(size) if rows is None else rows


every_composition = pytest.mark.parametrize("names", COMPOSITIONS, ids="-".join)
queries_in_turn = pytest.mark.parametrize("names", TURNS, ids="-".join)  # noise is added to a sum, whatever was asked


# ---------------------------------------------------------------- law 2


@every_composition
def test_the_mean_divides_by_the_expected_batch_size_exactly(names: tuple[str, str, str, str]) -> None:
    check_divisor(composed(names, SIZE, bound=1.5, noise_multiplier=0.0), Given(VECTORS), EXPECTED_SIZE[names[0]])


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_expected_size_is_the_mean_of_the_drawn_sizes(name: str) -> None:
    """Over whole epochs; false alarm < 1e-8: six standard errors of at most √(nq(1 − q)/N)."""
    sampler, rng, rounds = SAMPLERS[name](SIZE), generator(2), 6000
    drawn = [SIZE if rows is None else len(rows) for rows in (sampler.draw(SIZE, round_, rng) for round_ in range(rounds))]
    assert np.mean(drawn) == pytest.approx(sampler.expected(SIZE), abs=6 * np.sqrt(SIZE * 0.3 * 0.7 / rounds))


# ---------------------------------------------------------------- an empty batch is a batch


@pytest.mark.parametrize(("clip", "mechanism"), FITTING)
def test_an_empty_batch_is_still_noised_and_still_has_its_event(clip: str, mechanism: str) -> None:
    measurement = composed(("poisson", "gradient", clip, mechanism), 3, bound=1.0, noise_multiplier=2.0)
    seeds = [seed for seed in range(200) if len(drawn(measurement.sampler, 3, generator(seed))) == 0]
    answers = [measurement.measure(Given(VECTORS[:3]), NOWHERE, 0, generator(seed)) for seed in seeds]
    assert len(seeds) > 20
    assert all(np.abs(answer.value).min() > 0 for answer in answers)
    assert np.std([answer.value for answer in answers]) > 2.0 / 0.9 / 2
    assert {str(answer.event) for answer in answers} == {str(measurement.event(0))}


# ---------------------------------------------------------------- law 6


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(("noise_multiplier", "bound"), [(1.0, 1.0), (0.5, 3.0), (4.0, 0.01)])
def test_noise_has_the_stated_distribution(name: str, noise_multiplier: float, bound: float) -> None:
    check_noise(name, MECHANISMS[name](noise_multiplier), noise_multiplier, bound)


def test_every_mechanism_has_a_check_of_its_noise() -> None:
    assert set(NOISE_CHECKS) == set(MECHANISMS)


@queries_in_turn
def test_noise_on_the_mean_is_relative_to_the_bound_and_to_the_expected_size(names: tuple[str, str, str, str]) -> None:
    noisy = composed(names, SIZE, bound=1.5, noise_multiplier=2.0)
    scale = EXPECTED_SIZE[names[0]]

    class Hidden:
        """The measurement of vectors that are all 0, seen as a mechanism."""

        def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
            assert bound == 1.5
            zero = Given(np.zeros((SIZE, len(total))))
            return total + noisy.measure(zero, NOWHERE, 0, rng).value * scale

    check_noise(names[3], Hidden(), 2.0, 1.5)


def test_the_noise_of_several_terms_is_relative_to_the_sum_of_their_bounds() -> None:
    terms = [0.25 * (gradient() @ l2(2.0)), -0.5 * (gradient() @ l2(3.0))]
    measurement = Measurement(full_batch(), terms, gaussian(1.5))
    assert measurement.bound == 0.25 * 2 + 0.5 * 3

    class Hidden:
        def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
            return total + measurement.measure(Given(np.zeros((4, len(total)))), NOWHERE, 0, rng).value * 4

    check_noise("gaussian", Hidden(), 1.5, 2.0)


def test_one_example_moves_a_sum_of_several_terms_by_at_most_the_measurement_s_bound() -> None:
    terms = [0.25 * (gradient() @ l2(2.0)), -0.5 * (gradient() @ l2(3.0))]
    measurement = Measurement(full_batch(), terms, gaussian(0.0))
    large = np.array([[50.0, 0.0], [0.0, -80.0], [60.0, 60.0]])
    answer = measurement.measure(Given(large), NOWHERE, 0, generator(0)).value * 3
    for row in range(3):
        other = measurement.measure(Given(np.delete(large, row, axis=0)), NOWHERE, 0, generator(0)).value * 2
        assert np.linalg.norm(answer - other) <= measurement.bound + 1e-12


# ---------------------------------------------------------------- the claim, from outside

FAR = np.array([[100.0], [0.5], [-0.5], [0.3]])  # the first row is the one that neighbours differ in


def neighbouring(name: str) -> tuple[Given, Given]:
    """Data sets of four rows: the first is absent in the other, which keeps a row of zeros so that both have one size."""
    changed = FAR.copy()
    changed[0] = -100.0 if NEIGHBOURS[name] == "replace-one" else 0.0
    return Given(FAR), Given(changed)


@queries_in_turn
def test_answers_on_neighbouring_data_differ_by_no_more_than_the_accountant_claims(names: tuple[str, str, str, str]) -> None:
    measurement = composed(names, len(FAR), bound=1.0, noise_multiplier=1.0)
    rounds = 3 if names[0] == "disjoint_batches" else 1
    if names in UNPRICED:
        with pytest.raises(UnsupportedEvent, match=r"cannot account .* fixed-size samples"):
            epsilon(measurement.event(0), 0.05, NEIGHBOURS[names[0]])
    else:
        check_indistinguishable(measurement, *neighbouring(names[0]), NEIGHBOURS[names[0]], delta=0.05, rounds=rounds, draws=1500)


# ---------------------------------------------------------------- what sampling does to the event


def test_the_rounds_of_an_epoch_of_disjoint_batches_cost_what_one_round_does() -> None:
    measurement = Measurement(disjoint_batches(3, key=0), [gradient() @ l2(1.0)], gaussian(2.0))
    alone = Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(2.0)).event(0)
    assert [measurement.event(round_) for round_ in range(4)] == [alone, NoOpDpEvent(), NoOpDpEvent(), alone]
    assert compose(measurement.event(round_) for round_ in range(9)) == SelfComposedDpEvent(alone, 3)


@pytest.mark.parametrize("size", [3, 4])
def test_rows_are_cut_into_parts_independently_so_that_removing_one_moves_no_other(size: int) -> None:
    """Parallel composition: one row may touch one part only.

    A cut by position would not do, for removing a row would move those behind it. Over all secret keys, each row's part is
    uniform and independent of the others', with the row removed (3 rows) as without (4): the other rows keep their parts in
    distribution, which is what the mixture over keys needs. Chi-square over all 3^n cuts; false alarm 1e-6.
    """
    cuts = np.zeros(3**size)
    for key in range(30 * 3**size):
        sampler = disjoint_batches(3, key=key)
        parts = np.zeros(size, dtype=int)
        for round_ in range(3):
            parts[sampler.draw(size, round_, generator(0))] = round_
        cuts[parts @ 3 ** np.arange(size)] += 1
    assert stats.chisquare(cuts).pvalue > FALSE_ALARM


def test_another_key_cuts_otherwise_and_no_key_is_shown() -> None:
    cuts = {str(disjoint_batches(2, key=key).draw(64, 0, generator(0))) for key in range(20)}
    assert len(cuts) == 20
    assert "12345" not in repr(disjoint_batches(2, key=12345))


def test_an_epoch_of_disjoint_batches_moves_in_one_round_only_when_one_row_is_replaced() -> None:
    vectors = np.eye(12)
    measurement = Measurement(disjoint_batches(3, key=5), [gradient() @ l2(1.0)], gaussian(0.0))
    for row in range(12):
        other = vectors.copy()
        other[row] *= -9.0
        before, after = (
            np.array([measurement.measure(Given(data), NOWHERE, round_, generator(0)).value * 4 for round_ in range(3)])
            for data in (vectors, other)
        )
        moved = np.linalg.norm(before - after, axis=1)
        np.testing.assert_allclose(np.sort(moved), [0, 0, 2], atol=1e-12)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_rows_of_a_round_are_distinct_and_exist(name: str) -> None:
    for seed in range(50):
        rows = drawn(SAMPLERS[name](SIZE), SIZE, generator(seed))
        assert len(set(rows.tolist())) == len(rows)
        assert set(rows.tolist()) <= set(range(SIZE))
