"""Isolation: whether each example's loss, and its gradient, depend on that example only.

The losses of a batch are computed in two ways and compared: the batch at once, and each example as a batch of its own. Under
`torch.vmap` the second way is independent by construction, because no value of an example can steer Python code or reach another
example. Agreement at random points then shows that the batch computes the same function: *proved*. Where vmap cannot run the
model, each example goes through it in turn. Its values may steer the code, so agreement is a test: *checked*.

What makes the comparison sharp:

- double precision, so that a dependence in a small branch is not hidden by the rounding of a large one;
- random parameters beside the model's own, so that no branch hides behind a gate that is 0;
- batches made to show a dependence: one example much longer than all others, one of padding only, all alike but one, one
  extreme, and batches of another size;
- training mode, with dropout and random draws replaced by constants.

Examples are made up: only shapes and types of the data are used, so messages may quote what torch says.
"""

import itertools
import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from privopt.perexample.torch.data import Kind, Numbers, call, copied, leaves, rows_of, score, synthetic
from privopt.perexample.torch.errors import UnsupportedLayer
from privopt.perexample.torch.glue import forwards
from privopt.perexample.torch.losses import Loss
from privopt.perexample.torch.memory import Memory

EXAMPLES = 6
EXTREME = 1e3  # times as large as the other examples
MIXED = (
    "the loss of one example depends on other examples of its batch. Either the model or the loss mixes examples: the batch must "
    "be the first dimension everywhere, in the same order. Means over the batch, mixup, weights that sum to one in a batch, an "
    "output (examples, 1) beside targets (examples), and trimming padding that all rows of a batch share mix."
)


class Tolerance(NamedTuple):
    """How far two ways to compute a number may differ: relative to its own parameter, and to the largest gradient of all."""

    own: float
    overall: float

    def allows(self, own: float, overall: float) -> float:
        """The largest difference, of a parameter whose gradient has this size beside the largest of all."""
        return self.own * own + self.overall * overall


TOLERANCES = {
    torch.float64: Tolerance(1e-6, 1e-12),
    torch.float32: Tolerance(1e-3, 1e-4),
    torch.float16: Tolerance(5e-2, 5e-2),
    torch.bfloat16: Tolerance(5e-2, 5e-2),
}


def check_isolation(model: nn.Module, loss: Loss, inputs: Any, targets: Any, kind: Kind, numbers: Sequence[Numbers]) -> list[str]:
    """Refuse a model or loss that mixes examples. The reasons why that was checked and not proved; none if it was proved.

    `inputs` and `targets` show the shapes and types of the data; `kind` says which integers the model can take.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start, reasons = Memory(model), dict[str, None]()
    for dtype in dict.fromkeys((torch.float64, parameters[0].dtype)):
        with ExitStack() as stack:
            stack.callback(start.restore)
            stack.enter_context(in_precision(model, dtype))
            stack.enter_context(without_randomness(model))
            stack.enter_context(torch.enable_grad())
            trial = _Trial(model, loss, parameters)
            batches = _batches(model, inputs, targets, kind, numbers, dtype)
            try:
                trial.losses(batches[0], rows=slice(None))
            except Exception:  # the code insists on another precision
                continue
            for place, batch in enumerate(batches):
                if place == 0:
                    reasons |= dict.fromkeys(trial.compare(batch))
                with random_values(parameters):
                    reasons |= dict.fromkeys(trial.compare(batch))
            return list(reasons)
    return ["the model could not be run without its random draws"]


class _Trial:
    """A model and a loss, computed in two ways."""

    def __init__(self, model: nn.Module, loss: Loss, parameters: list[nn.Parameter]) -> None:
        self._model, self._loss, self._parameters = model, loss, parameters

    def losses(self, batch: Any, rows: slice | Tensor) -> Tensor:
        """Of these rows, as one batch."""
        inputs, targets = copied(rows_of(batch, rows))
        return score(self._loss, call(self._model, inputs), targets)

    def compare(self, batch: Any) -> list[str]:
        """Refuse what mixes. The reason why independence is not shown by construction, if there is one."""
        found = set[torch.dtype]()
        try:
            with _noting_precisions(found):
                together, again = self.losses(batch, slice(None)), self.losses(batch, slice(None))
        except Exception:  # made-up examples that this model cannot take
            return []
        if not torch.equal(together.detach().nan_to_num(), again.detach().nan_to_num()):
            return ["the model or the loss draws random numbers that could not be replaced by constants"]
        tolerance = max(TOLERANCES[dtype] for dtype in found | {together.dtype} if dtype in TOLERANCES)
        try:
            self._check(batch, together, self._apart(batch), tolerance)
        except UnsupportedLayer:
            raise
        except Exception as error:
            reason = _reason(error)
        else:
            return []
        try:
            apart = torch.cat([self.losses(batch, slice(i, i + 1)) for i in range(EXAMPLES)])
        except Exception:
            return [reason, "some made-up examples cannot be run alone"]
        self._check(batch, together, apart, tolerance)
        return [reason]

    def _check(self, batch: Any, together: Tensor, apart: Tensor, tolerance: Tolerance) -> None:
        finite = apart.isfinite()
        if apart.shape != together.shape or not _close(together[finite], apart[finite], tolerance):
            raise UnsupportedLayer(MIXED)
        few = torch.arange(1, EXAMPLES) if bool(finite.all()) else finite.nonzero().flatten()  # a batch of another size
        if len(few):
            fewer = self.losses(batch, few)
            if not _close(fewer, apart[few], tolerance):
                raise UnsupportedLayer(MIXED)
            self._compare_gradients(fewer, apart[few], tolerance)

    def _compare_gradients(self, together: Tensor, apart: Tensor, tolerance: Tolerance) -> None:
        weights = torch.linspace(1.0, 2.0, len(apart), dtype=apart.dtype, device=apart.device).cos()
        ours, alone = (self._gradients(losses, weights) for losses in (together, apart))
        overall = max((_largest(gradient) for gradient in alone if gradient is not None), default=0.0)
        for one, other in zip(ours, alone, strict=True):
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

    def _apart(self, batch: Any) -> Tensor:
        """Each example as a batch of its own, under vmap."""
        parts, form = tree_flatten(batch)
        mapped = [place for place, part in enumerate(parts) if isinstance(part, Tensor) and part.shape[:1] == (EXAMPLES,)]

        def one(*rows: Tensor) -> Tensor:
            own = list(parts)
            for place, row in zip(mapped, rows, strict=True):
                own[place] = row.unsqueeze(0).clone()
            inputs, targets = tree_unflatten(own, form)
            return score(self._loss, call(self._model, inputs), targets).squeeze(0)

        recurrent: dict[nn.Module, Callable[..., Any]] = {
            module: _steps(module) for module in self._model.modules() if isinstance(module, nn.RNNBase)
        }
        with warnings.catch_warnings(), forwards(recurrent):
            warnings.filterwarnings("ignore", "There is a performance drop")  # no batching rule: correct, and slow
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


# ---------------------------------------------------------------- made-up batches


def _batches(
    model: nn.Module, inputs: Any, targets: Any, kind: Kind, numbers: Sequence[Numbers], dtype: torch.dtype
) -> list[Any]:
    """Random examples, then batches that show it when examples depend on each other."""
    generator = torch.Generator().manual_seed(0)

    def made(some: Numbers) -> Any:
        examples = synthetic(inputs, EXAMPLES, generator, numbers=some, kind=kind)
        return examples, synthetic(targets, EXAMPLES, generator, numbers=torch.rand, kind=Kind(boolean=kind.boolean))

    found = [made(some) for some in numbers]
    for value in _paddings(model, inputs):
        examples, labels = made(numbers[0])
        found.append((_padded(examples, value), labels))
    found.append(_alike_but_one(made(numbers[0])))
    examples, labels = made(numbers[0])
    found.append((_with_extremes(examples), labels))
    return [tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, batch) for batch in found]


def _paddings(model: nn.Module, inputs: Any) -> list[int]:
    """Values that may mean padding: 0, and for integers 1 and what embeddings declare."""
    tensors = [x for x in leaves(inputs) if isinstance(x, Tensor) and x.ndim > 1]
    if not tensors:
        return []
    if all(x.is_floating_point() for x in tensors):
        return [0]
    tables = [module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    return sorted({0, 1, *(index for index in tables if index is not None)})


def _padded(examples: Any, value: int) -> Any:
    """End-padded sequences: one as long as can be, one of padding only, the others short."""

    def pad(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[1] < 2:
            return x
        longest = x.shape[1]
        lengths = torch.tensor([longest, 0, *itertools.islice(itertools.cycle([1, 2, 1 + longest // 2]), EXAMPLES - 2)])
        inside = torch.arange(longest) < lengths.unsqueeze(1)
        inside = inside.view(EXAMPLES, longest, *[1] * (x.ndim - 2)).to(x.device)
        return x & inside if x.dtype == torch.bool else torch.where(inside, x, torch.full_like(x, value))

    return tree_map(pad, examples)


def _alike_but_one(batch: Any) -> Any:
    return tree_map(lambda x: torch.cat([x[:1], x[1:2].expand_as(x[1:])]) if isinstance(x, Tensor) and x.ndim else x, batch)


def _with_extremes(examples: Any) -> Any:
    def stretch(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        factors = torch.ones(EXAMPLES, *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        factors[0], factors[1] = EXTREME, 0.0
        return x * factors

    return tree_map(stretch, examples)


# ---------------------------------------------------------------- the model, for a while


@contextmanager
def in_precision(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Floating-point parameters and buffers in another precision; then as they were."""
    tensors = [x for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()]
    before = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.to(dtype)
        yield
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


@contextmanager
def random_values(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Trainable parameters moved by a random step about as large as themselves, so that none is 0; then as they were."""
    generator, before = torch.Generator().manual_seed(1), [parameter.data for parameter in parameters]
    try:
        for parameter in parameters:
            size = float(torch.linalg.vector_norm(parameter.data)) / math.sqrt(max(1, parameter.numel()))
            inputs = parameter.numel() / parameter.shape[0] if parameter.ndim > 1 else 0
            least = 1 / math.sqrt(inputs) if inputs else 0.3
            step = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.data)
            parameter.data = parameter.data + 0.3 * max(size, least) * step
        yield
    finally:
        for parameter, data in zip(parameters, before, strict=True):
            parameter.data = data


class _Constants(TorchFunctionMode):
    """Dropout does nothing, and random numbers are constants: they tell nothing of other examples."""

    _DROPOUT = (
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        torch.dropout,
        torch.alpha_dropout,
        torch.feature_dropout,
        torch.bernoulli,
        Tensor.bernoulli,
    )
    _LIKE = (torch.rand_like, torch.randn_like)
    _MADE = (torch.rand, torch.randn)
    _IN_PLACE = (Tensor.uniform_, Tensor.normal_, Tensor.exponential_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._DROPOUT:
            return args[0] if args else kwargs["input"]
        if func in self._LIKE:
            return torch.full_like(args[0] if args else kwargs["input"], 0.5)
        if func in self._MADE:
            return func(*args, **kwargs).fill_(0.5)
        if func in self._IN_PLACE:
            return args[0].fill_(0.5)
        if func is Tensor.bernoulli_:
            return args[0].fill_(1.0)
        if func is F.scaled_dot_product_attention and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        elif func is F.scaled_dot_product_attention:
            kwargs = {**kwargs, "dropout_p": 0.0}
        if func in (F.multi_head_attention_forward, F.rrelu):
            return func(*args, **{**kwargs, "training": False})
        return func(*args, **kwargs)


@contextmanager
def without_randomness(model: nn.Module) -> Iterator[None]:
    recurrent = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    try:
        for module, _ in recurrent:
            module.dropout = 0.0
        with _Constants():
            yield
    finally:
        for module, dropout in recurrent:
            module.dropout = dropout


@contextmanager
def _noting_precisions(found: set[torch.dtype]) -> Iterator[None]:
    """Note in which precisions the model computes."""

    def look(tensor: Tensor) -> Tensor:
        found.update({tensor.dtype} & set(TOLERANCES))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        yield


def _steps(module: nn.RNNBase) -> Callable[..., Any]:
    """What nn.LSTM, nn.GRU or nn.RNN computes for a padded batch, in operations that vmap knows."""
    cell: Any = {"LSTM": _lstm_cell, "GRU": torch.gru_cell, "RNN_TANH": torch.rnn_tanh_cell, "RNN_RELU": torch.rnn_relu_cell}
    gated = module.mode == "LSTM"

    def forward(x: Tensor, hx: Any = None) -> Any:
        if not isinstance(x, Tensor) or x.ndim != 3 or module.proj_size:
            return type(module).forward(module, x, hx)
        x = x.transpose(0, 1) if module.batch_first else x
        ends: list[Any] = []
        for layer, weights in enumerate(module.all_weights[:: 2 if module.bidirectional else 1]):
            sides = [weights, module.all_weights[2 * layer + 1]] if module.bidirectional else [weights]
            outputs = []
            for side, own in enumerate(sides):
                place = layer * len(sides) + side
                zero = x.new_zeros(x.shape[1], module.hidden_size)
                state = ((zero, zero) if gated else zero) if hx is None else (hx[0][place], hx[1][place]) if gated else hx[place]
                states = []
                for now in x.unbind() if not side else reversed(x.unbind()):
                    state = cell[module.mode](now, state, *own)
                    states.append(state[0] if gated else state)
                outputs.append(torch.stack(states if not side else states[::-1]))
                ends.append(state)
            x = torch.cat(outputs, 2)
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True)) if gated else torch.stack(ends)
        return (x.transpose(0, 1) if module.batch_first else x), last

    return forward


def _lstm_cell(x: Tensor, state: tuple[Tensor, Tensor], w_ih: Tensor, w_hh: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    gates = F.linear(x, w_ih, *biases[:1]) + F.linear(state[0], w_hh, *biases[1:])  # (vmap does not know torch.lstm_cell)
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _reason(error: Exception) -> str:
    """Why vmap cannot run the model, with the line of code."""
    libraries = tuple(str(Path(path).parent) for path in (torch.__file__, __file__))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(libraries)]
    says = str(error).strip().partition("\n")[0]
    reading = any(mark in says for mark in (".item()", "data-dependent", "__index__"))
    what = "a tensor is read as a Python number" if reading else "torch.vmap cannot run an operation"
    if not frames:
        return f"{what} ({says[:120]})"
    return f"{what} ({Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line})"
