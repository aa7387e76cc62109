"""The sparse vector technique: is a value above a threshold? Any number of "no" are free, one "yes" ends what was paid."""

from dataclasses import dataclass

from privopt.measure.mechanisms.relative import Relative, pure
from privopt.measure.randomness import Rng
from privopt.privacy.events import DpEvent


@dataclass(frozen=True)
class above_threshold(Relative):  # noqa: N801  # a constructor that reads as a phrase
    """Compare values with one hidden threshold: Laplace(2 z · bound) on it, fresh Laplace(4 z · bound) on each value.

    **Guarantee** 1/z-DP for all answers from one `hidden` threshold up to and including its first "yes", if one example moves
    each value by at most `bound` (Dwork, Roth, The Algorithmic Foundations of Differential Privacy, Theorem 3.23). Values may be
    chosen by earlier answers. Proof, Δ = bound: take the noise of the "no" answers as given, and let g be the largest of their
    noisy values; neighbours move g by at most Δ. The answers are "no … no yes" iff the hidden threshold is above g and the last
    noisy value reaches it. Moving the threshold's noise by the change of g, at most Δ, makes up for it at a price of e^(Δ/2zΔ);
    moving the last value's noise by that change and its own, at most 2Δ, at e^(2Δ/4zΔ). Their product is e^(1/z).

    After a "yes" the hidden threshold must be drawn anew, and paid for anew. Drawing it anew after a "no" would break the
    argument, for then each "no" has a g of its own.
    """

    @property
    def event(self) -> DpEvent:
        """What one hidden threshold costs."""
        return pure(self.noise_multiplier)

    def hidden(self, threshold: float, bound: float, rng: Rng) -> float:
        """The threshold with its noise: secret, and kept until the first "yes"."""
        return threshold + float(rng.laplace(0.0, 2 * self.noise_multiplier * bound))

    def exceeds(self, value: float, hidden: float, bound: float, rng: Rng) -> bool:
        """Whether the value, with noise of its own, reaches the hidden threshold."""
        return value + float(rng.laplace(0.0, 4 * self.noise_multiplier * bound)) >= hidden
