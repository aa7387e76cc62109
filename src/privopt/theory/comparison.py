"""Comparison: four private methods for non-convex losses, at given numbers.

The orders are Table 1 of Wang, Jayaraman, Evans, Gu: utility is E‖∇F‖ at the released parameters, gradients are all that a run
takes; both leave out constants, and those of the loss. Proven bounds have them. Private SpiderBoost (Arora et al. 2022) has only
its orders here, which is all that the paper quotes.
"""

import math
from dataclasses import dataclass, replace

from privopt.theory import wang_stochastic_nonconvex, zhang_smooth_erm, zhou_private_nonconvex
from privopt.theory.theorems import Bound, Noise, Problem, check_positive, log_inverse


@dataclass(frozen=True)
class Order:
    """Utility and gradients of a method, up to constants."""

    method: str
    utility: float
    gradients: float


@dataclass(frozen=True)
class Row:
    """A method at a problem: its orders, what its paper prescribes, and what that is proven to reach.

    `learning_rate` goes with the printed noise. `failing` names the conditions of the prescribing theorem that do not hold; the
    noise and the bounds have their own.
    """

    order: Order
    rounds: int | None = None
    batch: int | None = None
    learning_rate: float | None = None
    noise: Noise | None = None
    printed_bound: Bound | None = None
    needed_bound: Bound | None = None
    failing: tuple[str, ...] = ()


def orders(n: int, d: int, *, epsilon: float, delta: float) -> tuple[Order, Order, Order, Order]:
    """Table 1, every constant taken as 1.

    >>> [f"{order.method} {order.utility:.3f}" for order in orders(32561, 123, epsilon=0.2, delta=1e-5)]
    ['RRPSGD 0.164', 'DP-GD 0.076', 'Private SpiderBoost 0.032', 'DP-SRM 0.032']
    """
    check_positive(n=n, d=d, epsilon=epsilon)
    log = log_inverse(delta)
    information, cost = n * epsilon, d * log
    recursive = cost ** (1 / 3) / information ** (2 / 3)
    return (
        Order("RRPSGD", (cost * (math.log(n) + log)) ** (1 / 4) / math.sqrt(information), float(n) ** 2),
        Order("DP-GD", cost ** (1 / 4) / math.sqrt(information), n * information / math.sqrt(cost)),
        Order("Private SpiderBoost", recursive, information**2 / cost + n ** (5 / 3) * epsilon ** (2 / 3) / cost ** (1 / 3)),
        Order("DP-SRM", recursive, information**2 / cost),
    )


def compare(problem: Problem, *, epsilon: float, delta: float) -> tuple[Row, Row, Row, Row]:
    """Table 1 with what each paper prescribes, its noise beside what is needed, and E‖∇F‖ as far as it is proven.

    E‖∇F‖ ≤ √(E‖∇F‖²) turns the bounds of RRPSGD and DP-GD into this unit. It is never above G, so a larger bound says nothing.
    """
    rrpsgd, gd, spiderboost, srm = orders(problem.n, problem.d, epsilon=epsilon, delta=delta)
    return (
        _random_rounds(rrpsgd, problem, epsilon, delta),
        _descent(gd, problem, epsilon, delta),
        Row(spiderboost),
        _recursive(srm, problem, epsilon, delta),
    )


def _random_rounds(order: Order, problem: Problem, epsilon: float, delta: float) -> Row:
    plan = zhang_smooth_erm.rrpsgd_plan(problem, epsilon=epsilon, delta=delta)
    printed, needed = (
        _root(zhang_smooth_erm.rrpsgd_bound(problem, rounds=plan.rounds, noise=noise))
        for noise in (plan.noise.printed, plan.noise.needed)
    )
    return Row(order, plan.rounds, 1, plan.learning_rate, plan.noise, printed, needed, plan.failing)


def _descent(order: Order, problem: Problem, epsilon: float, delta: float) -> Row:
    plan = zhou_private_nonconvex.gd_expected_plan(problem, epsilon=epsilon, delta=delta)
    printed, needed = (
        _root(zhou_private_nonconvex.gd_expected_bound(problem, rounds=plan.rounds, noise=noise))
        for noise in (plan.noise.printed, plan.noise.needed)
    )
    return Row(order, plan.rounds, problem.n, plan.learning_rate, plan.noise, printed, needed, plan.failing)


def _recursive(order: Order, problem: Problem, epsilon: float, delta: float) -> Row:
    plan = wang_stochastic_nonconvex.plan(problem, epsilon=epsilon, delta=delta)
    noise = wang_stochastic_nonconvex.noise(problem, plan, epsilon=epsilon, delta=delta)
    printed = wang_stochastic_nonconvex.bound(problem, plan, first=noise.first.printed, later=noise.later.printed)
    needed = wang_stochastic_nonconvex.bound(problem, plan, first=noise.first.needed, later=noise.later.needed)
    return Row(order, plan.rounds, plan.batch, plan.learning_rate, noise.later, printed, needed, plan.failing)


def _root(squared: Bound) -> Bound:
    return replace(squared, of="E‖∇F‖", value=None if squared.value is None else math.sqrt(squared.value))
