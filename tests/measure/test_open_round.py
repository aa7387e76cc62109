"""Open rounds: a piece counts once, and a round answers once, whatever fails."""

from typing import Any

import numpy as np
import pytest

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement, OpenRound
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch
from privopt.perexample.grads import Materialized


def opened() -> OpenRound:
    measurement = Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(1.0))
    return OpenRound(measurement, 5, 0, generator(0), np.zeros(2), 3)


def vectors(count: int) -> Materialized:
    return Materialized(np.ones((count, 2)))


def test_a_piece_counts_once_and_in_order() -> None:
    round_ = opened()
    with pytest.raises(CompositionError, match="piece 2 of 2 is not the next one"):
        round_.add(1, vectors(2))
    round_.add(0, vectors(3))
    with pytest.raises(CompositionError, match="piece 1 of 2 is not the next one"):
        round_.add(0, vectors(3))
    with pytest.raises(CompositionError, match="1 of 2 pieces"):
        round_.finish()
    round_.add(1, vectors(2))
    round_.finish()
    with pytest.raises(CompositionError, match="closed"):
        round_.finish()


class Failing(Materialized):
    def weighted_sum(self, *_: Any) -> Any:
        raise MemoryError


def test_a_round_whose_sum_failed_is_closed() -> None:
    round_ = opened()
    with pytest.raises(MemoryError):
        round_.add(0, Failing(np.ones((3, 2))))
    for place in (0, 1):
        with pytest.raises(CompositionError):
            round_.add(place, vectors(3))
    with pytest.raises(CompositionError):
        round_.finish()
