"""Whether persons are drawn, or their rows one by one: whichever needs less noise.

Per expected row of a batch, drawing rows needs the noise z′/m where drawing persons needs z: m is the mean number of rows of a
person, and z′ what `privopt.measure.samplers.several_rows` asks for. Where z is large, z′ is near kz for at most k rows, so rows
never need less. Where z is below 1, because batches are a small part of the data, a second row of a person in a batch is too
rare to cost much. The choice depends on public numbers only.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.samplers import poisson
from privopt.measure.units import each_person, rows_of_persons
from privopt.methods import Method
from privopt.methods.problem import Problem
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import DpEvent

WORTH = 0.8  # of the noise of persons: less is not worth it, because single rows are longer than means, and more is clipped
UNEVEN = 4.0  # times the mean: if some persons may have more rows than that, drawing rows does not pay

Plan = Callable[[float], DpEvent]  # what a run with this noise multiplier costs


def rows_need_less_noise(
    by_person: Plan, by_row: Plan, persons: int, rows: int, most: int, budget: Budget, accountant: Accountant
) -> bool:
    """Whether drawing rows needs less noise for a batch of as many expected rows, under this budget.

    A cap of `most` below the mean leaves rows out; how many is not public, so then persons are drawn.

    >>> from functools import partial
    >>> from privopt.measure.samplers import several_rows
    >>> from privopt.privacy.events import SelfComposedDpEvent
    >>> def plan(share, most, noise):
    ...     return SelfComposedDpEvent(several_rows(share, most, noise), 300)
    >>> [rows_need_less_noise(partial(plan, q, 1), partial(plan, q, 4), 1000, 4000, 4, Budget(3.0, 1e-6), "auto")
    ...  for q in (0.001, 0.3)]
    [True, False]
    """
    mean = rows / persons
    if budget.neighbours != "add-remove" or budget.delta == 0 or accountant == "rdp" or not mean <= most <= UNEVEN * mean:
        return False
    event = by_row(WORTH * mean * calibrate(by_person, budget, accountant=accountant))
    return epsilon(event, budget.delta, budget.neighbours, accountant=accountant) <= budget.epsilon


def choose_sampling(method: Method, problem: Problem, rows: int, most: int, budget: Budget, accountant: Accountant) -> Problem:
    """The problem of persons, or of their rows if that needs less noise: in as many rounds, of as many expected rows."""
    recipe, share = method.build(problem, 1.0), problem.batch / problem.size
    if not method.private or not all(_is_gaussian(one, share) for one in recipe.measurements):
        return problem
    chosen = problem.choosing(batch_size=max(1, round(share * rows)), rounds=recipe.rounds)
    by_row = replace(chosen, size=rows, unit=rows_of_persons(most))
    plans = partial(_cost, method, problem), partial(_cost, method, by_row)
    return by_row if rows_need_less_noise(*plans, problem.size, rows, most, budget, accountant) else problem


def _is_gaussian(measured: object, share: float) -> bool:
    """Whether Poisson batches of this share of the persons are hidden by Gaussian noise."""
    if not isinstance(measured, Measurement) or not isinstance(measured.mechanism, gaussian):
        return False
    return measured.unit == each_person() and measured.sampler == poisson(share)


def _cost(method: Method, problem: Problem, noise_multiplier: float) -> DpEvent:
    return method.build(problem, noise_multiplier).planned_event()
