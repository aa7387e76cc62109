"""Accountants: what an event costs, as ε at a given δ.

Two accountants of dp-accounting stand behind one function: `"pld"` (privacy loss distributions, the tightest) and `"rdp"`
(Rényi). `"auto"` takes pld where it can price the event and rdp elsewhere. Nothing here is a new accountant: pld composes
dp-accounting's own distributions, one per atom.

What dp-accounting 0.6 does that a caller must know, each pinned by a test:

- its `REPLACE_ONE` doubles the sensitivity under PLD, but not under RDP. `_event_for_rdp` owns that conversion;
- its `RandomizedResponseDpEvent` ignores the composition count under PLD, so an ε-DP event is composed here from its
  privacy parameters instead, and that event is not among ours;
- PLD prices no sampling without replacement and no selection; RDP prices no Poisson sampling under replace-one;
- a mixture of Gaussians is priced by PLD only, under add-remove only; of a mixture that moves by 0 or 1 it says what it says of
  Poisson sampling;
- PLD rounds losses up to a grid. Rounding errors add up over rounds, so `_choose_grid` refines it with their number.
"""

import logging
import math
from collections import Counter
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from privopt.errors import InputError, UnsupportedEvent
from privopt.privacy.budget import Neighbours
from privopt.privacy.events import (
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    atoms,
    describe,
)
from privopt.privacy.mixtures import mixture_distribution

Accountant = Literal["auto", "pld", "rdp"]

DEFAULT_GRID = 1e-4
COARSEST = 500.0  # the largest grid step: the exponential of a larger one overflows
LOOSE = 1e3  # above this ε, Rényi's bound may be forty times the truth: too loose to choose a grid by
MOST_NOISE = 1e6  # for fixed-size samples: from 1e8 on, dp-accounting's formula for them takes the logarithm of 0
RARE = 1e-4  # share of δ that outcomes of mixtures may use up that are not worth their grid points
MOST_STEPS = 10**7  # largest table, ε/grid, for a requested grid: several such tables are held in memory
HOPELESS = 1e9  # an ε (Rényi's bound) that protects nothing and whose table would fill the memory: it counts as infinite
WHOLE_ORDERS = [order for order in RdpAccountant().orders.tolist() if order == round(order)]  # of Rényi divergences
FRACTIONAL_ORDERS = [order for order in RdpAccountant().orders.tolist() if order != round(order)]

# dp-accounting logs every Rényi order that it leaves out; leaving one out costs tightness, never validity
logging.getLogger("absl").addFilter(lambda record: "Excluding this order" not in record.msg)


def epsilon(
    event: DpEvent,
    delta: float,
    neighbours: Neighbours = "add-remove",
    *,
    accountant: Accountant = "auto",
    grid: float | None = None,
    coarser: float = 1.0,
) -> float:
    """The ε that the event costs at this δ: never less than the truth.

    `grid` is the step to which PLD rounds losses up; by default it is fine enough to overstate ε by less than 0.5 %, times
    `coarser`: less exact, and quicker.

    >>> from privopt.privacy.events import SelfComposedDpEvent
    >>> round(epsilon(SelfComposedDpEvent(GaussianDpEvent(20.0), 100), 1e-5), 4)
    1.9931
    """
    parts = Counter[DpEvent]()
    for part, count in atoms(event):
        parts[part] += count
    if not parts:
        return 0.0
    if any(not _noise_multiplier(part) > 0 for part in parts):
        return math.inf
    chosen = choose(event, neighbours, accountant)
    return _price(tuple(parts.items()), delta, neighbours, chosen, grid, coarser if chosen == "pld" else 1.0)


@lru_cache(maxsize=128)
def _price(
    parts: tuple[tuple[DpEvent, int], ...],
    delta: float,
    neighbours: Neighbours,
    accountant: Accountant,
    grid: float | None,
    coarser: float,
) -> float:
    """The ε of these parts, cached: it takes tenths of a second, and calibration, progress, ledger and statement all need it."""
    counts = Counter(dict(parts))
    return (
        _rdp_epsilon(counts, delta, neighbours) if accountant == "rdp" else _pld_epsilon(counts, delta, neighbours, grid, coarser)
    )


def choose(event: DpEvent, neighbours: Neighbours, accountant: Accountant = "auto") -> Literal["pld", "rdp"]:
    """Choose the accountant that prices the event. If the requested one cannot, the error names one that can."""
    if accountant not in get_args(Accountant):
        raise InputError(f"accountant is {accountant!r}; it is one of {', '.join(get_args(Accountant))}.")
    obstacles = {
        name: [part for part, _ in atoms(event) if not can(part, neighbours)]
        for name, can in (("pld", _pld_supports), ("rdp", _rdp_supports))
    }
    wanted = ("pld", "rdp") if accountant == "auto" else (accountant,)
    for name in wanted:
        if not obstacles[name]:
            return name  # type: ignore[return-value]
    part = obstacles[wanted[0]][0]
    able = [name for name, parts in obstacles.items() if not parts]
    remedy = f'{able[0]} can: accountant="{able[0]}"' if able else _remedy(part, neighbours)
    raise UnsupportedEvent(f"{' and '.join(wanted)} cannot account {describe(part)}, under {neighbours}. {remedy}.")


def accountable(event: DpEvent) -> None:
    """Refuse an event that no accountant can price for any neighbours."""
    try:
        choose(event, "add-remove")
    except UnsupportedEvent:
        choose(event, "replace-one")


@lru_cache(maxsize=1024)
def renyi(part: DpEvent, order: float, neighbours: Neighbours) -> float:
    """An upper bound on the Rényi divergence of one such release, in both directions, apart from what may fail.

    An ε-DP release reveals no more than a randomised response with odds e^ε (Kairouz et al. 2015), whose divergence is
    log((e^(αε) + e^((1−α)ε))/(1 + e^ε))/(α − 1). A replacement under Poisson sampling is a removal and an addition, by the weak
    triangle inequality D_α(P, Q) ≤ (α − ½)/(α − 1) · D_2α(P, R) + D_(2α−1)(R, Q) (Mironov 2017, Prop. 11).
    """
    choose(part, neighbours)  # raises if no accountant prices it
    if not _noise_multiplier(part) > 0:
        return math.inf
    if isinstance(part, FailureDpEvent):
        return 0.0
    pure = _changes(neighbours) * _pure_epsilon(part)
    if math.isinf(order):
        return pure if pure > 0 else math.inf
    if pure > 0:
        return float(np.logaddexp(order * pure, (1 - order) * pure) - np.logaddexp(0.0, pure)) / (order - 1)
    if isinstance(part, PoissonSampledDpEvent) and neighbours == "replace-one":
        there, back = (_divergence(part, further, "add-remove") for further in (2 * order, 2 * order - 1))
        return (order - 0.5) / (order - 1) * there + back
    return _divergence(_poisson_bound(part), order, neighbours)


def failure(part: DpEvent, neighbours: Neighbours) -> float:
    """The probability that one such release reveals anything at all."""
    return _changes(neighbours) * _failure_probability(part)


def _divergence(part: DpEvent, order: float, neighbours: Neighbours) -> float:
    relation = NeighboringRelation.REPLACE_ONE if neighbours == "replace-one" else NeighboringRelation.ADD_OR_REMOVE_ONE
    # a selection's divergence of one order follows from its trials' of all orders
    orders = [order, *RdpAccountant().orders.tolist()] if isinstance(part, RepeatAndSelectDpEvent) else [order]
    accountant = RdpAccountant(orders, relation)
    accountant.compose(_event_for_rdp(part, neighbours))
    return max(0.0, float(accountant.rdp[0]))


def _remedy(part: DpEvent, neighbours: Neighbours) -> str:
    if isinstance(part, SampledWithoutReplacementDpEvent) and neighbours == "add-remove":
        return 'Fixed-size samples have a known price under neighbours="replace-one" only'
    return "No accountant prices these events together"


# ---------------------------------------------------------------- PLD


def _pld_supports(part: DpEvent, neighbours: Neighbours) -> bool:
    match part:
        case GaussianDpEvent() | LaplaceDpEvent() | PureDpEvent() | FailureDpEvent() | NonPrivateDpEvent():
            return True
        case MixtureOfGaussiansDpEvent():
            return neighbours == "add-remove"
        case PoissonSampledDpEvent(event=inner):
            return isinstance(inner, GaussianDpEvent | LaplaceDpEvent | PureDpEvent | NonPrivateDpEvent)
        case _:
            return False


def _pld_epsilon(parts: Counter[DpEvent], delta: float, neighbours: Neighbours, grid: float | None, coarser: float) -> float:
    if grid is None and all(isinstance(part, GaussianDpEvent | FailureDpEvent) for part in parts):
        return _gaussian_epsilon(parts, delta, neighbours)
    if delta == 0:  # only pure events have a price then, and it adds up
        pure = all(_pure_epsilon(part) > 0 for part in parts)
        return _changes(neighbours) * sum(count * _pure_epsilon(part) for part, count in parts.items()) if pure else math.inf
    if _changes(neighbours) * sum(count * _failure_probability(part) for part, count in parts.items()) >= delta:
        return math.inf
    rough = _rough_epsilon(parts, delta, neighbours)
    if rough <= 0:  # so much noise that δ alone covers it
        return 0.0
    if HOPELESS < rough < math.inf:
        return math.inf
    loose = any(isinstance(part, MixtureOfGaussiansDpEvent) for part in parts) or (grid is None and rough > LOOSE)
    while loose and rough > 0:
        before, rough = rough, _compose_distributions(parts, delta, neighbours, _choose_grid(parts, rough))
        loose = rough < before / 2
    if grid is not None and rough / grid > MOST_STEPS:
        raise InputError(f"a grid of {grid:g} is too fine for an ε of about {rough:.3g}: it has more than {MOST_STEPS} steps.")
    if rough == 0:
        return 0.0
    return _compose_distributions(parts, delta, neighbours, grid or min(coarser * _choose_grid(parts, rough), COARSEST))


def _compose_distributions(parts: Counter[DpEvent], delta: float, neighbours: Neighbours, grid: float) -> float:
    total = pld.identity(value_discretization_interval=grid)
    for part, count in parts.items():
        total = total.compose(_distribution(part, count, neighbours, grid, delta))
    return float(total.get_epsilon_for_delta(delta))


def _changes(neighbours: Neighbours) -> int:
    """How many additions or removals one change amounts to: a replacement removes one unit and adds another."""
    return 2 if neighbours == "replace-one" else 1


def _gaussian_epsilon(parts: Counter[DpEvent], delta: float, neighbours: Neighbours) -> float:
    """Gaussians without sampling compose to one Gaussian, whose ε is known exactly; failures only use up δ."""
    changes = _changes(neighbours)
    left = delta - sum(changes * count * _failure_probability(part) for part, count in parts.items())
    precision = sum(count / part.noise_multiplier**2 for part, count in parts.items() if isinstance(part, GaussianDpEvent))
    if left <= 0:
        return math.inf
    return float(get_epsilon_gaussian(1 / (changes * math.sqrt(precision)), left)) if precision else 0.0


def _distribution(part: DpEvent, count: int, neighbours: Neighbours, grid: float, delta: float) -> pld.PrivacyLossDistribution:
    """dp-accounting's privacy loss distribution of `count` repetitions, for a price at this δ."""
    relation = NeighboringRelation.REPLACE_ONE if neighbours == "replace-one" else NeighboringRelation.ADD_OR_REMOVE_ONE
    changes = _changes(neighbours)
    match part:
        case GaussianDpEvent(noise_multiplier=noise):  # T of these are one with noise z/√T
            return pld.from_gaussian_mechanism(
                noise / math.sqrt(count), value_discretization_interval=grid, neighboring_relation=relation
            )
        case PoissonSampledDpEvent(sampling_probability=probability, event=GaussianDpEvent(noise_multiplier=noise)):
            return pld.from_gaussian_mechanism(
                noise, value_discretization_interval=grid, sampling_prob=probability, neighboring_relation=relation
            ).self_compose(count)
        case MixtureOfGaussiansDpEvent():
            return mixture_distribution(part, grid, math.log(RARE * delta / count)).self_compose(count)
        case LaplaceDpEvent(noise_multiplier=noise):
            return pld.from_laplace_mechanism(noise / changes, value_discretization_interval=grid).self_compose(count)
        case PoissonSampledDpEvent(sampling_probability=probability, event=LaplaceDpEvent(noise_multiplier=noise)) if (
            neighbours == "add-remove"
        ):
            return pld.from_laplace_mechanism(noise, value_discretization_interval=grid, sampling_prob=probability).self_compose(
                count
            )
        case _:
            parameters = common.DifferentialPrivacyParameters(
                changes * _pure_epsilon(part), min(1.0, changes * _failure_probability(part))
            )
            return pld.from_privacy_parameters(parameters, value_discretization_interval=grid).self_compose(count)


def _pure_epsilon(part: DpEvent) -> float:
    """The ε of a pure event; sampling with probability q turns ε into ln(1 + q(e^ε − 1))."""
    match part:
        case PureDpEvent(epsilon=value):
            return float(value)
        case LaplaceDpEvent(noise_multiplier=noise):
            return 1 / float(noise)
        case PoissonSampledDpEvent(sampling_probability=probability, event=inner):
            return math.log1p(float(probability) * math.expm1(_pure_epsilon(inner)))
        case _:
            return 0.0


def _failure_probability(part: DpEvent) -> float:
    return float(part.delta) if isinstance(part, FailureDpEvent) else 0.0


def _choose_grid(parts: Counter[DpEvent], rough: float) -> float:
    """Choose a grid so fine that the rounding errors of this many rounds do not matter.

    Losses of one sampled round have a standard deviation of about ε/(5√T); rounding them to a hundredth of ε/√T inflates
    their variance by a quarter of a percent. Large ε bear a coarser grid, and need it: the table has ε/grid entries.
    """
    rough = min(rough, 1e5 * COARSEST)
    grid = DEFAULT_GRID * max(1.0, rough / 10)
    for part, count in parts.items():
        if isinstance(part, PoissonSampledDpEvent | MixtureOfGaussiansDpEvent | LaplaceDpEvent | PureDpEvent):
            grid = min(grid, rough / (100 * math.sqrt(count)))
        if pure := _pure_epsilon(part):
            grid = min(grid, pure / 50)
    return max(grid, rough * 1e-7)


def _rough_epsilon(parts: Counter[DpEvent], delta: float, neighbours: Neighbours) -> float:
    """A quick upper bound on ε: Rényi for the Gaussian parts, the sum for pure ones; δ exceeds the failure probabilities.

    The bound has one minimum over the orders. Fractional ones, which take most of the time, are tried beside the best whole one.
    """
    changes = _changes(neighbours)
    total = sum(changes * count * _pure_epsilon(part) for part, count in parts.items())
    left = delta - changes * sum(count * _failure_probability(part) for part, count in parts.items())

    def bound(orders: list[float]) -> tuple[float, float]:
        gaussian = RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
        for part, count in parts.items():
            match _poisson_bound(part):
                case GaussianDpEvent(noise_multiplier=noise):
                    gaussian.compose(GaussianDpEvent(noise / changes), count)
                case PoissonSampledDpEvent(sampling_probability=probability, event=GaussianDpEvent(noise_multiplier=noise)):
                    gaussian.compose(PoissonSampledDpEvent(probability, GaussianDpEvent(noise / changes)), count)
        found: tuple[float, float] = gaussian.get_epsilon_and_optimal_order(left)
        return found

    epsilon, best = bound(WHOLE_ORDERS)
    near = [order for order in FRACTIONAL_ORDERS if abs(order - best) < 1]
    return float(total + min(epsilon, bound(near)[0] if near else math.inf))


def _poisson_bound(part: DpEvent) -> DpEvent:
    """Of a mixture of Gaussians, a Poisson-sampled Gaussian that costs more: it is moved as far as can be whenever it is moved.

    Likelihood ratios of the one are sums of those of the other, shortened (`privopt.measure.samplers.several_rows`).
    """
    if not isinstance(part, MixtureOfGaussiansDpEvent):
        return part
    unmoved = math.fsum(chance for move, chance in zip(part.sensitivities, part.sampling_probs, strict=True) if move == 0)
    return PoissonSampledDpEvent(min(1.0, 1 - unmoved), GaussianDpEvent(part.standard_deviation / max(part.sensitivities)))


# ---------------------------------------------------------------- RDP


def _rdp_supports(part: DpEvent, neighbours: Neighbours) -> bool:
    match part:
        case GaussianDpEvent() | LaplaceDpEvent() | NonPrivateDpEvent() | FailureDpEvent():
            return True
        case RepeatAndSelectDpEvent(event=GaussianDpEvent()):
            return True
        case PoissonSampledDpEvent(event=GaussianDpEvent()):
            return neighbours == "add-remove"
        case SampledWithoutReplacementDpEvent(event=GaussianDpEvent()):
            return neighbours == "replace-one"
        case _:
            return False


def _rdp_epsilon(parts: Counter[DpEvent], delta: float, neighbours: Neighbours) -> float:
    relation = NeighboringRelation.REPLACE_ONE if neighbours == "replace-one" else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(neighboring_relation=relation)
    left = delta - _changes(neighbours) * sum(count * _failure_probability(part) for part, count in parts.items())
    if left < 0 or (left == 0 < delta):
        return math.inf
    for part, count in parts.items():
        if not isinstance(part, FailureDpEvent):
            accountant.compose(_event_for_rdp(part, neighbours), count)
    return float(accountant.get_epsilon(left))


def _event_for_rdp(part: DpEvent, neighbours: Neighbours) -> DpEvent:
    """The event to give to RDP, whose REPLACE_ONE leaves the doubling of the sensitivity to its caller (PLD's does not)."""
    if neighbours == "add-remove":
        return part
    match part:
        case GaussianDpEvent(noise_multiplier=noise):
            return GaussianDpEvent(noise / 2)
        case LaplaceDpEvent(noise_multiplier=noise):
            return LaplaceDpEvent(noise / 2)
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            return RepeatAndSelectDpEvent(_event_for_rdp(inner, neighbours), mean, shape)
        case SampledWithoutReplacementDpEvent(source_dataset_size=size, sample_size=sample, event=inner):
            noise = min(_noise_multiplier(_event_for_rdp(inner, neighbours)), MOST_NOISE)  # less noise costs more
            return SampledWithoutReplacementDpEvent(size, sample, GaussianDpEvent(noise))
        case _:
            raise UnsupportedEvent(f"rdp cannot account {describe(part)}, under {neighbours}.")


def _noise_multiplier(part: DpEvent) -> float:
    match part:
        case GaussianDpEvent(noise_multiplier=noise) | LaplaceDpEvent(noise_multiplier=noise):
            return float(noise)
        case MixtureOfGaussiansDpEvent(standard_deviation=noise):
            return float(noise)
        case NonPrivateDpEvent():
            return 0.0
        case (
            PoissonSampledDpEvent(event=inner)
            | SampledWithoutReplacementDpEvent(event=inner)
            | RepeatAndSelectDpEvent(event=inner)
        ):
            return _noise_multiplier(inner)
        case _:
            return math.inf
