"""Calibration: the least noise that keeps a plan within its budget."""

import math
from collections.abc import Callable
from typing import NamedTuple

from privopt.errors import BudgetExceeded
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import DpEvent, NoOpDpEvent, compose

WASTE = 2e-3  # largest share of ε that may stay unused: well inside the promised 1 %
COARSER = 8.0  # grid factor of the first search: prices within 1 %, six times as fast


def calibrate(
    plan: Callable[[float], DpEvent],
    budget: Budget,
    *,
    spent: DpEvent | None = None,
    accountant: Accountant = "auto",
) -> float:
    """The smallest noise multiplier whose planned event, after what is already `spent`, stays within the budget.

    `plan` turns a noise multiplier into the event of the run, for example `lambda z: dp_sgd(..., noise_multiplier=z)
    .planned_event()`.

    **Guarantee** The answer costs at most ε, and at least 0.99 ε (up to ε = 10⁶, beyond which nothing is protected).

    >>> from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent
    >>> round(calibrate(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), 100), Budget(1.0, 1e-5)), 1)
    37.3
    """
    before = spent or NoOpDpEvent()

    def cost(log_noise: float, coarser: float = 1.0) -> float:
        event = compose([before, plan(math.exp(log_noise))])
        return epsilon(event, budget.delta, budget.neighbours, accountant=accountant, coarser=coarser)

    already = epsilon(before, budget.delta, budget.neighbours, accountant=accountant)
    if already >= budget.epsilon:
        raise BudgetExceeded(
            f"ε = {already:.4g} of {budget.epsilon:.4g} is spent already, so no noise is large enough. "
            "Raise the budget, or start from a ledger with less spent."
        )

    target = budget.epsilon * (1 - WASTE / 2)
    nearby = _solve(lambda log_noise: cost(log_noise, COARSER), target, WASTE / 2)
    found = _solve(cost, target, WASTE / 2, nearby or START)
    if found is None:
        raise BudgetExceeded(
            f"no noise keeps this plan within ε = {budget.epsilon:.4g}, δ = {budget.delta:.3g}: what else it releases already "
            "costs more, or Rényi's bound, by which it is priced, does not go that low. A larger ε or δ would help."
        )
    return math.exp(found.x)


class Place(NamedTuple):
    """A logarithm of the noise where the cost is close to the target, and the slope of log cost there."""

    x: float
    slope: float


START = Place(0.0, -1.0)


def _solve(cost: Callable[[float], float], target: float, tolerance: float, start: Place = START) -> Place | None:
    """Find x with |cost(x) − target| ≤ tolerance · target, for a falling cost: bracketed secants in log cost.

    One evaluation takes tenths of a second. log ε is almost linear in log noise, so secants need four or five of them, and one
    or two when started nearby.
    """
    over, under = -math.inf, math.inf  # cost(over) > target ≥ cost(under)
    (x, slope), before = start, None
    for _ in range(100):
        value = cost(x)
        gap = math.log(value / target) if 0 < value < math.inf else math.copysign(math.inf, value - target)
        if abs(gap) <= tolerance:
            return Place(x, slope)
        if gap > 0:
            over = x
        else:
            under = x
        if math.isfinite(gap):
            if before is not None and before[0] != x:
                slope = min(-0.2, (gap - before[1]) / (x - before[0]))
            before = (x, gap)
        guess = x + max(-3.0, min(3.0, gap / -slope))
        x = guess if over < guess < under else (over + under) / 2
        if under - over < 1e-12:
            break
        if abs(x) > 60:
            return Place(x, slope) if x < 0 else None
    return Place(under, slope)
