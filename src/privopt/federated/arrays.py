"""Models as Flower sends them, and as one vector that can be clipped.

A node is not trusted to send a model: whatever it sends is turned into a finite vector of the right length, or into nothing.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from privopt.errors import InputError
from privopt.measure.clips import Clip
from privopt.perexample.grads import Materialized, Vector


class SentModel:
    """The model that nodes start from. Its floating-point arrays are one vector; arrays of other types stay as they are.

    >>> sent = SentModel(ArrayRecord({"w": Array(np.array([1.0, 2.0])), "steps": Array(np.array(7))}))
    >>> sent.fixed
    ('steps',)
    >>> sent.moved(np.array([0.5, 0.0]))["w"].numpy()
    array([1.5, 2. ])
    """

    def __init__(self, record: ArrayRecord) -> None:
        self._arrays = {name: array.numpy() for name, array in record.items()}
        self._trained = [name for name, array in self._arrays.items() if array.dtype.kind == "f"]
        self.fixed = tuple(name for name in self._arrays if name not in self._trained)
        if not self._trained:
            raise InputError("the model has no array of floating-point numbers, so there is nothing to train privately.")
        self.vector = self._flatten([self._arrays[name] for name in self._trained])
        if not np.isfinite(self.vector).all():
            raise InputError(
                "the model that would be sent to nodes is not finite. Start from finite arrays, and lower the steps."
            )

    def change(self, reply: Message) -> Vector | None:
        """What a node changed; None if the reply holds no finite model of the same names and shapes."""
        if reply.has_error() or not reply.has_content() or len(reply.content.array_records) != 1:
            return None
        (record,) = reply.content.array_records.values()
        if set(record) != set(self._arrays):
            return None
        try:
            values = [record[name].numpy() for name in self._trained]
        except Exception:  # whatever the bytes that a node sent do to a decoder
            return None
        for name, value in zip(self._trained, values, strict=True):
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or value.shape != self._arrays[name].shape:
                return None
        with np.errstate(all="ignore"):  # a warning would tell something about the data
            change = self._flatten(values) - self.vector
        return change if np.isfinite(change).all() else None

    def moved(self, change: Vector) -> ArrayRecord:
        """This model plus a change, with the types and shapes that were sent."""
        moved, vector, place = dict(self._arrays), self.vector + change, 0
        for name in self._trained:
            array = self._arrays[name]
            part = vector[place : place + array.size].reshape(array.shape)
            with np.errstate(over="ignore"):
                moved[name] = np.asarray(part.astype(array.dtype))
            place += array.size
        return ArrayRecord({name: Array(array) for name, array in moved.items()})

    @staticmethod
    def _flatten(arrays: list[Vector]) -> Vector:
        return np.concatenate([array.ravel().astype(np.float64) for array in arrays])


def add_clipped(change: Vector | None, clip: Clip, total: Vector, weight: float = 1.0) -> Vector:
    """total + weight × the clipped change. No change adds nothing, and neither does one whose norm is not finite."""
    return total if change is None else Materialized(change[None]).clipped_sum(clip, weight, total)
