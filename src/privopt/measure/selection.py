"""Selection: the best of a secret, random number of private trials.

Who tries several settings on the same rows and keeps the best has to pay for all of them, or for this: the number of trials is
drawn at random and kept secret, each trial takes settings at random and scores its own result privately, and only the trial with
the best score is released. That takes two to three times the noise of a single training, even for many settings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from privopt.errors import CompositionError
from privopt.measure.randomness import Rng, from_key, key
from privopt.privacy.events import DpEvent, GaussianDpEvent, RepeatAndSelectDpEvent, atoms
from privopt.privacy.ledger import Ledger, Run

T = TypeVar("T")


@dataclass(frozen=True)
class best_of_geometric:  # noqa: N801  # a constructor that reads as a phrase
    """The best of K trials, where K is geometric with this mean: K = 1, 2, … with probability γ(1 − γ)^(K − 1), γ = 1/mean.

    **Guarantee** RepeatAndSelect(Gaussian(z), mean, 1), if every trial is made of Gaussian answers on all rows, with noise
    multipliers z₁, z₂, … such that Σ 1/zᵢ² ≤ 1/z². What is released is one trial: its candidate, its score and its result.

    Derivation. A trial Q draws a candidate c uniformly from a public list, trains with it, measures a score, and gives (c, score,
    result). Given c, its answers are Gaussians one after another, each of which may depend on earlier ones. They are
    (α, α/(2z²))-Rényi-DP for every α > 1, since Rényi divergences of adaptive compositions add up for a fixed α. c is drawn
    without the data, so for each α the divergence of Q is at most the largest of those given c: the same α/(2z²).

    K trials, with randomness of their own, are made, and the one with the largest score is released, the first of them if
    scores are equal. With K drawn without the data, and not released, Papernot and Steinke (Hyperparameter Tuning with Rényi
    Differential Privacy, ICLR 2022, Theorem 2, η = 1) prove for all α, α̂ > 1

        ε'(α) ≤ ε(α) + 2 (1 − 1/α̂) ε(α̂) + 2 ln(1/γ)/α̂ + ln(mean)/(α − 1).

    dp-accounting prices that as RepeatAndSelectDpEvent. The theorem needs that nothing else leaves: not K, not the other scores,
    not a warning or an error of a trial. (The time that all of it takes tells K, and is not covered.) A trial whose result is not
    finite counts as the worst: it has the score −∞. For fixed K, or trials that are stopped by their scores, the theorem
    is false.

    >>> best_of_geometric(16, 9.0).event
    RepeatAndSelectDpEvent(event=GaussianDpEvent(noise_multiplier=9.0), mean=16.0, shape=1.0)
    """

    mean: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not (self.mean > 1 and self.noise_multiplier >= 0):
            raise CompositionError(
                f"best_of_geometric({self.mean}, {self.noise_multiplier}): the mean number of trials is > 1, and a noise "
                "multiplier ≥ 0."
            )

    @cached_property
    def event(self) -> DpEvent:
        """What all trials cost together."""
        return RepeatAndSelectDpEvent(GaussianDpEvent(self.noise_multiplier), float(self.mean), 1.0)

    def release(
        self, candidates: int, trial: Callable[[int, Ledger, Rng], tuple[float, T]], *, spending: Run, rng: Rng
    ) -> tuple[int, float, T]:
        """Pay, make the trials and give the best: its candidate, its score and its result.

        `trial(candidate, ledger, rng)` charges the ledger, which is secret, with all that it measures, and gives a score and a
        result. A trial that costs more than this selection's price allows is an error.
        """
        if candidates < 2:
            raise CompositionError(f"{candidates} candidates leave nothing to select from.")
        spending.affordable([self.event])  # a ledger without charges may reserve its cap for this
        spending.pay([self.event])
        best: tuple[int, float, T] | None = None
        for _ in range(int(rng.geometric(1 / self.mean))):
            candidate, spent = int(rng.integers(candidates)), Ledger()
            score, result = trial(candidate, spent, from_key(key(rng)))
            self.check(spent.event)
            if best is None or score > best[1]:
                best = candidate, score, result
        assert best is not None
        return best

    def check(self, spent: DpEvent) -> None:
        """Refuse a trial that cost more than one Gaussian(z), or something else."""
        if not costs_at_most(spent, self.noise_multiplier):
            raise CompositionError(
                "a trial of a search measured more than the search has paid for, or with noise that is not Gaussian: nothing is "
                "released."
            )


def costs_at_most(event: DpEvent, noise_multiplier: float) -> bool:
    """Whether all of an event is Gaussian answers on all rows that cost no more than one with this noise multiplier.

    >>> from privopt.privacy.events import SelfComposedDpEvent
    >>> costs_at_most(SelfComposedDpEvent(GaussianDpEvent(2.0), 4), 1.0), costs_at_most(GaussianDpEvent(0.9), 1.0)
    (True, False)
    """
    precision = 0.0
    for part, count in atoms(event):
        if not isinstance(part, GaussianDpEvent) or not part.noise_multiplier > 0:
            return False
        precision += count / part.noise_multiplier**2
    return precision * noise_multiplier**2 <= 1 + 1e-9  # rounding errors
