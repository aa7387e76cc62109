"""Mixing: whether the loss of one example depends on the others of its batch.

Half of the examples are taken. The rows of the others are overwritten with rows of the same batch, and all is computed again with
the same random numbers: losses and gradients of those that are taken stay as they were, an example that is not taken has no
gradient at all, and the model remembers the same. The halves follow no period, as a model may.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privopt.perexample.networks.examples import leaves
from privopt.perexample.networks.isolation.comparison import TOLERANCES, Tolerance
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.model_state import ModelState, evaluating
from privopt.perexample.networks.recorder import Recorder
from privopt.perexample.networks.rng import GlobalRngState
from privopt.perexample.networks.tape import HIDING, NO_GRADIENT
from privopt.perexample.networks.torch_grads import TorchGrads
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss

AGAIN = {torch.float64: Tolerance(1e-11, 1e-14), torch.float32: Tolerance(1e-5, 1e-8)}  # of what is computed twice in one way
MIXES = "Either the model or the loss mixes examples: the batch must be the first dimension everywhere, in the same order."


class BatchRows:
    """The tensors of a batch, which whoever computes the losses holds as well.

    >>> batch = torch.tensor([1.0, 2.0, torch.nan])
    >>> rows = BatchRows(batch, 3)
    >>> rows.give(torch.tensor([0, 0, 1]))
    >>> batch
    tensor([1., 1., 2.])
    >>> rows.give(rows.order)
    >>> batch, rows.finite()
    (tensor([1., 2., nan]), tensor([ True,  True, False]))
    """

    def __init__(self, batch: Any, examples: int) -> None:
        found = [x for x in leaves(batch) if isinstance(x, Tensor) and x.layout == torch.strided and x.shape[:1] == (examples,)]
        self._kept = [(tensor, tensor.detach().clone()) for tensor in found]
        self.order = torch.arange(examples)

    def give(self, rows: Tensor) -> None:
        """Let each row be what the row in this place was."""
        with torch.no_grad():
            for tensor, was in self._kept:
                tensor.copy_(was.index_select(0, rows.to(was.device)))

    def finite(self) -> Tensor:
        """Which rows are numbers throughout."""
        usable = torch.ones(len(self.order), dtype=torch.bool)
        for _, was in self._kept:
            if was.is_floating_point():
                usable &= was.flatten(1).isfinite().all(1).cpu() if was.ndim > 1 else was.isfinite().cpu()
        return usable


class _Pass(NamedTuple):
    losses: Tensor
    norms: dict[str, Tensor]  # of each example's gradient, by parameter
    memory: ModelState


def check_losses(
    recorder: Recorder, layout: Layout, losses: Callable[[], Tensor], handed: BatchRows, *, plainly: bool = False
) -> bool:
    """Refuse losses that mix the examples that were handed out. Whether that could be told: all that was compared is finite.

    Rows whose losses or gradients are not finite are overwritten first, as they could spread. `plainly`: the sum of the gradients
    is compared with that of plain autograd, too, without dropout.
    """
    rows = _without(handed.order, handed.finite())
    start, again = ModelState(recorder.model), GlobalRngState(layout.device)
    try:
        for _ in range(2):
            usable = _told(recorder, layout, losses, handed, start, again, rows, plainly)
            if bool(usable.all()):
                return True
            rows = _without(rows, usable)
        return False
    finally:
        handed.give(handed.order)
        start.restore()


def _told(
    recorder: Recorder,
    layout: Layout,
    losses: Callable[[], Tensor],
    handed: BatchRows,
    start: ModelState,
    again: GlobalRngState,
    rows: Tensor,
    plainly: bool,
) -> Tensor:
    """Check these rows. Gives which of them have losses and gradients that are finite."""

    @contextmanager
    def given(rows: Tensor) -> Iterator[None]:
        handed.give(rows)
        start.restore()
        with again.replay(), torch.enable_grad():
            yield

    def ours(rows: Tensor, taken: Tensor) -> tuple[Tensor, TorchGrads]:
        with given(rows), recorder.record() as tape:
            found = losses()
            refuse_hidden_layers(found)
            factors = tape.factors(found * taken.to(found.device))
        grads = TorchGrads(layout, {layout.names[key]: factor for key, factor in factors.items()}, len(taken))
        return found.detach().cpu(), grads

    def passed(rows: Tensor, taken: Tensor) -> _Pass:
        found, grads = ours(rows, taken)
        norms = {name: own.cpu() for name, own in grads.layer_norms().items()}
        return _Pass(found, norms, ModelState(recorder.model))

    odd, usable, halves = _odd(len(rows)), torch.ones(len(rows), dtype=torch.bool), set[torch.dtype]()
    for taken in (~odd, odd):
        before = passed(rows, taken)
        if mixed := [name for name, norms in before.norms.items() if bool((norms[~taken] > 0).any())]:
            raise UnsupportedLayer(f"the gradients of {some(mixed)} are not those of each example alone. {MIXES}")
        with noting_halves(halves):
            after = passed(_overwritten(rows, taken), taken)
        if others := after.memory.differs_from(before.memory):
            raise UnsupportedLayer(
                f"{some(others)} keeps something of the examples, which no noise hides: it is not a parameter that is trained. "
                "Compute it before training and leave it as it is then, or do without it."
            )
        tolerance = TOLERANCES[torch.float16] if halves else AGAIN[layout.dtype]
        if not _alike(before, after, taken, tolerance):
            if not _alike(before, passed(rows, taken), taken, tolerance):
                raise UnsupportedLayer(
                    "the losses of the same examples are not the same when they are computed again: the model or the loss "
                    "remembers, or draws from a generator of its own. Draw from torch's (torch.rand without generator=…)."
                )
            raise UnsupportedLayer(
                f"the loss of one example depends on other examples of its batch. {MIXES} Means over the batch, mixup, weights "
                "that sum to one in a batch, and an output (examples, 1) beside targets (examples) mix."
            )
        for found in (before.losses, *before.norms.values()):
            usable &= ~taken | found.isfinite()
    if plainly:
        with evaluating(recorder.model):  # layers draw their dropout in another order while they are watched
            with given(rows), noting_halves(halves):
                plain = _plain(layout, losses(), odd)
            total = ours(rows, odd)[1].weighted_sum(torch.ones(len(odd)))
            compare(layout.views(total), plain, TOLERANCES[torch.float16 if halves else layout.dtype])
    return usable


def compare(ours: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: Tolerance) -> bool:
    """Refuse gradients, which are used up, that are not the wanted ones. Whether that could be told: they are finite."""
    told = [name for name, value in wanted.items() if value.numel() and bool(value.isfinite().all())]
    sizes = {name: _largest(wanted[name]) for name in told}
    overall = max(sizes.values(), default=0.0)
    wrong = [name for name in told if not _largest(ours[name].sub_(wanted[name])) <= tolerance.allows(sizes[name], overall)]
    if wrong:
        raise UnsupportedLayer(
            f"the gradients of {some(wrong)} are not those of each example alone. {MIXES} Or a parameter is used outside the "
            "module that owns it: call that module, or share it (decoder.weight = embedding.weight)."
        )
    return all(name in told for name, value in wanted.items() if value.numel())


def _largest(tensor: Tensor) -> float:
    """The largest absolute value, without a copy."""
    return float(torch.linalg.vector_norm(tensor, math.inf))


def some(names: list[str]) -> str:
    """The first few names."""
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


@contextmanager
def noting_halves(found: set[torch.dtype]) -> Iterator[None]:
    """Note which half precisions anything is computed in."""

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
    """About every other place, without a period."""
    return torch.tensor([place.bit_count() % 2 == 1 for place in range(count)])


def _plain(layout: Layout, losses: Tensor, taken: Tensor) -> dict[str, Tensor]:
    """The gradient of the sum of the losses that are taken."""
    if not losses.requires_grad:
        raise UnsupportedLoss(NO_GRADIENT)
    refuse_hidden_layers(losses)
    found = torch.autograd.grad(losses[taken.to(losses.device)].sum(), list(layout.parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient
        for (name, parameter), gradient in zip(layout.parameters.items(), found, strict=True)
    }


def _without(rows: Tensor, usable: Tensor) -> Tensor:
    """The rows, with usable ones in place of those that are not."""
    places = usable.nonzero().flatten()
    if len(places) < 2:
        return rows
    filled = rows.clone()
    filled[~usable] = rows[places[torch.arange(int((~usable).sum())) % len(places)]]
    return filled


def _overwritten(rows: Tensor, taken: Tensor) -> Tensor:
    """Rows that are taken in place of all others."""
    return torch.where(taken, rows, _without(rows, taken) if int(taken.sum()) > 1 else rows[taken])


def _alike(before: _Pass, after: _Pass, taken: Tensor, tolerance: Tolerance) -> bool:
    """Whether losses and gradients of the examples that are taken are the same, where they are numbers."""
    overall = max((float(_numbers(norms).max()) for norms in before.norms.values() if norms.numel()), default=0.0)
    largest = float(_numbers(before.losses[taken]).abs().max())
    pairs = [(before.losses, after.losses, tolerance.allows(largest, largest))]
    for name, norms in before.norms.items():
        own = float(_numbers(norms).max()) if norms.numel() else 0.0
        pairs.append((norms, after.norms[name], tolerance.allows(own, overall)))
    for first, second, allowed in pairs:
        told = taken & first.isfinite()
        gap = (first[told] - second[told]).abs()
        if not bool((gap <= allowed).all()):
            return False
    return True


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.nan_to_num(0.0, 0.0, 0.0)
