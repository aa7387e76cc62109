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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from privopt.perexample.networks.apart import Functions, under_vmap
from privopt.perexample.networks.examples import (
    Effort,
    Like,
    MadeUp,
    call_model,
    compute_losses,
    copy_tensors,
    leaves,
    rows_of,
)
from privopt.perexample.networks.isolation.combinations import Watch, code_line, find_combinations
from privopt.perexample.networks.loss_modules import Loss
from privopt.perexample.networks.model_state import ModelState, forwards, in_precision, opposite_values, random_values
from privopt.perexample.networks.rng import without_randomness
from privopt.perexample.networks.unsupported import UnsupportedLayer

CHANGED = 8  # reductions whose results are changed
REPEATS = 5  # runs of one batch that show whether its losses are random
SINGLE_ONLY = "the model computes in single precision only, where rounding hides what is small"
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


def check_isolation(model: nn.Module, loss: Loss, like: Like, whole: Like | None = None) -> list[str]:
    """Refuse a model or loss that mixes examples. Returns why independence is checked and not proved; empty if it is proved.

    The examples that are made up are `like` those of the data, perhaps shorter; then one batch is as long as the `whole` ones.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start, trial = ModelState(model), _Trial(model, loss, parameters, like.effort)
    trial.reasons |= {
        f"a backward hook of {name or 'the model'} may change gradients": None
        for name, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    }
    for dtype in dict.fromkeys((torch.float64, parameters[0].dtype)):
        made_up = MadeUp(model, like, dtype)
        usual = made_up.usual()
        with _computing_in(dtype, model, loss, start):
            try:
                trial.losses(usual[0], rows=slice(None))
            except Exception:  # the code needs another precision
                trial.reasons[SINGLE_ONLY] = None
                continue
            for batch in usual:
                trial.compare(batch, gradients=False)
        with random_values(parameters), _computing_in(dtype, model, loss, start):
            for place, batch in enumerate([*usual, *made_up.revealing()]):
                trial.compare(batch, gradients=place < len(usual))
            trial.look_for_combinations(made_up.rows(max(like.effort.primes)))
            if whole is not None:
                long = _Trial(model, loss, parameters, whole.effort, trial.reasons)
                long.compare(MadeUp(model, whole, dtype).usual()[0], gradients=False)
            with opposite_values(parameters):  # where an output that was negative is positive
                for batch in usual:
                    trial.compare(batch, gradients=True)
        return list(trial.reasons)
    return ["the model could not be run without its random draws"]


@contextmanager
def _computing_in(dtype: torch.dtype, model: nn.Module, loss: Loss, start: ModelState) -> Iterator[None]:
    """Run model and loss in this precision in this block, and restore the model's state after it."""
    with ExitStack() as stack:
        stack.callback(start.restore)
        stack.enter_context(in_precision(model, dtype))
        if isinstance(module := getattr(loss, "module", loss), nn.Module):
            stack.enter_context(in_precision(module, dtype))
        stack.enter_context(torch.enable_grad())
        yield


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
    """A model and a loss whose losses are computed in two ways, and the `reasons` why independence is not proved."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: list[nn.Parameter],
        effort: Effort,
        reasons: dict[str, None] | None = None,
    ) -> None:
        self._model, self._loss, self._parameters, self._effort = model, loss, parameters, effort
        self.reasons: dict[str, None] = {} if reasons is None else reasons
        self._precisions = set[torch.dtype]()

    def losses(self, batch: Any, rows: slice | Tensor) -> Tensor:
        """The losses of these rows, as one batch."""
        inputs, targets = copy_tensors(rows_of(batch, rows))
        with without_randomness(self._model):  # of the model: examples are made up outside of this block
            return compute_losses(self._loss, call_model(self._model, inputs), targets)

    def compare(self, batch: Any, *, gradients: bool) -> None:
        """Refuse a batch that mixes examples."""
        try:
            if self._precisions:
                with torch.no_grad():
                    together = self.losses(batch, slice(None))
            else:
                with _record_precisions(self._precisions), _Hooks(self.reasons):
                    together = self.losses(batch, slice(None)).detach()
        except Exception:  # the model cannot take these examples
            return
        self._precisions.add(together.dtype)
        try:
            with torch.set_grad_enabled(gradients):
                self._compare(batch, together)
        except UnsupportedLayer:
            if not self._is_random(batch, together):
                raise
            self.reasons[DRAWN] = None

    @property
    def _tolerance(self) -> Tolerance:
        return max(TOLERANCES[dtype] for dtype in self._precisions if dtype in TOLERANCES)

    def _compare(self, batch: Any, together: Tensor) -> None:
        try:
            self._check(batch, together, self._losses_under_vmap(batch))
            return
        except UnsupportedLayer:
            raise
        except Exception as error:  # vmap cannot run the model, or its gradients: recomputed layers have none there
            self.reasons[_reason(error)] = None
        try:
            apart = torch.cat([self.losses(batch, slice(i, i + 1)) for i in range(len(together))])
        except Exception:
            self.reasons["some made-up examples cannot be run alone"] = None
            return
        self._check(batch, together, apart)

    def _is_random(self, batch: Any, together: Tensor) -> bool:
        """Whether the losses of a batch change from run to run: random numbers that no constant replaced."""
        with torch.no_grad():
            again = [self.losses(batch, slice(None)) for _ in range(REPEATS)]
        return any(not torch.equal(together.nan_to_num(), other.nan_to_num()) for other in again)

    def look_for_combinations(self, batch: Any) -> None:
        """Refuse losses that follow a number made of several examples, and name other operations that combine examples.

        A line of code that is a reason already is not named again.
        """

        def losses(size: int) -> Tensor:
            return self.losses(batch, slice(size))

        try:
            reductions, others, (fewer, more) = find_combinations(losses, self._effort.primes)
        except Exception:  # the model cannot take these examples, or looks for a dispatch mode of torch
            self.reasons["the operations of the model could not be recorded"] = None
            return
        size, finite = self._effort.primes[0], fewer.isfinite()
        changed: list[tuple[Tensor, str]] = [(more[:size], "")]  # losses that must be those of a batch of that size
        for place, operation in reductions[:CHANGED]:
            try:
                with torch.no_grad(), Watch(size, change=place):
                    changed.append((losses(size), f" Here it is {operation}."))
            except Exception:  # this result cannot be changed on its own
                continue
        for after, remark in changed:
            same = _close(after[finite], fewer[finite], max(self._tolerance, TOLERANCES[torch.float32]))
            if not same and not self._is_random(rows_of(batch, slice(size)), fewer):
                raise UnsupportedLayer(f"{MIXED}{remark}")
        for operation in dict.fromkeys([*others, *(operation for _, operation in reductions)]):
            if not operation.where or not any(operation.where in reason for reason in self.reasons):
                self.reasons[f"an operation combines the examples of a batch ({operation})"] = None

    def _check(self, batch: Any, together: Tensor, apart: Tensor) -> None:
        finite = apart.isfinite()
        if apart.shape != together.shape or not _close(together[finite], apart[finite], self._tolerance):
            raise UnsupportedLayer(MIXED)
        if bool(finite.all()) and not torch.is_grad_enabled():
            return
        few = torch.arange(1, len(together)) if bool(finite.all()) else finite.nonzero().flatten()  # a batch of another size
        if len(few):
            fewer = self.losses(batch, few)
            if not _close(fewer, apart[few], self._tolerance):
                raise UnsupportedLayer(MIXED)
            self._compare_gradients(fewer, apart[few])

    def _compare_gradients(self, together: Tensor, apart: Tensor) -> None:
        """Refuse gradients that differ, a part of the parameters at a time: those of a large model take memory."""
        weights = torch.linspace(1.0, 2.0, len(apart), dtype=apart.dtype, device=apart.device).cos()
        if not apart.requires_grad and not together.requires_grad:
            return
        gaps, sizes = list[float](), list[float]()
        with without_randomness(self._model):  # layers that are recomputed now had none when they ran
            for part in _parts(self._parameters):
                wanted = _gradients(apart, weights, part)
                sizes += [0.0 if gradient is None else _largest(gradient) for gradient in wanted]
                for one, other in zip(_gradients(together, weights, part), wanted, strict=True):
                    gap = one if other is None else other if one is None else one.sub(other)
                    gaps.append(0.0 if gap is None else _largest(gap))
        overall = max(sizes, default=0.0)
        if math.isfinite(overall) and any(
            not gap <= self._tolerance.allows(size, overall) for gap, size in zip(gaps, sizes, strict=True)
        ):
            raise UnsupportedLayer(MIXED)

    def _losses_under_vmap(self, batch: Any) -> Tensor:
        """Each example as a batch of its own, under vmap."""
        parts, form = tree_flatten(batch)
        count = self._effort.examples
        mapped = [place for place, part in enumerate(parts) if isinstance(part, Tensor) and part.shape[:1] == (count,)]

        def one(token: Tensor, *rows: Tensor) -> Tensor:
            own = list(parts)
            for place, row in zip(mapped, rows, strict=True):
                own[place] = row.unsqueeze(0).clone()
            inputs, targets = tree_unflatten(own, form)
            with Functions(token):
                return compute_losses(self._loss, call_model(self._model, inputs), targets).squeeze(0)

        recurrent: dict[nn.Module, Callable[..., Any]] = {
            module: _vmap_forward(module) for module in self._model.modules() if isinstance(module, nn.RNNBase)
        }
        with under_vmap(), forwards(recurrent), without_randomness(self._model):
            token = torch.zeros(count, device=parts[mapped[0]].device)
            found: Tensor = vmap(one, randomness="different")(token, *(parts[place] for place in mapped))
        return found


AT_ONCE = 1 << 25  # numbers of gradients that are compared at a time


def _parts(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Some parameters at a time."""
    part, numbers = list[nn.Parameter](), 0
    for parameter in parameters:
        if part and numbers + parameter.numel() > AT_ONCE:
            yield part
            part, numbers = [], 0
        part.append(parameter)
        numbers += parameter.numel()
    yield part


def _gradients(losses: Tensor, weights: Tensor, parameters: list[nn.Parameter]) -> Sequence[Tensor | None]:
    if not losses.requires_grad:
        return [None] * len(parameters)
    return torch.autograd.grad(losses @ weights, parameters, allow_unused=True, retain_graph=True)


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


class _Hooks(TorchFunctionMode):
    """Adds to reasons the lines of code that register a hook on a gradient: what it does may depend on rare values."""

    def __init__(self, reasons: dict[str, None]) -> None:
        super().__init__()
        self._reasons = reasons

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.register_hook:
            self._reasons[f"a hook may change gradients ({code_line()})"] = None
        return func(*args, **(kwargs or {}))


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
    return f"{what} ({code_line(error.__traceback__) or says.partition('. ')[0]})"
