"""Filters: a cap that holds although later runs are chosen after looking at earlier answers.

The price of a path as it happened bounds a plan that was fixed beforehand. It does not bound somebody who looks at the first
answer and then chooses what to ask next, even if every path costs no more than (ε, δ): for each answer they choose the
continuation that fails more often just there, and the failures of different continuations add up. With privacy loss
distributions δ can be exceeded by half (tests/privacy/test_filters.py computes it).

**Theorem** (Feldman & Zrnic 2021, Thm. 3.1; Rogers et al. 2016 define filters). Fix an order α > 1 and a limit B before anything
is released. Let each mechanism be chosen from all earlier answers, let it have Rényi divergence at most ρ_i of order α, in both
directions, given these answers, and stop before Σ ρ_i would exceed B. Then all answers together have divergence at most B.

*Proof.* Let P and Q be the distributions of the answers on two neighbouring data sets, and
M_k = Π_{i≤k} (p_i/q_i)^α · exp(−(α−1) Σ_{i≤k} ρ_i), whose factors are conditional on earlier answers. ρ_i is known before
answer i, and E_Q[(p_i/q_i)^α | earlier] ≤ exp((α−1)ρ_i), so M is a supermartingale under Q and E_Q[M_end] ≤ 1. Along every
path Σ ρ_i ≤ B. So E_Q[Π (p_i/q_i)^α] ≤ exp((α−1)B), which is the claim; the same holds with P and Q exchanged. ∎

The order has to be one for all paths. "Go on while some order of a list still has room" lets the path choose the order, so that
each order bounds the failures of its own paths only, and these bounds add up over the list. Here the order follows from the
cap only: the one at which most of a Gaussian fits. It holds nine tenths of the ε that a fixed plan could have.

**Conversion** (Canonne, Kamath & Steinke 2020, Prop. 12). Divergence B of order α gives (ε, δ)-DP with
ε = B + log(1 − 1/α) − log(αδ)/(α − 1). A share of δ is set aside for releases that may fail: let P' be P with every such release
answered from the other data set. A path holds failures of at most that share in sum, so P and P' differ by no more in total
variation; and P' and Q differ by B only.

Without δ the order is ∞, and the ε of pure mechanisms adds up: basic composition, a filter as well.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privopt.privacy.accountants import failure, renyi
from privopt.privacy.budget import Budget
from privopt.privacy.events import DpEvent, atoms

FAILURES = 0.1  # share of δ that is set aside for releases that may fail
ORDERS = 1 + np.geomspace(0.01, 2.0**20, 2000)
INTEGERS = 16  # larger orders are rounded to integers, which accountants price faster


@dataclass(frozen=True)
class RenyiFilter:
    """A cap on releases that may be chosen adaptively, at a Rényi order that is fixed with the cap.

    **Guarantee** However releases are chosen, if `holds` allowed them all they are (ε, δ)-DP together.

    >>> from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent
    >>> cap = RenyiFilter(Budget(1.0, 1e-5), best_order(Budget(1.0, 1e-5)))
    >>> round(cap.used(SelfComposedDpEvent(GaussianDpEvent(8.0), 3)), 2), cap.holds(GaussianDpEvent(4.0))
    (0.78, False)
    """

    budget: Budget
    order: float

    @cached_property
    def limit(self) -> float:
        """The largest divergence that the cap allows."""
        return float(_limit(self.budget, self.order))

    def used(self, event: DpEvent) -> float:
        """The share of the cap that these releases use; above 1, they exceed it."""
        divergence = failures = 0.0
        for part, count in atoms(event):
            divergence += count * renyi(part, self.order, self.budget.neighbours)
            failures += count * failure(part, self.budget.neighbours)
        return max(_share(divergence, self.limit), _share(failures, FAILURES * self.budget.delta))

    def holds(self, event: DpEvent) -> bool:
        """Whether these releases fit into the cap."""
        return self.used(event) <= 1


def best_order(budget: Budget) -> float:
    """The order at which most of a Gaussian fits: its divergence is proportional to the order."""
    if budget.delta == 0:
        return math.inf
    best = float(ORDERS[np.argmax(_limit(budget, ORDERS) / ORDERS)])
    return best if best < INTEGERS else float(round(best))


def _limit(budget: Budget, order: float | np.ndarray) -> float | np.ndarray:
    if budget.delta == 0:
        return budget.epsilon
    return budget.epsilon - np.log1p(-1 / order) + np.log((1 - FAILURES) * budget.delta * order) / (order - 1)


def _share(part: float, total: float) -> float:
    return 0.0 if part == 0 else part / total if total > 0 else math.inf
