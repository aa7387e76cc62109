"""Laws 1, 5 and 7 for persons whose rows are drawn one by one: what a person with several rows costs, and is refused."""

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, multivariate_normal
from torch import nn

from privopt import Budget
from privopt.errors import CompositionError
from privopt.measure.clips import adaptive, l1, l2
from privopt.measure.measurement import Measurement, OpenRound
from privopt.measure.mechanisms import gaussian, laplace
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch, poisson, several_rows
from privopt.measure.units import each_person, each_row, rows_of_persons
from privopt.methods.dp_sgd import dp_sgd
from privopt.needs import Offer
from privopt.nets import fit, loops, make_private
from privopt.perexample.networks import TorchOracle, TorchPersonOracle, TorchRowsOfPersons
from privopt.perexample.persons import Persons
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget as AnyBudget
from privopt.privacy.events import PoissonSampledDpEvent, SelfComposedDpEvent
from privopt.state import PublicState
from tests.problems import difference, tanh_network, tensor_rows

COUNTS = np.array([1, 4, 2, 3, 1, 4])
ROWS, MOST = int(COUNTS.sum()) + 3, 4  # of three rows nobody knows, as of rows above the cap
PERSONS = Persons(np.random.default_rng(2).permutation(ROWS)[: COUNTS.sum()], COUNTS)


def rows_oracle() -> TorchOracle:
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(1)
    x, y = torch.randn(ROWS, 4, generator=draws).double(), torch.randint(3, (ROWS,), generator=draws)
    return TorchOracle(nn.Linear(4, 3).double(), nn.CrossEntropyLoss(), x, y, check=False)


def measured(noise: float = 2.0, share: float = 0.3, most: int = MOST) -> Measurement:
    return Measurement(poisson(share), [gradient() @ l2(0.1)], gaussian(noise), unit=rows_of_persons(most))


# ---------------------------------------------------------------- what it costs


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 1.0, 3.0]), st.floats(0.05, 0.9))
def test_whatever_directions_a_person_s_rows_have_the_price_covers_them(seed: int, value: float, share: float) -> None:
    """Three clipped rows in the plane, against the mixture on a line: δ(ε) both ways round, by sums over a grid."""
    rng, noise = np.random.default_rng(seed), 1.0
    rows = rng.normal(size=(3, 2))
    rows *= (rng.uniform(size=3) ** 0.3 / np.linalg.norm(rows, axis=1))[:, None]
    axis = np.linspace(-9, 9, 121)
    plane = np.stack(np.meshgrid(axis, axis), axis=-1)
    spread = multivariate_normal(cov=noise**2 * np.eye(2))
    present = sum(
        math.prod(share if drawn else 1 - share for drawn in which) * spread.pdf(plane - np.array(which) @ rows)
        for which in np.ndindex(2, 2, 2)
    )
    absent, step = spread.pdf(plane), (axis[1] - axis[0]) ** 2
    line = np.linspace(-15, 15, 6001)
    densities = [np.exp(-((line - place) ** 2) / (2 * noise**2)) / math.sqrt(2 * math.pi) / noise for place in range(4)]
    mixture = sum(chance * one for chance, one in zip(binom.pmf(range(4), 3, share), densities, strict=True))
    for one, other, upper, lower in ((present, absent, mixture, densities[0]), (absent, present, densities[0], mixture)):
        exact = float(np.maximum(one - math.exp(value) * other, 0).sum() * step)
        assert exact <= np.maximum(upper - math.exp(value) * lower, 0).sum() * (line[1] - line[0]) + 2e-4


def test_a_person_moves_the_sum_by_at_most_a_bound_for_each_row_that_was_drawn() -> None:
    oracle = TorchRowsOfPersons(rows_oracle(), PERSONS, MOST)
    everything = np.arange(ROWS)
    whole = oracle(None, None).clipped_sum(l2(0.1))
    for person, count in enumerate(COUNTS):
        own = PERSONS.take(np.array([person])).rows
        for drawn in range(count + 1):
            others = np.setdiff1d(everything, own[:drawn])
            assert float(torch.linalg.vector_norm(whole - oracle(None, others).clipped_sum(l2(0.1)))) <= 0.1 * drawn + 1e-12


def test_rows_that_count_for_nobody_change_nothing() -> None:
    rows = rows_oracle()
    oracle, unknown = TorchRowsOfPersons(rows, PERSONS, MOST), np.setdiff1d(np.arange(ROWS), PERSONS.rows)
    assert oracle.size == ROWS
    assert not bool(oracle(None, unknown).clipped_sum(l2(1.0)).any())
    torch.testing.assert_close(oracle(None, None).clipped_sum(l2(1.0)), rows(None, np.sort(PERSONS.rows)).clipped_sum(l2(1.0)))


def test_a_round_in_pieces_draws_the_rows_that_a_measurement_draws() -> None:
    rows, measurement = rows_oracle(), measured(share=0.6)
    zero = torch.zeros(rows.dimension, dtype=torch.float64)
    round_ = OpenRound(measurement, ROWS, 0, generator(3), zero, 2, PERSONS)
    for place, part in enumerate(round_.parts):
        round_.add(place, rows.at_once(None, part))
    oracle = TorchRowsOfPersons(rows_oracle(), PERSONS, MOST)
    whole = measurement.measure(oracle, PublicState(oracle.flat.vector), 0, generator(3))
    answer = round_.finish()
    torch.testing.assert_close(answer.value, whole.value)
    assert answer.event == whole.event == several_rows(0.6, MOST, 2.0)


def test_rows_above_the_cap_do_not_move_an_adaptive_clip() -> None:
    """Each would add −½ to the noisy count, which hides a half for each of at most `most_rows` rows."""
    rows, measurement = rows_oracle(), measured(noise=1e-9, share=0.6)
    asked = replace(measurement, terms=[gradient() @ adaptive(100.0, rate=0.01)])  # of which no vector is longer
    oracle = TorchRowsOfPersons(rows, PERSONS, MOST)
    found = asked.measure(oracle, PublicState(oracle.flat.vector), 0, generator(9)).carry["clip_bound"]
    drawn = len(np.intersect1d(np.asarray(measurement.sampler.draw(ROWS, 0, generator(9))), PERSONS.rows))
    share = drawn / 2 / (0.6 * ROWS) + 0.5
    assert found == pytest.approx(100.0 * math.exp(-0.01 * (share - 0.5)), rel=1e-6)


# ---------------------------------------------------------------- planned is recorded, and what is claimed


def trained(**given: Any) -> Any:
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(300), 2))
    told = {"budget": Budget(3.0, 1e-5, unit="person"), "persons": ids, "rows_per_person": 2, "rounds": 5, "batch_size": 2}
    told |= {"seed": 0, "progress": False} | given
    return fit(tanh_network(6, 4), nn.CrossEntropyLoss(), tensor_rows(600, columns=6, score=difference), **told)


@pytest.mark.parametrize("method", ["dp-adam", "dp-srm"])
def test_small_batches_draw_rows_and_claim_one_person(method: str) -> None:
    fitted = trained(method=method)
    statement = fitted.privacy.statement
    (noise,) = {event.standard_deviation for event in _events(fitted.ledger.event)}
    assert fitted.ledger.event == SelfComposedDpEvent(several_rows(4 / 600, 2, noise), 5)
    assert 2.9 < epsilon(fitted.ledger.event, 1e-5) <= 3.0
    for words in ("Unit: one person", "4 of 600 rows on average", "Poisson sampling of rows: of at most 2 rows of one person"):
        assert words in statement.text()


def _events(event: Any) -> set[Any]:
    return {event.event}


@pytest.mark.parametrize(
    "given",
    [{"batch_size": 200}, {"rows_per_person": 32}, {"accountant": "rdp"}, {"batch_size": None, "method": "dp-gd"}],
    ids=["large batches", "an uneven cap", "rdp", "all persons"],
)
def test_persons_are_drawn_where_that_needs_less_noise_or_is_all_that_has_a_price(given: dict[str, Any]) -> None:
    fitted = trained(**given)
    assert "rows on average" not in fitted.privacy.statement.text()
    assert "Unit: one person" in fitted.privacy.statement.text()


def test_a_loop_draws_rows_too_and_a_saved_state_replays_them() -> None:
    def begun() -> Any:
        torch.manual_seed(3)
        model = nn.Linear(6, 2)
        ids = np.repeat(np.arange(300), 2)
        budget = AnyBudget(3.0, 1e-5, unit="person")
        told: dict[str, Any] = {"persons": ids, "rows_per_person": 2, "rounds": 8, "batch_size": 8, "seed": 0}
        return make_private(model, torch.optim.SGD(model.parameters(), 0.1), tensor_rows(600, columns=6), budget=budget, **told)

    def go(private: Any, until: int) -> None:
        for x, y in private.loader:
            private.step(lambda: nn.functional.cross_entropy(private.model(x), y, reduction="none"))  # noqa: B023
            if private.rounds == until:
                return

    whole, first = begun(), begun()
    go(whole, 8)
    go(first, 3)
    states = first.model.state_dict(), first.optimizer.state_dict(), first.state_dict()
    second = begun()
    for part, state in zip((second.model, second.optimizer, second), states, strict=True):
        part.load_state_dict(state)
    go(second, 8)
    torch.testing.assert_close(second.model.weight, whole.model.weight, rtol=0, atol=0)
    assert whole.ledger.event == SelfComposedDpEvent(several_rows(16 / 600, 2, whole.noise_multiplier), 8)
    assert "16 of 600 rows on average" in whole.statement().text()
    with mock.patch.object(loops, "rows_need_less_noise", return_value=False), pytest.raises(Exception, match="settings"):
        begun().load_state_dict(states[2])


# ---------------------------------------------------------------- what is refused


def test_rows_of_persons_have_a_price_for_poisson_batches_with_gaussian_noise_only() -> None:
    for sampler, clip, mechanism in ((full_batch(), l2(1.0), gaussian(1.0)), (poisson(0.1), l1(1.0), laplace(1.0))):
        with pytest.raises(CompositionError, match=r"Use each_person\(\)"):
            Measurement(sampler, [gradient() @ clip], mechanism, unit=rows_of_persons(3))
    with pytest.raises(CompositionError, match="at least one row"):
        rows_of_persons(0)


def test_what_is_drawn_is_what_is_priced() -> None:
    """Neither fewer rows of a person than the oracle has, nor whole persons, nor rows that nobody has together."""
    recipe = dp_sgd(rounds=3, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1, sampling=poisson(0.3))
    rows = rows_oracle()
    start = rows.flat.vector
    drawn, whole = TorchRowsOfPersons(rows, PERSONS, MOST), TorchPersonOracle(rows, PERSONS)
    recipe.protecting(rows_of_persons(MOST)).check(Offer.of(drawn), start)
    for unit, oracle in (
        (rows_of_persons(1), drawn),
        (rows_of_persons(MOST + 1), drawn),
        (each_person(), drawn),
        (each_row(), drawn),
        (rows_of_persons(MOST), whole),
        (rows_of_persons(MOST), rows),
    ):
        with pytest.raises(CompositionError, match=r"what is (drawn|clipped) is what is (priced|protected)"):
            recipe.protecting(unit).check(Offer.of(oracle), start)


def test_a_person_with_more_rows_than_are_paid_for_is_refused() -> None:
    with pytest.raises(CompositionError, match="more than 3 rows"):
        TorchRowsOfPersons(rows_oracle(), PERSONS, 3)
    zero = torch.zeros(15, dtype=torch.float64)
    with pytest.raises(CompositionError, match="the unit of the measurement"):
        OpenRound(measured(most=3), ROWS, 0, generator(0), zero, 5, PERSONS)
    with pytest.raises(CompositionError, match="the unit of the measurement"):
        OpenRound(replace(measured(), unit=each_row()), ROWS, 0, generator(0), zero, 5, PERSONS)


def test_one_row_of_each_person_is_a_row() -> None:
    assert measured(most=1).event(0) == PoissonSampledDpEvent(0.3, gaussian(2.0).event)
