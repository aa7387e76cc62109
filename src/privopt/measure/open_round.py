"""An open round: a measurement whose batch is handed out in pieces, for training loops that are not ours."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.errors import CompositionError
from privopt.measure.measurement import Measurement, Noisy
from privopt.measure.randomness import Rng
from privopt.perexample.grads import Array, PerExampleGrads


class OpenRound:
    """One round: rows are drawn once, each piece's clipped vectors are added, and their mean is hidden at the end.

    **Guarantee** That of the measurement, if each row of `parts` is added at most once. A round without rows is hidden like any.
    """

    def __init__(self, measurement: Measurement, size: int, round_: int, rng: Rng, zero: Array) -> None:
        if len(measurement.terms) != 1:
            raise CompositionError("a round in pieces has one clipped query.")
        self._term, self._mean, self._expected = measurement.terms[0], zero, measurement.sampler.expected(size)
        rows = measurement.sampler.draw(size, round_, rng)
        self._hidden = measurement.begin(zero, measurement.bound / self._expected, round_, rng)
        self.rows = np.arange(size) if rows is None else rows

    def parts(self, most: int) -> Sequence[NDArray[Any]]:
        """The rows, at most so many at a time."""
        return [self.rows[start : start + most] for start in range(0, len(self.rows), most)]

    def add(self, grads: PerExampleGrads) -> None:
        """Clip a piece's vectors and add them."""
        self._mean = self._term.clip.sum(grads, self._term.weight / self._expected, self._mean)

    def finish(self) -> Noisy:
        """Hide the mean."""
        return self._hidden(lambda out: self._mean if out is None else out + self._mean)
