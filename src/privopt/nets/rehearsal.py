"""A rehearsal: parts of a loop's first batch, which count for nothing.

Before the first update the loop computes the losses of one example of its batch, and of half of it. They have to be the losses
that the same examples have in the whole batch. This shows whether the loop's code lets the number of examples in (a division by
`len(batch)`, inside the closure or outside of it), or the content of other examples (trimmed padding). If they differ, half of
the batch is handed out once more, to see whether the loop's own random numbers are the reason.

Dropout and random draws are constants here. Losses are compared at the model's parameters and at random ones: what hides behind a
weight that is 0 would show later.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privopt.perexample.torch import Layout, Recorder, TorchGrads
from privopt.perexample.torch.data import copied, rows_of
from privopt.perexample.torch.errors import UnsupportedLayer
from privopt.perexample.torch.isolation import MIXED, TOLERANCES, random_values, without_randomness
from privopt.perexample.torch.memory import Memory
from privopt.perexample.torch.mixing import noting_halves

RANDOM = (
    "the loop draws random numbers outside of the closure, so its losses could not be compared with those of parts of a batch"
)


class _Found(NamedTuple):
    losses: Tensor
    norms: dict[str, Tensor]  # of each example's gradient, by parameter
    halves: bool  # whether something was computed in half precision


class Rehearsal:
    """What the parts of a batch gave."""

    def __init__(self, recorder: Recorder, layout: Layout) -> None:
        self._recorder, self._layout = recorder, layout
        self._found: list[list[_Found]] = []

    def part(self, piece: Any, examples: int) -> tuple[Any, int] | None:
        """The next part of a batch to hand out, and its size; none if all were."""
        if len(self._found) == 3 or (len(self._found) == 2 and self._agree(*self._found)):
            return None
        size = (examples + 1) // 2 if self._found else 1
        return copied(rows_of(piece, slice(0, size))), size

    def note(self, losses: Callable[[], Tensor]) -> None:
        """Keep what a part gives."""
        self._found.append(self._measured(losses))

    def compare(self, losses: Callable[[], Tensor]) -> list[str]:
        """Refuse losses of the whole batch that are not those of its parts. The reason why that could not be told, if so."""
        one, half, *again = self._found
        if again and not self._agree(half, again[0]):
            return [RANDOM]
        whole = self._measured(losses)
        if again or not (self._agree(one, whole) and self._agree(half, whole)):
            raise UnsupportedLayer(f"{MIXED} A division by the number of examples in the batch, which is private, does too.")
        return []

    def _agree(self, part: list[_Found], other: list[_Found]) -> bool:
        """Whether the examples of a part have the same losses and gradients among others."""
        return all(self._same(few, more) for few, more in zip(part, other, strict=True))

    def _same(self, few: _Found, more: _Found) -> bool:
        tolerance = TOLERANCES[torch.float16 if few.halves or more.halves else self._layout.dtype]
        overall = max((_largest(norms) for norms in few.norms.values()), default=0.0)
        largest = _largest(few.losses)
        pairs = [(few.losses, more.losses, tolerance.allows(largest, largest))]
        for name, norms in few.norms.items():
            pairs.append((norms, more.norms[name], tolerance.allows(_largest(norms), overall)))
        for part, other, allowed in pairs:
            told = part.isfinite()
            if not bool(((part - other[: len(part)]).abs()[told] <= allowed).all()):
                return False
        return True

    def _measured(self, losses: Callable[[], Tensor]) -> list[_Found]:
        """At the model's parameters, and at random ones."""
        found = [self._at(losses)]
        with random_values(list(self._layout.parameters.values())):
            found.append(self._at(losses))
        return found

    def _at(self, losses: Callable[[], Tensor]) -> _Found:
        start, halves = Memory(self._recorder.model), set[torch.dtype]()
        try:
            with without_randomness(self._recorder.model), torch.enable_grad(), self._recorder.record() as tape:
                with noting_halves(halves):
                    values = losses()
                factors = tape.factors(values)
        finally:
            start.restore()
        named = {self._layout.names[key]: factor for key, factor in factors.items()}
        norms = TorchGrads(self._layout, named, len(values)).layer_norms()
        return _Found(values.detach().cpu(), {name: own.cpu() for name, own in norms.items()}, bool(halves))


def _largest(numbers: Tensor) -> float:
    return float(numbers.nan_to_num(0.0, 0.0, 0.0).abs().max()) if numbers.numel() else 0.0
