"""A rehearsal: before its first update, a training loop is run on parts of its first batch, which have no effect.

The loop computes the losses of two examples of its batch, and of half of it. These examples must have the same losses in the full
batch. This shows whether the loop's code uses the number of examples (a division by `len(batch)`, inside the closure or outside
of it), or the content of other examples (trimmed padding). If the losses differ, half of the batch is used once more, to see
whether the loop's own random numbers are the reason.

Dropout and random draws are replaced by constants. Losses are compared at the model's parameters and at random ones: a dependence
behind a weight that is 0 would show only later.

The modules and parameters of an attached model must not be exchanged while it is trained: `Attached` holds them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privopt.errors import InputError
from privopt.perexample.networks import Layout, Recorder, TorchGrads
from privopt.perexample.networks.examples import copy_tensors, rows_of
from privopt.perexample.networks.isolation.one_by_one import MIXED, TOLERANCES
from privopt.perexample.networks.isolation.overwriting import BatchRows, check_losses, record_half_precision
from privopt.perexample.networks.model_state import ModelState, random_values
from privopt.perexample.networks.rng import without_randomness
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss

REMEDY = "The check and the bound hold for the model that was attached: change it first, and call make_private after that."


class Attached:
    """The modules of a model, the parameters they own, and which of those are trained.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    >>> attached = Attached(model)
    >>> attached.check()
    >>> model[1] = nn.BatchNorm1d(2)
    >>> attached.check()
    Traceback (most recent call last):
    privopt.errors.InputError: the modules of the model are not those that were attached. The check ...
    """

    def __init__(self, model: nn.Module) -> None:
        self._children = [(path, module._modules, _ids(module._modules)) for path, module in model.named_modules()]
        self._own = [(path, module._parameters, _ids(module._parameters)) for path, module in model.named_modules()]
        self._parameters = dict(model.named_parameters())
        self._trained = [parameter.requires_grad for parameter in self._parameters.values()]

    def check(self) -> None:
        """Refuse a model that has changed since it was attached."""
        for path, table, ids in self._children:
            if _ids(table) != ids:
                raise InputError(f"the modules of {path or 'the model'} are not those that were attached. {REMEDY}")
        for path, own, ids in self._own:
            if _ids(own) != ids:
                raise InputError(
                    f"the parameters of {path or 'the model'} are not those that were attached. {REMEDY} To load values, use "
                    "load_state_dict without assign=True."
                )
        if [parameter.requires_grad for parameter in self._parameters.values()] != self._trained:
            pairs = zip(self._parameters.items(), self._trained, strict=True)
            changed = next(name for (name, parameter), was in pairs if parameter.requires_grad != was)
            raise InputError(f"{changed}.requires_grad has changed since the model was attached. {REMEDY}")


def _ids(table: Mapping[str, object]) -> list[int]:
    return list(map(id, table.values()))


OUTSIDE = (
    "the closure uses outputs that the model computed outside of it, where no layer was recorded. Call the model inside of the "
    "function that step(…) is given: private.step(lambda: loss(model(inputs), targets))."
)


def check_recorded(factors: Mapping[Any, Any]) -> None:
    """Refuse losses whose layers ran before they were recorded."""
    if not factors:
        raise UnsupportedLoss(OUTSIDE)


@contextmanager
def explaining_outside() -> Iterator[None]:
    """Say in our words that a part of the graph is from outside of the closure, and is gone."""
    try:
        yield
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise UnsupportedLoss(OUTSIDE) from None


RANDOM = (
    "the loop draws random numbers outside of the closure, so its losses could not be compared with those of parts of a batch"
)


REPEATS = 3  # runs of one batch that show whether its losses are random
RANDOM_INSIDE = "the closure draws random numbers that could not be replaced by constants"


class _Results(NamedTuple):
    losses: Tensor
    norms: dict[str, Tensor]  # of each example's gradient, by parameter
    halves: bool  # whether anything was computed in half precision


class Rehearsal:
    """The results of the parts of a batch."""

    def __init__(self, recorder: Recorder, layout: Layout) -> None:
        self._recorder, self._layout = recorder, layout
        self._found: list[list[_Results]] = []

    def part(self, piece: Any, examples: int) -> tuple[Any, int] | None:
        """The next part of the batch to run, and its size; None after the last."""
        sizes = sorted({max(1, min(2, examples - 1)), (examples + 1) // 2})  # the user's code may not accept a batch of one
        done = len(self._found)
        if done == len(sizes) + 1 or (done == len(sizes) and self._agree(self._found[0], self._found[-1])):
            return None
        size = sizes[min(done, len(sizes) - 1)]
        first = tree_map(lambda x: x[:size] if _are_texts(x) else rows_of(x, slice(0, size)), piece, is_leaf=_are_texts)
        return copy_tensors(first), size

    def note(self, losses: Callable[[], Tensor]) -> None:
        """Compute and keep the results of a part."""
        self._found.append(self._measure(losses))

    def compare(self, losses: Callable[[], Tensor]) -> list[str]:
        """Refuse a batch whose losses differ from those of its parts. Returns why that could not be decided; empty if it was."""
        *parts, last = self._found
        if parts and len(parts[-1][0].losses) == len(last[0].losses) and not self._agree(parts[-1], last):
            return [RANDOM]
        full = self._measure(losses)
        if all(self._agree(part, full) for part in self._found):
            return []
        again = [self._measure(losses)[0].losses for _ in range(REPEATS)]
        if not all(torch.equal(found.nan_to_num(), full[0].losses.nan_to_num()) for found in again):
            return [RANDOM_INSIDE]
        if len(last[0].losses) == len(full[0].losses):  # the same example, handed out twice
            return [RANDOM]
        raise UnsupportedLayer(f"{MIXED} A division by the number of examples in the batch, which is private, does too.")

    def _agree(self, part: list[_Results], other: list[_Results]) -> bool:
        """Whether the examples of a part have the same losses and gradients among others."""
        return all(self._same(few, more) for few, more in zip(part, other, strict=True))

    def _same(self, few: _Results, more: _Results) -> bool:
        tolerance = TOLERANCES[torch.float16 if few.halves or more.halves else self._layout.dtype]
        overall = max((_largest(norms) for norms in few.norms.values()), default=0.0)
        largest = _largest(few.losses)
        pairs = [(few.losses, more.losses, tolerance.allows(largest, largest))]
        for name, norms in few.norms.items():
            pairs.append((norms, more.norms[name], tolerance.allows(_largest(norms), overall)))
        for part, other, allowed in pairs:
            finite = part.isfinite()
            if not bool(((part - other[: len(part)]).abs()[finite] <= allowed).all()):
                return False
        return True

    def _measure(self, losses: Callable[[], Tensor]) -> list[_Results]:
        """Results at the model's parameters, and at random ones."""
        found = [self._at(losses)]
        with random_values(list(self._layout.parameters.values())):
            found.append(self._at(losses))
        return found

    def _at(self, losses: Callable[[], Tensor]) -> _Results:
        start, halves = ModelState(self._recorder.model), set[torch.dtype]()
        try:
            with without_randomness(self._recorder.model), torch.enable_grad(), self._recorder.record() as tape:
                with record_half_precision(halves):
                    values = losses()
                factors = tape.factors(values)
                check_recorded(factors)
        finally:
            start.restore()
        named = {self._layout.names[key]: factor for key, factor in factors.items()}
        norms = TorchGrads(self._layout, named, len(values)).layer_norms()
        return _Results(values.detach().cpu(), {name: own.cpu() for name, own in norms.items()}, bool(halves))


class ClosureCheck:
    """Whether a loop's closure mixes the examples of its batch, or remembers those of others: found out on the first batch."""

    def __init__(self, recorder: Recorder, layout: Layout, doubts: list[str]) -> None:
        self.done, self.doubts = False, doubts
        self._recorder, self._layout = recorder, layout
        self._rehearsal = Rehearsal(recorder, layout)

    def begin(self) -> None:
        """Begin a piece."""
        self._rehearsal = Rehearsal(self._recorder, self._layout)

    def part(self, piece: Any, examples: int) -> tuple[Any, int] | None:
        """The part of the piece to rehearse next, and its size; None if there is none."""
        return None if self.done else self._rehearsal.part(piece, examples)

    def rehearse(self, losses: Callable[[], Tensor], part: Any, examples: int) -> None:
        """Note the losses of a part of a batch."""
        try:
            with _unchanged(losses, BatchRows(part, examples)) as again:
                self._rehearsal.note(again)
        except BaseException as error:
            error.add_note(f"This was a rehearsal with {examples} examples of the first batch: nothing was paid.")
            raise

    def finish(self, losses: Callable[[], Tensor], piece: Any, examples: int, *, single: bool) -> None:
        """Refuse the closure if it mixes.

        A piece of one example shows only whether it remembers others, which is all there is if every piece is a `single` one.
        """
        batch = BatchRows(piece, examples)
        with _unchanged(losses, batch) as again:
            conclusive = check_losses(self._recorder, self._layout, losses, batch, against_autograd=True)
            self.done = conclusive and (examples > 1 or single)
            self.doubts += [doubt for doubt in self._rehearsal.compare(again) if doubt not in self.doubts]


@contextmanager
def _unchanged(losses: Callable[[], Tensor], batch: BatchRows) -> Iterator[Callable[[], Tensor]]:
    """The same losses each time, of a batch that a closure may change in place; then the batch as it was."""

    def again() -> Tensor:
        batch.overwrite(batch.order)
        return losses()

    try:
        yield again
    finally:
        batch.overwrite(batch.order)


def _are_texts(batch: Any) -> bool:
    """Whether these are texts, one for each example."""
    return isinstance(batch, list | tuple) and len(batch) > 0 and all(isinstance(text, str) for text in batch)


def _largest(numbers: Tensor) -> float:
    return float(numbers.nan_to_num(0.0, 0.0, 0.0).abs().max()) if numbers.numel() else 0.0
