"""Law 7: compositions that would not have the guarantee they state are refused before any data are read."""

import math

import numpy as np
import pytest

from privopt.errors import BudgetExceeded, CompositionError, UnsupportedEvent
from privopt.loop import run
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian, laplace
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, disjoint_batches, fixed_size, full_batch, poisson
from privopt.postprocess.updates import sgd
from privopt.privacy.budget import Budget
from privopt.privacy.calibrate import calibrate
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe, always, every, first
from privopt.recipes import METHODS, dp_sgd
from tests.laws.table import CLIPS, FITTING, MECHANISMS, METHODS_THAT_SAMPLE, QUERIES, SAMPLES, UNPRICED, Unreadable, composed

MISFITS = [(clip, mechanism) for clip in CLIPS for mechanism in MECHANISMS if (clip, mechanism) not in FITTING]


@pytest.mark.parametrize(("clip", "mechanism"), MISFITS)
@pytest.mark.parametrize("query", QUERIES)
def test_noise_for_one_norm_after_a_clip_in_another_is_refused_and_the_error_says_what_fits(
    query: str, clip: str, mechanism: str
) -> None:
    fitting = next(other for other, fit in FITTING if fit == mechanism)
    with pytest.raises(CompositionError, match=rf"{mechanism} hides an {fitting} change.*Use {fitting}\(0\.5\), or"):
        Measurement(full_batch(), [QUERIES[query] @ CLIPS[clip](0.5)], MECHANISMS[mechanism](1.0))


@pytest.mark.parametrize(("clip", "mechanism"), MISFITS)
def test_one_misfit_among_several_terms_is_refused(clip: str, mechanism: str) -> None:
    fitting = next(other for other, fit in FITTING if fit == mechanism)
    terms = [gradient() @ CLIPS[fitting](1.0), 0.5 * (gradient() @ CLIPS[clip](1.0))]
    with pytest.raises(CompositionError, match="hides"):
        Measurement(full_batch(), terms, MECHANISMS[mechanism](1.0))


def test_a_measurement_of_nothing_is_refused() -> None:
    with pytest.raises(CompositionError, match="at least one"):
        Measurement(full_batch(), [], gaussian(1.0))


@pytest.mark.parametrize("value", [-1.0, math.nan])
@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_that_is_not_a_number_from_zero_up_is_refused(name: str, value: float) -> None:
    with pytest.raises(CompositionError, match="noise multiplier"):
        MECHANISMS[name](value)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", CLIPS)
def test_a_bound_that_bounds_nothing_is_refused(name: str, value: float) -> None:
    with pytest.raises(CompositionError, match="finite number"):
        CLIPS[name](value)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, math.nan])
def test_a_sampling_probability_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(CompositionError, match=r"\(0, 1\]"):
        poisson(value)


@pytest.mark.parametrize(("batch_size", "size"), [(0, 5), (6, 5), (-1, 5)])
def test_a_fixed_size_that_cannot_be_drawn_is_refused(batch_size: int, size: int) -> None:
    with pytest.raises(CompositionError, match="a batch holds"):
        fixed_size(batch_size, size)


def test_no_parts_are_refused() -> None:
    with pytest.raises(CompositionError, match="at least one part"):
        disjoint_batches(0, key=0)


def test_disjoint_batches_among_rounds_that_cost_something_else_are_refused() -> None:
    """The first round of an epoch pays for all of it: of the rounds below, some would be paid by another's event, or by none."""

    def plan(sampling: Sampler, noise_multiplier: float) -> Measurement:
        return Measurement(sampling, [gradient() @ l2(1.0)], gaussian(noise_multiplier))

    cut = disjoint_batches(3, key=0)
    for other in (plan(full_batch(), 2.0), plan(disjoint_batches(2, key=0), 2.0), plan(cut, 3.0)):
        for anchor, then in ((plan(cut, 2.0), other), (other, plan(cut, 2.0))):
            with pytest.raises(CompositionError, match="pays for an epoch in its first round"):
                first(anchor, then=then)
    every(2, plan(cut, 2.0), otherwise=plan(cut, 2.0))
    every(2, plan(poisson(0.1), 2.0), otherwise=plan(full_batch(), 3.0))


@pytest.mark.parametrize("rounds", [0, -1])
def test_a_recipe_without_rounds_is_refused(rounds: int) -> None:
    with pytest.raises(CompositionError, match="at least one round"):
        dp_sgd(rounds=rounds, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)


# ---------------------------------------------------------------- by the accountant, before the first round


@pytest.mark.parametrize("name", METHODS_THAT_SAMPLE)
def test_fixed_size_samples_under_add_remove_are_refused_before_data_are_read(name: str) -> None:
    recipe = METHODS[name].recipe(
        rounds=3, noise_multiplier=9.0, clip_bound=1.0, learning_rate=0.1, sampling=fixed_size(4, Unreadable.size)
    )
    ledger = Ledger(Budget(1.0, 1e-5))
    with pytest.raises(UnsupportedEvent, match="replace-one"):
        run(recipe, Unreadable(), np.zeros(2), spending=ledger.run())
    assert ledger.entries == ()


def test_a_plan_that_no_accountant_prices_cannot_be_calibrated() -> None:
    def plan(noise_multiplier: float) -> Recipe:
        measurement = Measurement(fixed_size(4, 12), [gradient() @ CLIPS["l1"](1.0)], laplace(noise_multiplier))
        return Recipe(5, always(measurement), sgd(0.1))

    with pytest.raises(UnsupportedEvent, match="fixed-size samples of 4 of 12"):
        calibrate(lambda z: plan(z).planned_event(), Budget(1.0, 1e-5, "replace-one"))


@pytest.mark.parametrize("names", UNPRICED, ids="-".join)
def test_a_run_that_no_accountant_can_price_reads_no_data_and_pays_nothing(names: tuple[str, str, str, str]) -> None:
    """Even into a ledger without a budget, which asks no price."""
    ledger = Ledger()
    recipe = Recipe(3, always(composed(names, Unreadable.size, bound=1.0, noise_multiplier=2.0)), sgd(0.1))
    with pytest.raises(UnsupportedEvent, match="fixed-size"):
        run(recipe, Unreadable(), np.zeros(2), spending=ledger.run())
    assert ledger.entries == ()


def test_a_run_whose_first_round_exceeds_the_budget_reads_no_data_and_pays_nothing() -> None:
    ledger = Ledger(Budget(0.1, 1e-5))
    recipe = dp_sgd(rounds=3, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
    with pytest.raises(BudgetExceeded, match="not even one round"):
        run(recipe, Unreadable(), np.zeros(2), spending=ledger.run())
    assert ledger.entries == ()


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.private])
def test_a_run_without_noise_fits_into_no_budget(name: str) -> None:
    recipe = SAMPLES[name](1, 0.0)
    with pytest.raises(BudgetExceeded):
        run(recipe, Unreadable(), np.zeros(2), spending=Ledger(Budget(100.0, 1e-5)).run())


def test_a_fixed_size_planned_for_other_rows_is_refused() -> None:
    measurement = Measurement(fixed_size(2, 5), [gradient() @ l2(1.0)], gaussian(1.0))
    with pytest.raises(CompositionError, match="planned for 5 rows, but there are 12"):
        run(Recipe(1, always(measurement), sgd(0.1)), Unreadable(), np.zeros(2))
