"""Overwriting: compare losses before and after the rows of other examples are overwritten.

A batch is split into two halves. The rows of one half are overwritten with rows of the other, and everything is computed again
with the same random numbers. Losses and gradients of the half that was kept must stay the same, the overwritten half must have
no gradient if its losses are left out, and the model's state must be the same. The halves follow no period, as a model may.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privopt.perexample.networks.examples import leaves
from privopt.perexample.networks.isolation.one_by_one import TOLERANCES, Tolerance
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.model_state import ModelState, evaluation_mode
from privopt.perexample.networks.recorder import Recorder
from privopt.perexample.networks.rng import GlobalRngState
from privopt.perexample.networks.tape import HIDING, NO_GRADIENT
from privopt.perexample.networks.torch_grads import TorchGrads
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss

REPEATED = {torch.float64: Tolerance(1e-11, 1e-14), torch.float32: Tolerance(1e-5, 1e-8)}  # between two runs of the same code
MIXES = "Either the model or the loss mixes examples: the batch must be the first dimension everywhere, in the same order."


class BatchRows:
    """The tensors of a batch, shared with the code that computes the losses: rows are overwritten in place and restored.

    >>> batch = torch.tensor([1.0, 2.0, torch.nan])
    >>> rows = BatchRows(batch, 3)
    >>> rows.overwrite(torch.tensor([0, 0, 1]))
    >>> batch
    tensor([1., 1., 2.])
    >>> rows.overwrite(rows.order)
    >>> batch, rows.finite()
    (tensor([1., 2., nan]), tensor([ True,  True, False]))
    """

    def __init__(self, batch: Any, examples: int) -> None:
        found = [x for x in leaves(batch) if isinstance(x, Tensor) and x.layout == torch.strided and x.shape[:1] == (examples,)]
        self._saved = [(tensor, tensor.detach().clone()) for tensor in found]
        self.order = torch.arange(examples)

    def overwrite(self, rows: Tensor) -> None:
        """Write the original row rows[i] into row i, for every i."""
        with torch.no_grad():
            for tensor, original in self._saved:
                tensor.copy_(original.index_select(0, rows.to(original.device)))

    def finite(self) -> Tensor:
        """A mask of the original rows that hold finite numbers only."""
        usable = torch.ones(len(self.order), dtype=torch.bool)
        for _, original in self._saved:
            if original.is_floating_point():
                usable &= original.flatten(1).isfinite().all(1).cpu() if original.ndim > 1 else original.isfinite().cpu()
        return usable


def check_losses(
    recorder: Recorder, layout: Layout, losses: Callable[[], Tensor], batch: BatchRows, *, against_autograd: bool = False
) -> bool:
    """Refuse losses that mix the examples of a batch. Returns whether the check was conclusive: all compared numbers are finite.

    Rows whose losses or gradients are not finite are overwritten first, because they could spread. With `against_autograd` the
    sum of the gradients is compared with that of plain autograd as well, without dropout. One example alone has no others: its
    loss is computed again, which shows code that remembers.
    """
    plain = recorder.way != "together"  # examples that are run apart cannot mix, but the model itself must not
    check = _Check(recorder, layout, losses, batch, plain)
    rows = _fill(batch.order, batch.finite())
    try:
        for _ in range(2):
            usable = check.run(rows, against_autograd)
            if bool(usable.all()):
                return True
            rows = _fill(rows, usable)
        return False
    finally:
        check.restore()


class _Results(NamedTuple):
    losses: Tensor
    norms: dict[str, Tensor]  # of each example's gradient, by parameter
    state: ModelState


class _Check:
    """Losses of a batch, computed again and again from the same model state and the same random numbers.

    With `plain` by the model itself, on the batch: a recorder may run it on each example apart, where nothing can mix.
    """

    def __init__(
        self, recorder: Recorder, layout: Layout, losses: Callable[[], Tensor], batch: BatchRows, plain: bool = False
    ) -> None:
        self._recorder, self._layout, self._losses, self._batch, self._plain = recorder, layout, losses, batch, plain
        self._state, self._rng = ModelState(recorder.model), GlobalRngState(layout.device)

    def restore(self) -> None:
        """Put back the batch and the state of the model."""
        self._batch.overwrite(self._batch.order)
        self._state.restore()

    def run(self, rows: Tensor, against_autograd: bool) -> Tensor:
        """Check these rows. Returns a mask of those whose losses and gradients are finite."""
        odd, usable, halves = _odd(len(rows)), torch.ones(len(rows), dtype=torch.bool), set[torch.dtype]()
        for kept in (~odd, odd) if len(rows) > 1 else (~odd,):
            before = self._compute(rows, kept)
            self._check_half(before, rows, kept, halves)
            for found in (before.losses, *before.norms.values()):
                usable &= ~kept | found.isfinite()
        if against_autograd:
            some = odd if len(rows) > 1 else ~odd
            with evaluation_mode(self._recorder.model):  # a recorded layer draws its dropout in another order
                with self._repeated(rows), record_half_precision(halves):
                    wanted = autograd_sum(self._layout, self._losses(), some.float())
                total = self._gradients(rows, some)[1].weighted_sum(torch.ones(len(rows)))
                compare(self._layout.views(total), wanted, TOLERANCES[torch.float16 if halves else self._layout.dtype])
        return usable

    def _check_half(self, before: _Results, rows: Tensor, kept: Tensor, halves: set[torch.dtype]) -> None:
        """Refuse results of the kept examples that change when all other rows are overwritten."""
        if mixed := [name for name, norms in before.norms.items() if bool((norms[~kept] > 0).any())]:
            raise UnsupportedLayer(f"the gradients of {first_names(mixed)} are not those of each example alone. {MIXES}")
        with record_half_precision(halves):
            after = self._compute(_overwrite_others(rows, kept), kept)
        if changed := after.state.differs_from(before.state):
            raise UnsupportedLayer(
                f"{first_names(changed)} keeps something of the examples, which no noise hides: it is not a trained parameter. "
                "Compute it before training and do not change it then, or do without it."
            )
        tolerance = TOLERANCES[torch.float16] if halves else REPEATED[self._layout.dtype]
        if _same_results(before, after, kept, tolerance):
            return
        if not _same_results(before, self._compute(rows, kept), kept, tolerance):
            raise UnsupportedLayer(
                "the losses of the same examples are not the same when they are computed again: the model or the loss "
                "remembers, or draws from a generator of its own. Draw from torch's (torch.rand without generator=…)."
            )
        raise UnsupportedLayer(
            f"the loss of one example depends on other examples of its batch. {MIXES} Means over the batch, mixup, weights "
            "that sum to one in a batch, and an output (examples, 1) beside targets (examples) mix."
        )

    @contextmanager
    def _repeated(self, rows: Tensor) -> Iterator[None]:
        """Overwrite the batch with these rows, and start from the same state and random numbers as every time."""
        self._batch.overwrite(rows)
        self._state.restore()
        with self._rng.replay(), torch.enable_grad():
            yield

    def _gradients(self, rows: Tensor, kept: Tensor) -> tuple[Tensor, TorchGrads]:
        """The losses, and the gradients of the losses that are kept."""
        with self._repeated(rows), self._recorder.record() as tape:
            losses = self._losses()
            refuse_hidden_layers(losses)
            factors = tape.factors(losses * kept.to(losses.device))
        named = {self._layout.names[parameter]: factor for parameter, factor in factors.items()}
        return losses.detach().cpu(), TorchGrads(self._layout, named, len(kept))

    def _compute(self, rows: Tensor, kept: Tensor) -> _Results:
        if self._plain:
            with self._repeated(rows):
                values = self._losses()
                total = autograd_sum(self._layout, values, kept.float())
            lengths = {name: float(torch.linalg.vector_norm(gradient)) for name, gradient in total.items()}
            norms = {name: length * kept for name, length in lengths.items()}
            return _Results(values.detach().cpu(), norms, ModelState(self._recorder.model))
        losses, grads = self._gradients(rows, kept)
        norms = {name: own.cpu() for name, own in grads.layer_norms().items()}
        return _Results(losses, norms, ModelState(self._recorder.model))


def compare(ours: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: Tolerance) -> bool:
    """Refuse gradients that differ from the wanted ones; `ours` is overwritten. Returns whether all wanted ones are finite."""
    finite = [name for name, value in wanted.items() if value.numel() and bool(value.isfinite().all())]
    sizes = {name: _largest(wanted[name]) for name in finite}
    overall = max(sizes.values(), default=0.0)
    wrong = [name for name in finite if not _largest(ours[name].sub_(wanted[name])) <= tolerance.allows(sizes[name], overall)]
    if wrong:
        raise UnsupportedLayer(
            f"the gradients of {first_names(wrong)} are not those of each example alone. {MIXES} Or a parameter is used outside "
            "the module that owns it: call that module, or share the parameter (decoder.weight = embedding.weight)."
        )
    return all(name in finite for name, value in wanted.items() if value.numel())


def _largest(tensor: Tensor) -> float:
    """The largest absolute value, without a copy."""
    return float(torch.linalg.vector_norm(tensor, math.inf))


def first_names(names: list[str]) -> str:
    """The first few names, for a message."""
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


@contextmanager
def record_half_precision(found: set[torch.dtype]) -> Iterator[None]:
    """Add to `found` the half precisions that anything is computed in."""

    def look(tensor: Tensor) -> Tensor:
        found.update({tensor.dtype} & {torch.bfloat16, torch.float16})
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        yield


def refuse_hidden_layers(losses: Tensor) -> None:
    """Refuse a graph with a part that only `backward()` would open."""
    left, seen = [losses.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise UnsupportedLayer(HIDING)
        seen.add(node)
        left.extend(following for following, _ in node.next_functions)


def _odd(count: int) -> Tensor:
    """A mask of about every other place, without a period."""
    return torch.tensor([place.bit_count() % 2 == 1 for place in range(count)])


def autograd_sum(layout: Layout, losses: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The gradient of a weighted sum of losses, by plain autograd; losses of weight 0 are left out."""
    if not losses.requires_grad:
        raise UnsupportedLoss(NO_GRADIENT)
    refuse_hidden_layers(losses)
    kept = weights.to(losses.device) != 0
    total = losses[kept] @ weights.to(losses)[kept]
    found = torch.autograd.grad(total, list(layout.parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter)
        if gradient is None
        else gradient.to_dense()
        if gradient.is_sparse
        else gradient.contiguous()
        for (name, parameter), gradient in zip(layout.parameters.items(), found, strict=True)
    }


def _fill(rows: Tensor, usable: Tensor) -> Tensor:
    """The rows, with usable ones in place of the others."""
    places = usable.nonzero().flatten()
    if len(places) < 2:
        return rows
    filled = rows.clone()
    filled[~usable] = rows[places[torch.arange(int((~usable).sum())) % len(places)]]
    return filled


def _overwrite_others(rows: Tensor, kept: Tensor) -> Tensor:
    """The rows, with kept ones in place of all others."""
    return torch.where(kept, rows, _fill(rows, kept) if int(kept.sum()) > 1 else rows[kept])


def _same_results(before: _Results, after: _Results, kept: Tensor, tolerance: Tolerance) -> bool:
    """Whether losses and gradients of the kept examples are the same, where they are finite."""
    overall = max((float(_finite_part(norms).max()) for norms in before.norms.values() if norms.numel()), default=0.0)
    largest = float(_finite_part(before.losses[kept]).abs().max())
    pairs = [(before.losses, after.losses, tolerance.allows(largest, largest))]
    for name, norms in before.norms.items():
        own = float(_finite_part(norms).max()) if norms.numel() else 0.0
        pairs.append((norms, after.norms[name], tolerance.allows(own, overall)))
    for first, second, allowed in pairs:
        compared = kept & first.isfinite()
        gap = (first[compared] - second[compared]).abs()
        if not bool((gap <= allowed).all()):
            return False
    return True


def _finite_part(tensor: Tensor) -> Tensor:
    """The tensor, with 0 for what is not finite."""
    return tensor.nan_to_num(0.0, 0.0, 0.0)
