"""Law 7: compositions that would not have the guarantee they state are refused before any data are read or anything is paid."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privopt.errors import BudgetExceeded, CompositionError, UnsupportedEvent
from privopt.loop import run
from privopt.measure.clips import l1, l2, l2_moved, per_layer
from privopt.measure.line_search import LineSearch
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import Mechanism, gaussian, gaussian_pool, laplace, noisy_min
from privopt.measure.queries import Query, Term, gradient, gradient_difference, preconditioned_gradient
from privopt.measure.samplers import Sampler, disjoint_batches, fixed_size, full_batch, poisson
from privopt.measure.solutions import stable_solution
from privopt.measure.sparse_vector import SparseVector
from privopt.measure.without_mechanism import unasked
from privopt.methods import METHODS
from privopt.methods.adadps import adadps
from privopt.methods.dp_sgd import dp_sgd
from privopt.methods.spiderboost import spiderboost
from privopt.perexample.grads import Rows, Vector
from privopt.postprocess.estimates import recursive_momentum
from privopt.postprocess.regularizers import nonconvex, ridge
from privopt.postprocess.release import random_round
from privopt.postprocess.side_information import (
    delayed_preconditioner,
    fixed_scale,
    public_gradient,
    public_moments,
    public_rms,
)
from privopt.postprocess.updates import adam, mirror_mix, projected, public_adam, public_rmsprop, rmsprop, sgd, warm_up
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe, after, always, every, first
from tests.laws.table import (
    CLIPS,
    FITTING,
    MECHANISMS,
    METHODS_THAT_SAMPLE,
    QUERIES,
    ROW_METHODS,
    SAMPLES,
    UNPRICED,
    composed,
)
from tests.problems import Given, Public, Unreadable

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
            for plans in (
                first(anchor, then=then),
                after(1, then, before=anchor),
                lambda round_, both=(anchor, then): both[round_ % 2],
            ):
                with pytest.raises(CompositionError, match="pays for an epoch in its first round"):
                    Recipe(2, plans, sgd(0.1))
    with pytest.raises(CompositionError, match="pays for an epoch in its first round"):
        Recipe(3, after(1, plan(cut, 2.0), before=unasked()), sgd(0.1))
    Recipe(3, every(2, plan(cut, 2.0), otherwise=plan(cut, 2.0)), sgd(0.1))
    Recipe(3, every(2, plan(poisson(0.1), 2.0), otherwise=plan(full_batch(), 3.0)), sgd(0.1))


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
    measurement = composed(names, Unreadable.size, bound=1.0, noise_multiplier=2.0)
    recipe = Recipe(3, always(measurement), sgd(0.1), side=public_rms(Public(1.0)))
    with pytest.raises(UnsupportedEvent, match="fixed-size"):
        run(recipe, Unreadable(), np.zeros(2), spending=ledger.run())
    assert ledger.entries == ()


def test_a_run_whose_first_round_exceeds_the_budget_reads_no_data_and_pays_nothing() -> None:
    ledger = Ledger(Budget(0.1, 1e-5))
    recipe = dp_sgd(rounds=3, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
    with pytest.raises(BudgetExceeded, match="not even one round"):
        run(recipe, Unreadable(), np.zeros(2), spending=ledger.run())
    assert ledger.entries == ()


@pytest.mark.parametrize("name", [name for name in ROW_METHODS if METHODS[name].private])
def test_a_run_without_noise_fits_into_no_budget(name: str) -> None:
    recipe = SAMPLES[name](1, 0.0)
    with pytest.raises(BudgetExceeded):
        run(recipe, Known(), np.zeros(2), spending=Ledger(Budget(100.0, 1e-5)).run())


# ---------------------------------------------------------------- what slots need of each other, of the oracle and of the start


class Known(Unreadable):
    """Nobody may read it yet, but it says what it offers: two parameters, losses, constants."""

    dimension, lipschitz, smoothness = 2, 1.0, 0.25

    def losses(self, parameters: Vector, rows: Rows) -> Vector:
        raise AssertionError("the data were read")


class Network(Unreadable):
    dimension, layers = 2, ("body.weight", "head.weight")


class Empty(Unreadable):
    size = 0


class Longer(Public):
    def __call__(self, parameters: Vector, round_: int) -> Vector:
        return np.zeros(3)


def asking(
    term: Term,
    *,
    sampling: Sampler = full_batch(),  # noqa: B008  # frozen
    noise: Mechanism = gaussian(1.0),  # noqa: B008
    **slots: Any,
) -> Recipe:
    """Three rounds of a clipped query."""
    return Recipe(3, always(Measurement(sampling, [term], noise)), **{"update": sgd(0.1), **slots})


def mean(query: Query) -> Measurement:
    return Measurement(full_batch(), [query @ l2(1.0)], gaussian(1.0))


def plain(**slots: Any) -> Recipe:
    return asking(gradient() @ l2(1.0), **slots)


def sparse(bound: float = 1.0) -> SparseVector:
    return SparseVector(full_batch(), gradient() @ l1(bound), 8.0, 2)


def search(noise_multiplier: float = 4.0, **own: Any) -> LineSearch:
    return LineSearch(l2(1.0), 1.0, gaussian_pool(noise_multiplier), noisy_min(9.0), 0.1, 0.1, 1.0, 4, **own)


def stable(lipschitz: float) -> Recipe:
    return Recipe(1, always(stable_solution(3, 4.0, lipschitz, 0.25, gaussian(1.0))), sgd(1.0))


def now_and_then(measurement: Any, **slots: Any) -> Recipe:
    """A measurement in every other round, and gradients in between."""
    return Recipe(4, every(2, measurement, otherwise=mean(gradient())), sgd(0.1), **slots)


OWN: Any = {"rounds": 3, "noise_multiplier": 1.0, "clip_bound": 1.0, "learning_rate": 0.1}
START = np.zeros(2)
UNFIT_SLOTS: dict[str, tuple[Callable[[], Recipe], str]] = {
    "weight without momentum": (
        lambda: asking(preconditioned_gradient(0.5) @ l2(1.0), side=public_rms(Public(1.0))),
        "a public momentum",
    ),
    "weight without anything": (lambda: asking(preconditioned_gradient(0.5) @ l2(1.0)), "a public momentum"),
    "preconditioning without a scale": (lambda: asking(preconditioned_gradient() @ l2(1.0)), "a scale"),
    "public_rmsprop": (lambda: plain(update=public_rmsprop(0.1)), "a public gradient"),
    "public_adam": (lambda: plain(update=public_adam(0.1)), "a public gradient"),
    "mirror_mix": (lambda: plain(update=mirror_mix(0.1, 3), side=fixed_scale(np.ones(2))), "a public gradient"),
    "warm_up": (lambda: plain(update=warm_up(2, rmsprop(0.1), then=sgd(0.1))), "a public gradient"),
    "projected": (lambda: plain(update=projected(public_adam(0.1), 1.0)), "a public gradient"),
    "sparse vector without a public gradient": (lambda: Recipe(3, always(sparse()), sgd(0.1)), "a public gradient"),
    "a need in one round only": (
        lambda: Recipe(3, lambda round_: mean(preconditioned_gradient() if round_ == 2 else gradient()), sgd(0.1)),
        "a scale",
    ),
    "sparse vector now and then": (lambda: now_and_then(sparse(), side=public_gradient(Public())), "every round"),
    "sparse vectors of two bounds": (
        lambda: Recipe(3, first(sparse(), then=sparse(9.0)), sgd(0.1), side=public_gradient(Public())),
        "every round",
    ),
    "line search now and then": (lambda: now_and_then(search()), "every round"),
    "line searches of two pools": (lambda: Recipe(3, first(search(), then=search(0.1)), sgd(0.1)), "every round"),
    "line search after public rounds": (lambda: Recipe(3, after(1, search(), before=unasked()), sgd(0.1)), "every round"),
    "a distance moved for gradients": (lambda: asking(gradient() @ l2_moved(1.0)), "gradient_difference"),
    "l1 norms of mixed gradients": (
        lambda: asking(preconditioned_gradient(0.5) @ l1(1.0), noise=laplace(1.0), side=public_moments(Public(1.0))),
        "no closed form",
    ),
    "a weight that is no number": (lambda: asking(math.nan * (gradient() @ l2(1.0))), "finite number, not nan"),
    "a rate that is no number": (lambda: plain(update=sgd(math.nan)), "the rate nan"),
    "anchors that never come": (lambda: Recipe(3, every(0, unasked(), otherwise=unasked()), sgd(0.1)), r"every\(0"),
    "stopping weights of other rounds": (lambda: plain(release=random_round([1.0, 2.0])), "2 weights, but it needs 3"),
    "stopping weights below 0": (lambda: plain(release=random_round([1.0, -2.0, 3.0])), "≥ 0"),
}
UNFIT_ORACLES: dict[str, tuple[Callable[[], Recipe], Unreadable, str]] = {
    "line search without losses": (lambda: Recipe(3, always(search()), sgd(1.0)), Unreadable(), "compares losses"),
    "stable solution without constants": (lambda: stable(1.0), Unreadable(), "promises inf"),
    "stable solution of another loss": (lambda: stable(0.5), Known(), "promises 1"),
    "layers of another network": (
        lambda: asking(gradient() @ per_layer({"body": 1.0, "tail": 1.0})),
        Network(),
        "no bound for head.weight",
    ),
    "a layer that is not there": (
        lambda: asking(gradient() @ per_layer({"body": 1.0, "head": 1.0, "tail": 1.0})),
        Network(),
        "'tail'.*no layers",
    ),
    "layers of a linear model": (lambda: asking(gradient() @ per_layer({"body": 1.0})), Known(), "a model of one layer"),
    "a fixed size of other rows": (lambda: plain(sampling=fixed_size(2, 5)), Unreadable(), "for 5 rows, but there are 12"),
    "no rows": (lambda: plain(), Empty(), "no examples"),
}
UNFIT_STARTS: dict[str, tuple[Callable[[], Recipe], Vector, str]] = {
    "a scale of another length": (lambda: adadps(**OWN, scale=np.ones(3)), START, r"fixed_scale has the shape \(3,\)"),
    "one number as a scale": (lambda: adadps(**OWN, scale=np.ones(1)), START, r"fixed_scale has the shape \(1,\)"),
    "a public gradient of another length": (
        lambda: plain(update=public_rmsprop(0.1), side=public_gradient(Longer())),
        START,
        r"public gradient has the shape \(3,\)",
    ),
    "a mask of another length": (lambda: plain(regularizer=ridge(0.1, np.ones(3))), START, "mask of ridge"),
    "a mask of another length, in a line search": (
        lambda: Recipe(3, always(search(regularizer=nonconvex(0.1, np.ones(3)))), sgd(1.0)),
        START,
        "mask of nonconvex",
    ),
    "too many start parameters": (lambda: plain(), np.zeros(3), "of the 2 parameters"),
    "start parameters in a table": (lambda: plain(), np.zeros((2, 2)), "one vector"),
    "start parameters that are whole numbers": (lambda: plain(), np.zeros(2, dtype=int), "floating-point"),
    "start parameters that are no numbers": (lambda: plain(), np.array([0.0, np.nan]), "finite"),
    "start parameters far away": (lambda: plain(), np.array([0.0, np.inf]), "finite"),
}
REFUSED: dict[str, tuple[Callable[[], Recipe], Unreadable, Vector, str]] = {
    **{name: (recipe, Known(), START, message) for name, (recipe, message) in UNFIT_SLOTS.items()},
    **{name: (recipe, oracle, START, message) for name, (recipe, oracle, message) in UNFIT_ORACLES.items()},
    **{name: (recipe, Known(), start, message) for name, (recipe, start, message) in UNFIT_STARTS.items()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_paid_or_read(name: str) -> None:
    recipe, oracle, start, message = REFUSED[name]
    ledger = Ledger()
    with pytest.raises(CompositionError, match=message):
        run(recipe(), oracle, start, spending=ledger.run())
    assert ledger.entries == ()


@pytest.mark.parametrize(
    "recipe",
    [
        lambda: plain(update=sgd(None)),  # type: ignore[arg-type]
        lambda: plain(update=adam(0.1, ceiling="low")),  # type: ignore[arg-type]
        lambda: plain(estimate=recursive_momentum("all")),  # type: ignore[arg-type]
        lambda: plain(regularizer=ridge(0.1, [1.0, 1.0])),
    ],
    ids=["no learning rate", "no number as a ceiling", "no carry", "a list as a mask"],
)
def test_what_fails_on_the_public_side_fails_before_anything_is_paid_or_read(recipe: Callable[[], Recipe]) -> None:
    ledger = Ledger()
    with pytest.raises((TypeError, ValueError)):
        run(recipe(), Known(), START, spending=ledger.run())
    assert ledger.entries == ()


@pytest.mark.parametrize("scale", [[1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_a_scale_that_divides_by_nothing_is_refused(scale: list[float]) -> None:
    with pytest.raises(CompositionError, match="a finite number > 0"):
        adadps(**OWN, scale=np.array(scale))


@pytest.mark.parametrize("clip", [l2(0.5), l2_moved(2.0, most=0.5)], ids=str)
@pytest.mark.parametrize("own_plan", [False, True])
def test_a_recipe_knows_by_its_slots_whether_it_looks_back(clip: Any, own_plan: bool) -> None:
    anchor = Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(0.1))
    change = Measurement(full_batch(), [gradient_difference() @ clip], gaussian(0.1))
    plan = (lambda round_: change if round_ == 2 else anchor) if own_plan else every(2, anchor, otherwise=change)
    recipe = Recipe(4, plan, sgd(0.1))
    assert recipe.looks_back
    assert not Recipe(4, always(anchor), sgd(0.1)).looks_back
    assert run(recipe, Given(np.eye(2)), START, spending=(ledger := Ledger()).run()).event == ledger.event


@pytest.mark.parametrize("name", ROW_METHODS)
def test_no_method_needs_more_than_it_has(name: str) -> None:
    """All of them run elsewhere; which of them look back is listed here."""
    assert SAMPLES[name](5, 1.0).looks_back == (name in ("dp-srm", "spiderboost"))


def test_a_scale_that_comes_later_is_enough() -> None:
    recipe = asking(preconditioned_gradient() @ l2(1.0), side=delayed_preconditioner(1))
    assert run(recipe, Given(np.eye(2)), START).rounds == 3


def test_an_oracle_of_two_lines_still_works() -> None:
    class Points:
        size = 4

        def __call__(self, parameters: Vector, rows: Rows) -> Any:
            return Given(np.eye(4))(parameters, rows)

    recipe = spiderboost(**OWN, smoothness=1.0, period=2)
    assert run(recipe, Points(), np.zeros(4)).rounds == 3
