"""An open round: a measurement whose batch is processed in pieces, for a training loop of the user's own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.errors import CompositionError
from privopt.measure.measurement import Measurement, Noisy
from privopt.measure.randomness import Rng
from privopt.perexample.grads import Array, PerExampleGrads

CLOSED = "this round is closed: it has answered, or the sum of one of its pieces failed. A round answers once; begin the next."


class OpenRound:
    """One round: rows are drawn once, each piece's clipped vectors are added, and their mean is hidden at the end.

    **Guarantee** That of the measurement, whatever fails: a piece is used up before its sum is computed, so it counts at most
    once; a round with a sum that failed stays closed; the answer is drawn once. A round without rows is hidden like any other.
    """

    def __init__(self, measurement: Measurement, size: int, round_: int, rng: Rng, zero: Array, most: int) -> None:
        if len(measurement.terms) != 1:
            raise CompositionError("a round in pieces has one clipped query.")
        self._term, self._expected = measurement.terms[0], measurement.sampler.expected(size)
        self._mean: Array | None = zero  # None: the round is closed
        rows = measurement.sampler.draw(size, round_, rng)
        self._hidden = measurement.begin(zero, measurement.bound / self._expected, round_, rng)
        self.rows = np.arange(size) if rows is None else rows
        self.parts: Sequence[NDArray[Any]] = [self.rows[start : start + most] for start in range(0, len(self.rows), most)]
        self._added = 0  # how many parts

    def add(self, place: int, grads: PerExampleGrads) -> None:
        """Clip the vectors of the part in this place and add them; parts are added in order."""
        if place != self._added or place >= len(self.parts):
            raise CompositionError(f"piece {place + 1} of {len(self.parts)} is not the next one: each counts once, in order.")
        mean = self._take_mean()
        self._added += 1
        self._mean = grads.clipped_sum(self._term.clip, self._term.weight / self._expected, mean)

    def finish(self) -> Noisy:
        """Hide the mean, once."""
        if self._added < len(self.parts):
            raise CompositionError(f"{self._added} of {len(self.parts)} pieces were added: a round is answered when all were.")
        mean = self._take_mean()
        return self._hidden(lambda out: mean if out is None else out + mean)

    def _take_mean(self) -> Array:
        """Take the mean so far; the round is closed until it is put back."""
        mean, self._mean = self._mean, None
        if mean is None:
            raise CompositionError(CLOSED)
        return mean
