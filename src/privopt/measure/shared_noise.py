"""Shared noise: each device adds its part of the noise, so that no single party adds it all."""

import math
from dataclasses import dataclass, field
from typing import Any

from privopt.errors import CompositionError
from privopt.measure.clips import automatic, l2
from privopt.measure.measurement import Carry, Noisy
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import Term
from privopt.measure.randomness import Rng
from privopt.measure.samplers import Sampler
from privopt.measure.units import Unit, each_user
from privopt.needs import Needs, needs_of
from privopt.perexample.grads import Oracle
from privopt.privacy.events import DpEvent
from privopt.state import PublicState


@dataclass(frozen=True)
class shared_noise:  # noqa: N801  # a constructor that reads as a phrase
    """The noisy mean of users' clipped vectors, whose noise is drawn by the devices of the users that take part.

    Each of k devices adds N(0, (zC)²/k) on each coordinate, so the sum of all carries N(0, (zC)²). Of devices that do not
    answer, or whose answer is refused, the server adds the share: the noise of the sum does not depend on who answers.

    **Guarantee** Query: Σ of the vectors of a draw of users, each clipped to l2 norm C: one user moves it by at most C. Given the
    draw, the noise of the *sum* is N(0, (zC)² I), whatever k is and whoever answers. Event: sampling(Gaussian(z)). It is the
    guarantee of `gaussian(z)` for whoever sees nothing but sums, which takes a secure aggregation: a server that sees the answer
    of a single device sees it under that device's share of the noise only. It relies on devices that draw their share.
    """

    sampler: Sampler
    term: Term
    noise_multiplier: float
    unit: Unit = field(default=each_user(), kw_only=True)

    def __post_init__(self) -> None:
        gaussian(self.noise_multiplier)  # validates it
        if type(self.term.clip) not in (l2, automatic):
            raise CompositionError("devices that add noise themselves clip to a bound that is fixed. Use l2 or automatic.")
        if getattr(self.term.query, "unit", None) != self.unit:
            raise CompositionError(f"shared noise is that of users' devices. Use client_update(…), not {self.term.query}.")

    @property
    def needs(self) -> Needs:
        return needs_of(self.sampler, self.term)

    def event(self, round_: int) -> DpEvent:
        """What this round will cost."""
        return self.sampler.amplify(gaussian(self.noise_multiplier).event, round_)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        """Draw users, ask for their noisy sum, and add the noise that did not come."""
        users = self.sampler.draw(oracle.size, round_, rng)
        vectors: Any = self.term.query(oracle, users, at)
        bound = self.term.clip.bound
        total, arrived = vectors.noisy_sum(self.term.clip, self.noise_multiplier * bound)
        missing = gaussian(self.noise_multiplier * math.sqrt(max(0.0, 1 - arrived)))
        value = missing.release(total, bound, rng) * (self.term.weight / self.sampler.expected(oracle.size))
        return Noisy(value, self.event(round_))
