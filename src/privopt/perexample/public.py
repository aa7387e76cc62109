"""Public rows: mean gradients of batches of data that hide nothing.

The batch of a round depends on the round's number alone, so a resumed run asks for the same ones. Each pass over the rows has
an order of its own.
"""

from functools import lru_cache

import numpy as np

from privopt.perexample.grads import Array, Oracle, Rows, Vector


class PublicRows:
    """(θ, round) → the mean gradient of a batch of public rows, through the same model as the private ones.

    Whoever makes one says that its rows are public: they are used without noise, and no event is recorded.

    >>> from privopt.perexample.grads import Materialized
    >>> class Points:
    ...     size = 3
    ...     def __call__(self, parameters, rows):
    ...         return Materialized(np.array([[1.0], [2.0], [6.0]])[rows])
    >>> public = PublicRows(Points(), batch_size=1)
    >>> public.epoch, sorted(float(public(None, round_)[0]) for round_ in range(3))
    (3, [1.0, 2.0, 6.0])
    """

    def __init__(self, oracle: Oracle, batch_size: int = 64) -> None:
        self._oracle, self._batch = oracle, min(batch_size, oracle.size)

    @property
    def epoch(self) -> int:
        return self._oracle.size // self._batch

    def __call__(self, parameters: Array, round_: int) -> Array:
        rows = rows_of_round(self._oracle.size, self._batch, round_)
        return self._oracle(parameters, rows).weighted_sum(np.ones(self._batch)) / self._batch


def rows_of_round(size: int, batch: int, round_: int) -> Rows:
    """The rows of a batch: the next ones in the shuffled order of this pass, which leaves out what does not fill a batch."""
    pass_, place = divmod(round_, size // batch)
    return _order(size, pass_)[place * batch : (place + 1) * batch]


@lru_cache(maxsize=2)
def _order(size: int, pass_: int) -> Vector:
    return np.random.Generator(np.random.PCG64DXSM(pass_)).permutation(size)
