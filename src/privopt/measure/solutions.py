"""A stable solution: the last iterate of gradient descent on all rows, to which noise is added once.

Descent itself sees the data as they are, step after step, so only its noisy last iterate may leave: no earlier one, no loss, no
test whether it converged. It takes exactly the planned steps. How far one example can move the last iterate is bounded by the
constants of the loss, so these must hold for every row that there could be: an oracle has to state them
(`privopt.perexample.grads.Convex`), and each gradient is clipped to the Lipschitz constant besides.
"""

import math
from dataclasses import dataclass
from typing import Literal

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Carry, Noisy
from privopt.measure.mechanisms import Independent
from privopt.measure.randomness import Rng
from privopt.needs import Needs, Offer, OracleNeed, check_oracle
from privopt.perexample.grads import Oracle
from privopt.privacy.events import DpEvent
from privopt.state import PublicState

Sensitivity = Literal["tight", "paper"]
ROUNDING = 2.0**-51  # × n²: how far rounding moves a sum of n gradients apart, relative to what one example does
SLACK = 1e-9


@dataclass(frozen=True)
class stable_solution:  # noqa: N801  # a constructor that reads as a phrase
    """w₀ − w_T + noise, where w ← w − η((1/n) Σ ∇fᵢ(w) + μw) for T steps over all rows.

    **Guarantee** Let every fᵢ be convex, L-Lipschitz and β-smooth, n public, and one example added or removed. Then w_T moves by

        η L T / n                       without a ridge term, for η ≤ 2/β
        L (1 − (1 − ημ)^T) / (nμ)       with (μ/2)‖w‖², for η ≤ 2/(β + 2μ)

    at most, and by twice that if one is replaced, which the accountants know. The event is the mechanism's.

    *Proof.* S and S′ = S ∪ {x} share the rows of S, at most n of them, so F = (1/n) Σ over S is convex and β-smooth, and
    v ↦ v − η′∇F(v) moves no two points apart for η′ ≤ 2/β (expand the square: ⟨v − v′, ∇F(v) − ∇F(v′)⟩ is at least
    ‖∇F(v) − ∇F(v′)‖²/β). With η′ = η/(1 − ημ), which is ≤ 2/β exactly for η ≤ 2/(β + 2μ),

        w₊ − w′₊ = (1 − ημ) [(w − η′∇F(w)) − (w′ − η′∇F(w′))] + (η/n) ∇f_x(w′),

    so Δ₊ ≤ (1 − ημ)Δ + ηL/n. Sum from Δ = 0. L belongs to the data's loss only: the ridge term is the same for both. Nothing is
    asked of ŵ or of a ball around it. ∎

    `sensitivity="paper"` takes half of the replace-one bounds that Zhang, Zheng, Mou, Wang prove, 3LTη/n and 5L(μ+β′)/(nμβ′) with
    β′ = β + μ, under their steps η ≤ 1/β and 1/(β′ + μ). They exceed the above, so they hold as well, for comparison.

    *In floating point* a sum of n vectors of length ≤ L errs by at most n²uL, u = 2⁻⁵³, in each of the two runs: the bound is
    larger by 2⁻⁵¹n², a millionth for fifty thousand rows.

    >>> from privopt.measure.mechanisms import gamma_norm, gaussian
    >>> round(stable_solution(100, 4.0, 1.0, 0.25, gaussian(2.0)).bound(1000), 6)
    0.4
    >>> round(stable_solution(100, 2.0, 1.0, 0.25, gamma_norm(2.0), strong_convexity=0.1).bound(1000), 6)
    0.01
    """

    steps: int
    learning_rate: float
    lipschitz: float
    smoothness: float
    mechanism: Independent
    strong_convexity: float = 0.0
    sensitivity: Sensitivity = "tight"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise CompositionError(f"descent takes at least one step, not {self.steps}.")
        for name in ("learning_rate", "lipschitz", "smoothness"):
            if not 0 < getattr(self, name) < math.inf:
                raise CompositionError(f"{name} is {getattr(self, name)}; stability is known for finite numbers > 0 only.")
        if not 0 <= self.strong_convexity < math.inf:
            raise CompositionError(f"strong_convexity is {self.strong_convexity}; it is a finite number ≥ 0.")
        if self.sensitivity not in ("tight", "paper"):
            raise CompositionError(f"sensitivity is {self.sensitivity!r}; it is 'tight' or 'paper'.")
        if self.mechanism.order != 2:
            raise CompositionError(
                f"{type(self.mechanism).__name__} hides an l1 change, but a stable solution moves by a bounded l2 distance. "
                "Use gaussian, or gamma_norm for δ = 0."
            )
        if self.learning_rate > self.longest_step * (1 + SLACK):
            raise CompositionError(
                f"learning_rate is {self.learning_rate:.6g}, but descent is known to be stable up to {self.longest_step:.6g} "
                f"only, for smoothness {self.smoothness:.6g} and strong convexity {self.strong_convexity:.6g}. Step shorter."
            )

    @property
    def longest_step(self) -> float:
        """2/(β + 2μ); half of that in the paper."""
        return (2 if self.sensitivity == "tight" else 1) / (self.smoothness + 2 * self.strong_convexity)

    @property
    def needs(self) -> Needs:
        return frozenset({_Constants(self.lipschitz, self.smoothness)})

    def bound(self, size: int) -> float:
        """How far the end of the descent moves when one example is added or removed."""
        convexity, share = self.strong_convexity, self.learning_rate * self.strong_convexity
        if self.sensitivity == "paper" and convexity:
            total = self.smoothness + convexity
            moved = 2.5 * (convexity + total) / (convexity * total)
        elif convexity:
            moved = -math.expm1(self.steps * math.log1p(-share)) / convexity if share < 1 else 1 / convexity
        else:
            moved = (1.0 if self.sensitivity == "tight" else 1.5) * self.steps * self.learning_rate
        return moved * self.lipschitz / size * (1 + ROUNDING * size**2)

    def event(self, round_: int) -> DpEvent:
        """What the one release costs."""
        return self.mechanism.event

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        """Descend, then hide."""
        check_oracle(self.needs, Offer.of(oracle))  # here, too: without the constants there is no guarantee
        cut, end = l2(self.lipschitz), at.current
        for _ in range(self.steps):
            gradient = oracle(end, None).clipped_sum(cut) / oracle.size + self.strong_convexity * end
            end = end - self.learning_rate * gradient
        return Noisy(self.mechanism.release(at.current - end, self.bound(oracle.size), rng), self.event(round_))


@dataclass(frozen=True)
class _Constants(OracleNeed):
    """Losses whose Lipschitz constant and smoothness are at most those planned for."""

    lipschitz: float
    smoothness: float

    def missing(self, offer: Offer) -> str | None:
        for name in ("lipschitz", "smoothness"):
            promised, assumed = getattr(offer, name), getattr(self, name)
            if not promised <= assumed * (1 + SLACK):
                return (
                    f"a stable solution was planned for {name} {assumed:.6g}, but this oracle promises {promised:.6g}: the plan "
                    "does not bound what one example can do. Linear models on a LimitedDesign have finite constants, with the "
                    "logistic, multinomial or Huber loss; squared loss and networks have none."
                )
        return None
