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
    """One round: rows are drawn once, each piece's clipped vectors are added, and the sum is hidden at the end.

    **Guarantee** That of the measurement, if each row of `parts` is added at most once. A round without rows is hidden like any.
    """

    def __init__(self, measurement: Measurement, size: int, round_: int, rng: Rng, zero: Array) -> None:
        if len(measurement.terms) != 1:
            raise CompositionError("a round in pieces has one clipped query.")
        self._measurement, self._size, self._round, self._rng, self._total = measurement, size, round_, rng, zero
        rows = measurement.sampler.draw(size, round_, rng)
        self.rows = np.arange(size) if rows is None else rows

    def parts(self, most: int) -> Sequence[NDArray[Any]]:
        """The rows, at most so many at a time."""
        return [self.rows[start : start + most] for start in range(0, len(self.rows), most)]

    def add(self, grads: PerExampleGrads) -> None:
        """Clip a piece's vectors and add them."""
        term = self._measurement.terms[0]
        self._total = self._total + term.weight * term.clip.sum(grads)

    def finish(self) -> Noisy:
        """Hide the sum."""
        return self._measurement.hide(self._total, self._measurement.bound, self._size, self._round, self._rng)
