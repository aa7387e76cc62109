"""The noisy minimum: which of some scores is the least? Only the place is told."""

from dataclasses import dataclass

import numpy as np

from privopt.measure.mechanisms.relative import Relative, pure
from privopt.measure.randomness import Rng
from privopt.perexample.grads import Vector
from privopt.privacy.events import DpEvent


@dataclass(frozen=True)
class noisy_min(Relative):  # noqa: N801  # a constructor that reads as a phrase
    """The place of the least of the scores, each *lowered* by exponential noise of mean z · bound (permute-and-flip).

    **Guarantee** 1/z-DP, if an added example raises every score by something between 0 and `bound`. Proof: take the noise of all
    scores but the i-th as given. Place i is told iff the noise of its score reaches t = (its score) − (the least of the others,
    lowered), which has the probability e^(−max(t, 0)/(z·bound)). The example moves either term upwards, by at most `bound`, so it
    moves t by at most `bound` in either direction, and the probability by a factor of at most e^(1/z).

    Two things the proof needs: scores that move in the same direction (else t could move by 2 · bound), and noise of this sign.
    Noise that *raises* the scores is bounded on the wrong side: among k candidates it can cost k − 1 times as much.

    >>> noisy_min(2.0).event
    PureDpEvent(epsilon=0.5)
    """

    @property
    def event(self) -> DpEvent:
        """What one choice costs."""
        return pure(self.noise_multiplier)

    def choose(self, scores: Vector, bound: float, rng: Rng) -> int:
        """The place."""
        return int(np.argmin(scores - rng.exponential(self.noise_multiplier * bound, len(scores))))
