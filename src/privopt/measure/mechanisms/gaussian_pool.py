"""A pool of Gaussian noise: one Gaussian release, divided among answers as they turn out to be needed."""

import math
from dataclasses import dataclass

from privopt.errors import BudgetExceeded
from privopt.measure.mechanisms.gaussian import gaussian
from privopt.measure.mechanisms.relative import Relative
from privopt.measure.randomness import Rng
from privopt.perexample.grads import Array
from privopt.privacy.events import DpEvent


@dataclass(frozen=True)
class gaussian_pool(Relative):  # noqa: N801  # a constructor that reads as a phrase
    """Answers that share what one Gaussian(z) costs: an answer that takes the share p of it has the noise multiplier z/√p.

    **Guarantee** Gaussian(z) for all answers together, if their shares add up to at most 1; how many there are, what they are
    asked and which share each takes may depend on earlier answers, and on whatever else was released.

    Derivation. Let b = 0 or 1 say which of two neighbouring data sets is there. An answer's noise across the direction in which
    the two differ says nothing of b. Along it, in units of the bound, the answer is N(cb, z²/p) with 0 ≤ c ≤ 1, and so it is made
    from Y ~ N(bp/z², p/z²), the increment over a time p/z² of a Brownian motion with drift b, by scaling it (c = 1) and adding
    noise (c < 1). Answers one after another are increments one after another of *one* such path, which is read at times that
    earlier answers chose, none later than 1/z². All that is ever answered is therefore made from the path up to 1/z² by means
    that know nothing of b, and all that this path says of b is its end, N(b/z², 1/z²): it is one Gaussian(z).

    Releases of other kinds in between, at most K of which each is ε-DP whatever came before, are each made from one bit of an
    ε-DP randomised response, independent of the path (Kairouz, Oh, Viswanath). So all releases together are made from the
    path and K such bits: Gaussian(z) composed with K × ε-DP, as accountants compose them. Time that nobody reads only helps.
    """

    @property
    def event(self) -> DpEvent:
        """What all of it costs."""
        return gaussian(self.noise_multiplier).event

    def release(self, total: Array, bound: float, share: float, spent: float, rng: Rng) -> tuple[Array, float]:
        """The sum, hidden by this share of the pool, and what is spent of it afterwards."""
        if not (share > 0 and spent >= 0 and spent + share <= 1):
            raise BudgetExceeded(f"{spent:.6g} of a pool of noise is spent, so an answer cannot take {share:.6g} of it.")
        return gaussian(self.noise_multiplier / math.sqrt(share)).release(total, bound, rng), spent + share
