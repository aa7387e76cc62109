"""One by one: the losses of a batch against those of each example on its own.

Under `torch.vmap` the losses of single examples are independent by construction: no value of an example can steer Python code
or reach another example. If the batch agrees with them at random points, it computes the same function: independence is *proved*.
Where vmap cannot run the model, the examples go through it one after the other. Their values may steer the code, so agreement is
a test: independence is *checked*.

What makes the comparison sharp:

- double precision, so that a dependence in a small branch is not hidden by the rounding of a large one;
- random parameters beside the model's own, so that no branch hides behind a gate that is 0;
- batches that reveal a dependence: one example much longer than all others, one of padding only, all equal but one, one
  extreme, and batches of another size;
- operations that combine examples, found by shapes and not by values (`combinations`);
- training mode, with dropout and random draws replaced by constants.

Examples are made up: only shapes and types of the data are used, so messages may quote what torch says.
"""

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from privopt.perexample.networks.apart import Functions, under_vmap
from privopt.perexample.networks.examples import (
    Kind,
    MadeUp,
    Numbers,
    call_model,
    compute_losses,
    copy_tensors,
    effort_for,
    leaves,
    rows_of,
)
from privopt.perexample.networks.isolation.combinations import Watch, code_line, find_combinations
from privopt.perexample.networks.loss_modules import Loss
from privopt.perexample.networks.model_state import ModelState, forwards, in_precision, random_values
from privopt.perexample.networks.rng import without_randomness
from privopt.perexample.networks.unsupported import UnsupportedLayer

REPEATS = 5  # runs of one batch that show whether its losses are random
DRAWN = "the model or the loss draws random numbers that could not be replaced by constants"
MIXED = (
    "the loss of one example depends on other examples of its batch. Either the model or the loss mixes examples: the batch must "
    "be the first dimension everywhere, in the same order. Means over the batch, mixup, weights that sum to one in a batch, an "
    "output (examples, 1) beside targets (examples), and trimming padding that all rows of a batch share mix."
)


class Tolerance(NamedTuple):
    """How far two computations of a gradient may differ: relative to its own parameter, and to the largest of all parameters."""

    own: float
    overall: float

    def allows(self, own: float, overall: float) -> float:
        """The largest difference for a parameter whose gradient has size `own`, where the largest has size `overall`."""
        return self.own * own + self.overall * overall


TOLERANCES = {
    torch.float64: Tolerance(1e-6, 1e-12),
    torch.float32: Tolerance(1e-3, 1e-4),
    torch.float16: Tolerance(5e-2, 5e-2),
    torch.bfloat16: Tolerance(5e-2, 5e-2),
}


def check_isolation(model: nn.Module, loss: Loss, inputs: Any, targets: Any, kind: Kind, numbers: Sequence[Numbers]) -> list[str]:
    """Refuse a model or loss that mixes examples. Returns why independence is checked and not proved; empty if it is proved.

    `inputs` and `targets` show the shapes and types of the data; `kind` says which integers the model can take.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start, reasons = ModelState(model), dict[str, None]()
    for dtype in dict.fromkeys((torch.float64, parameters[0].dtype)):
        with ExitStack() as stack:
            stack.callback(start.restore)
            stack.enter_context(in_precision(model, dtype))
            if isinstance(module := getattr(loss, "module", loss), nn.Module):
                stack.enter_context(in_precision(module, dtype))
            stack.enter_context(torch.enable_grad())
            trial = _Trial(model, loss, parameters)
            made_up = MadeUp(model, inputs, targets, kind, numbers, dtype)
            usual = made_up.usual()
            try:
                trial.losses(usual[0], rows=slice(None))
            except Exception:  # the code needs another precision
                reasons["the model computes in single precision only, where rounding hides what is small"] = None
                continue
            for batch in usual:
                reasons |= dict.fromkeys(trial.compare(batch, gradients=True))
            with random_values(parameters):
                for place, batch in enumerate([*usual, *made_up.revealing()]):
                    reasons |= dict.fromkeys(trial.compare(batch, gradients=place < len(usual)))
                reasons |= dict.fromkeys(trial.look_for_combinations(made_up.rows, list(reasons)))
            with random_values(parameters, opposite=True):  # where an output that was negative is positive
                for batch in usual:
                    reasons |= dict.fromkeys(trial.compare(batch, gradients=True))
            return list(reasons)
    return ["the model could not be run without its random draws"]


def draws_random_numbers(model: nn.Module, inputs: Any) -> bool:
    """Whether outputs change from call to call, although dropout and random draws are replaced by constants."""
    start, found = ModelState(model), list[Any]()
    try:
        with without_randomness(model), torch.no_grad():
            for _ in range(REPEATS):
                found.append([x.clone() for x in leaves(call_model(model, copy_tensors(inputs))) if isinstance(x, Tensor)])
    finally:
        start.restore()
    return any(not torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=False))


class _Trial:
    """A model and a loss whose losses are computed in two ways."""

    def __init__(self, model: nn.Module, loss: Loss, parameters: list[nn.Parameter]) -> None:
        self._model, self._loss, self._parameters, self._effort = model, loss, parameters, effort_for(model)

    def losses(self, batch: Any, rows: slice | Tensor) -> Tensor:
        """The losses of these rows, as one batch."""
        inputs, targets = copy_tensors(rows_of(batch, rows))
        with without_randomness(self._model):  # of the model: examples are made up outside of this block
            return compute_losses(self._loss, call_model(self._model, inputs), targets)

    def compare(self, batch: Any, *, gradients: bool) -> list[str]:
        """Refuse a batch that mixes examples. Returns why independence was not shown by construction; empty if it was."""
        found = set[torch.dtype]()
        try:
            with _record_precisions(found), torch.set_grad_enabled(gradients):
                together = self.losses(batch, slice(None)).detach()
        except Exception:  # the model cannot take these examples
            return []
        tolerance = max(TOLERANCES[dtype] for dtype in found | {together.dtype} if dtype in TOLERANCES)
        try:
            with torch.set_grad_enabled(gradients):
                return self._compare(batch, together, tolerance)
        except UnsupportedLayer:
            if self._is_random(batch, together):
                return [DRAWN]
            raise

    def _compare(self, batch: Any, together: Tensor, tolerance: Tolerance) -> list[str]:
        try:
            self._check(batch, together, self._losses_under_vmap(batch), tolerance)
        except UnsupportedLayer:
            raise
        except Exception as error:
            reason = _reason(error)
        else:
            return []
        try:
            apart = torch.cat([self.losses(batch, slice(i, i + 1)) for i in range(len(together))])
        except Exception:
            return [reason, "some made-up examples cannot be run alone"]
        self._check(batch, together, apart, tolerance)
        return [reason]

    def _is_random(self, batch: Any, together: Tensor) -> bool:
        """Whether the losses of a batch change from run to run: random numbers that no constant replaced."""
        with torch.no_grad():
            again = [self.losses(batch, slice(None)) for _ in range(REPEATS)]
        return any(not torch.equal(together.nan_to_num(), other.nan_to_num()) for other in again)

    def look_for_combinations(self, rows: Callable[[int], Any], known: list[str]) -> list[str]:
        """Refuse losses that follow a number made of several examples. Returns other operations that combine examples.

        A line of code that is among the `known` reasons is not named again.
        """

        def losses(size: int) -> Tensor:
            return self.losses(rows(size), slice(None))

        try:
            reductions, others = find_combinations(losses, self._effort.primes)
        except Exception:  # the model cannot take these examples, or looks for a dispatch mode of torch
            return ["the operations of the model could not be recorded"]
        reasons = list[str]()
        size = self._effort.primes[0]
        with torch.no_grad():
            before = losses(size)
            for place, operation in reductions[: self._effort.reductions]:
                try:
                    with Watch(size, change=place):
                        after = losses(size)
                except Exception:  # this result cannot be changed on its own
                    continue
                if not _close(after, before, TOLERANCES[torch.float32]) and not self._is_random(rows(size), before):
                    raise UnsupportedLayer(f"{MIXED} Here it is {operation}.")
        for operation in dict.fromkeys([*others, *(operation for _, operation in reductions)]):
            if not operation.where or not any(operation.where in reason for reason in (*known, *reasons)):
                reasons.append(f"an operation combines the examples of a batch ({operation})")
        return reasons

    def _check(self, batch: Any, together: Tensor, apart: Tensor, tolerance: Tolerance) -> None:
        finite = apart.isfinite()
        if apart.shape != together.shape or not _close(together[finite], apart[finite], tolerance):
            raise UnsupportedLayer(MIXED)
        few = torch.arange(1, len(together)) if bool(finite.all()) else finite.nonzero().flatten()  # a batch of another size
        if len(few):
            fewer = self.losses(batch, few)
            if not _close(fewer, apart[few], tolerance):
                raise UnsupportedLayer(MIXED)
            self._compare_gradients(fewer, apart[few], tolerance)

    def _compare_gradients(self, together: Tensor, apart: Tensor, tolerance: Tolerance) -> None:
        weights = torch.linspace(1.0, 2.0, len(apart), dtype=apart.dtype, device=apart.device).cos()
        ours, wanted = (self._gradients(losses, weights) for losses in (together, apart))
        overall = max((_largest(gradient) for gradient in wanted if gradient is not None), default=0.0)
        for one, other in zip(ours, wanted, strict=True):
            if one is None and other is None:
                continue
            gap = one if other is None else other if one is None else one - other
            assert gap is not None
            allowed = tolerance.allows(0.0 if other is None else _largest(other), overall)
            if math.isfinite(overall) and not _largest(gap) <= allowed:
                raise UnsupportedLayer(MIXED)

    def _gradients(self, losses: Tensor, weights: Tensor) -> Sequence[Tensor | None]:
        if not losses.requires_grad:
            return [None] * len(self._parameters)
        return torch.autograd.grad(losses @ weights, self._parameters, allow_unused=True)

    def _losses_under_vmap(self, batch: Any) -> Tensor:
        """Each example as a batch of its own, under vmap."""
        parts, form = tree_flatten(batch)
        count = self._effort.examples
        mapped = [place for place, part in enumerate(parts) if isinstance(part, Tensor) and part.shape[:1] == (count,)]

        def one(*rows: Tensor) -> Tensor:
            own = list(parts)
            for place, row in zip(mapped, rows, strict=True):
                own[place] = row.unsqueeze(0).clone()
            inputs, targets = tree_unflatten(own, form)
            return compute_losses(self._loss, call_model(self._model, inputs), targets).squeeze(0)

        recurrent: dict[nn.Module, Callable[..., Any]] = {
            module: _vmap_forward(module) for module in self._model.modules() if isinstance(module, nn.RNNBase)
        }
        with under_vmap(), forwards(recurrent), without_randomness(self._model), Functions():
            found: Tensor = vmap(one, randomness="different")(*(parts[place] for place in mapped))
        return found


def _largest(tensor: Tensor) -> float:
    tensor = tensor.coalesce().values() if tensor.is_sparse else tensor
    return float(torch.linalg.vector_norm(tensor, math.inf)) if tensor.numel() else 0.0


def _close(together: Tensor, apart: Tensor, tolerance: Tolerance) -> bool:
    if not apart.numel():
        return True
    bound = tolerance.own * apart.abs() + tolerance.overall * apart.abs().max()
    return bool(((together - apart).abs() <= bound).all())


@contextmanager
def _record_precisions(found: set[torch.dtype]) -> Iterator[None]:
    """Add to `found` the precisions in which the model computes."""

    def look(tensor: Tensor) -> Tensor:
        found.update({tensor.dtype} & set(TOLERANCES))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        yield


class _Recurrent(torch.autograd.Function):
    """nn.LSTM, nn.GRU and nn.RNN under vmap, which has no rule for them. They treat the rows of a batch separately."""

    @staticmethod
    def forward(module: nn.RNNBase, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        start = None if not states else states if len(states) > 1 else states[0]
        output, ends = type(module).forward(module, x, start)
        return output, *(ends if isinstance(ends, tuple) else (ends,))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], module: nn.RNNBase, x: Tensor, *states: Tensor) -> tuple[Any, Any]:
        """Merge the rows of all examples into one batch, and split the results again."""

        def first(tensor: Tensor, dim: int | None) -> Tensor:
            return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        at = 0 if module.batch_first else 1
        rows = first(x, dims[1])
        merged = rows.movedim(0, at).flatten(at, at + 1)
        starts = [first(state, dim).movedim(0, 1).flatten(1, 2) for state, dim in zip(states, dims[2:], strict=True)]
        output, *ends = _Recurrent.forward(module, merged, *starts)
        apart = [_split(output, at, info.batch_size), *(_split(end, 1, info.batch_size) for end in ends)]
        return tuple(apart), (0,) * len(apart)


def _split(tensor: Tensor, dim: int, count: int) -> Tensor:
    shape = tensor.shape
    return tensor.reshape(*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]).movedim(dim, 0)


def _vmap_forward(module: nn.RNNBase) -> Callable[..., Any]:
    """A forward function of a recurrent module that vmap can run, for padded batches."""

    def forward(x: Any, hx: Any = None) -> Any:
        if not isinstance(x, Tensor) or x.ndim != 3:
            return type(module).forward(module, x, hx)
        states = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        output, *ends = _Recurrent.apply(module, x, *states)  # type: ignore[no-untyped-call]
        return output, tuple(ends) if len(ends) > 1 else ends[0]

    return forward


def _reason(error: Exception) -> str:
    """Why vmap cannot run the model, and at which line of code."""
    says = str(error).strip().partition("\n")[0]
    reading = any(mark in says for mark in (".item()", "data-dependent", "__index__"))
    what = "a tensor is read as a Python number" if reading else "torch.vmap cannot run an operation"
    return f"{what} ({code_line(traceback.extract_tb(error.__traceback__)) or says.partition('. ')[0]})"
