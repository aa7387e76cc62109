"""Law 5: what was planned is what the ledger holds after the run, for every recipe × sampler × release rule."""

from pathlib import Path

import numpy as np
import pytest

from privopt.errors import LedgerError
from privopt.loop import run
from privopt.measure.measurement import Carry, Measurement, Noisy
from privopt.measure.randomness import Rng, generator
from privopt.methods import METHODS
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.grads import Oracle
from privopt.postprocess.release import random_round
from privopt.postprocess.side_information import public_moments
from privopt.postprocess.updates import sgd
from privopt.privacy.events import GaussianDpEvent, compose
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe, always
from privopt.state import PublicState
from tests.laws.table import (
    COMPOSITIONS,
    METHODS_THAT_SAMPLE,
    RELEASES,
    ROW_METHODS,
    SAMPLERS,
    SAMPLES,
    UNPRICED,
    UPDATES,
    composed,
)
from tests.problems import Given, Public

SIZE, ROUNDS = 12, 7
DATA = Given(np.random.default_rng(0).standard_normal((SIZE, 2)))
SETTINGS = {"rounds": ROUNDS, "noise_multiplier": 1.5, "clip_bound": 1.0, "learning_rate": 0.1}


def check_recorded(recipe: Recipe, ledger: Ledger) -> None:
    spending = ledger.run()
    result = run(recipe, DATA, np.zeros(2), spending=spending, rng=generator(3))
    assert compose(entry.event for entry in ledger.entries for _ in range(entry.count)) == ledger.event
    assert ledger.event == result.event == recipe.planned_event(result.rounds) == spending.since(0)
    assert not result.stopped_early
    if not isinstance(recipe.release, random_round):
        assert result.rounds == recipe.rounds
        assert ledger.event == recipe.planned_event()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", METHODS_THAT_SAMPLE)
def test_the_planned_event_is_the_recorded_event(name: str, sampler: str, release: str) -> None:
    recipe = METHODS[name].recipe(**SETTINGS, sampling=SAMPLERS[sampler](SIZE), release=RELEASES[release])
    check_recorded(recipe, Ledger())


@pytest.mark.parametrize("name", ROW_METHODS)
def test_the_planned_event_is_what_a_file_holds(name: str, tmp_path: Path) -> None:
    with Ledger(path=tmp_path / "ledger") as ledger:
        check_recorded(SAMPLES[name](ROUNDS, 1.5), ledger)
        held = ledger.event
    assert Ledger.read(tmp_path / "ledger").event == held


@pytest.mark.parametrize("names", [names for names in COMPOSITIONS if names not in UNPRICED], ids="-".join)
def test_the_planned_event_is_the_recorded_event_for_every_measurement(names: tuple[str, str, str, str]) -> None:
    """With one update rule: by the wall, none of them sees an event."""
    measurement = composed(names, SIZE, bound=1.0, noise_multiplier=1.5)
    check_recorded(Recipe(ROUNDS, always(measurement), sgd(0.1), side=public_moments(Public(1.0))), Ledger())


@pytest.mark.parametrize("update", UPDATES)
def test_the_planned_event_is_the_recorded_event_for_every_update(update: str) -> None:
    measurement = composed(("poisson", "preconditioned_gradient", "l2", "gaussian"), SIZE, bound=1.0, noise_multiplier=1.5)
    check_recorded(Recipe(ROUNDS, always(measurement), UPDATES[update], side=public_moments(Public(1.0))), Ledger())


def test_a_run_that_stops_at_a_random_round_pays_for_the_rounds_that_it_ran_and_no_more() -> None:
    recipe = dp_sgd(**SETTINGS, release=random_round())  # type: ignore[arg-type]
    spent = set()
    for seed in range(60):  # misses one of 7 stopping rounds with probability 7 · (6/7)^60 < 1e-3; the seeds are fixed
        ledger = Ledger()
        result = run(recipe, DATA, np.zeros(2), spending=ledger.run(), rng=generator(seed))
        assert ledger.event == recipe.planned_event(result.rounds)
        assert sum(entry.count for entry in ledger.entries) == result.rounds
        spent.add(result.rounds)
    assert spent == set(range(1, ROUNDS + 1))


def test_a_measurement_that_draws_other_noise_than_it_planned_is_stopped() -> None:
    class Careless(Measurement):
        def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
            return Noisy(super().measure(oracle, at, round_, rng).value, GaussianDpEvent(0.1))

    honest = composed(("full_batch", "gradient", "l2", "gaussian"), SIZE, bound=1.0, noise_multiplier=1.5)
    broken = Careless(honest.sampler, honest.terms, honest.mechanism)
    with pytest.raises(LedgerError, match="was planned and paid"):
        run(Recipe(3, always(broken), sgd(0.1)), DATA, np.zeros(2))
