"""Dropout that a replay repeats: each round has random numbers of its own. They hide nothing."""

from privopt.measure.randomness import Rng
from privopt.perexample.torch.draws import begin


class Dropout:
    """Seeds of torch's own generators."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @classmethod
    def drawn(cls, rng: Rng) -> "Dropout":
        """For a run whose randomness this is."""
        return cls(int(rng.integers(2**62)))

    def begin(self, *place: int) -> None:
        """The numbers of this round (and piece of it) come next, on every device."""
        begin(hash((self.seed, *place)) % 2**63)  # of numbers: the same everywhere
