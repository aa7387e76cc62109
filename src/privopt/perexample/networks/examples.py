"""Examples: tensors, or tuples or dicts of tensors, whose first dimension is the example; real ones, and made-up ones.

Of the data, made-up batches use shapes and types only.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from privopt.errors import InputError

Numbers = Callable[..., Tensor]  # (shape, generator=…)


def count_examples(data: Any) -> int:
    """The number of examples."""
    sizes = {x.shape[0] if x.ndim else 0 for x in leaves(data) if isinstance(x, Tensor)}
    if len(sizes) != 1:
        raise InputError(
            f"inputs and targets must be tensors with one row for each example: they have {sorted(sizes) or 'no'} rows."
        )
    return int(sizes.pop())


def rows_of(data: Any, rows: Tensor | slice) -> Any:
    """These examples."""
    if isinstance(data, Tensor):
        return data[rows] if isinstance(rows, slice) else data.index_select(0, rows.to(data.device))
    if isinstance(data, tuple):
        return _as_tuple(data, [rows_of(part, rows) for part in data])
    return None if data is None else tree_map(lambda x: rows_of(x, rows) if isinstance(x, Tensor) else x, data)


def _as_tuple(data: tuple[Any, ...], parts: list[Any]) -> Any:
    """The parts as a tuple of the same kind: with names, if it has names."""
    return data._make(parts) if hasattr(data, "_make") else tuple(parts)


def copy_tensors(data: Any) -> Any:
    """A copy of the data, which a model may change in place."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, data)


def leaves(data: Any) -> list[Any]:
    """All tensors and other values in a nested structure."""
    if isinstance(data, tuple):
        return [leaf for part in data for leaf in leaves(part)]
    return [data] if isinstance(data, Tensor) else tree_flatten(data)[0]


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model with a tensor, a tuple of arguments, or a dict of named arguments."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def compute_losses(loss: Callable[..., Tensor], output: Any, targets: Any) -> Tensor:
    """Call the loss on an output; targets are None, a tensor, or a tuple of arguments."""
    if targets is None:
        return loss(output)
    return loss(output, *targets) if isinstance(targets, tuple | list) else loss(output, targets)


class Kind(NamedTuple):
    """Which integers and booleans are made up: integers in a half-open range; booleans all equal, or None: mixed."""

    span: tuple[int, int] = (0, 2)
    boolean: bool | None = None


PLAIN = Kind()
KINDS = (  # from the most revealing to the most acceptable, such as lengths that are never 0
    Kind((0, 4)),
    Kind((1, 3)),
    Kind((0, 2)),
    Kind((0, 4), boolean=False),
    Kind((1, 3), boolean=False),
    Kind((0, 2), boolean=False),
    Kind((1, 2), boolean=False),
    Kind((1, 2), boolean=True),
)


def possible_kinds(data: Any) -> list[Kind]:
    """The kinds that differ for such data. Off the CPU only 0 and 1: an index outside a table would end the process."""
    tensors = [x for x in leaves(data) if isinstance(x, Tensor)]
    integers = any(x.dtype != torch.bool and not x.is_floating_point() for x in tensors)
    flags = any(x.dtype == torch.bool for x in tensors)
    found: dict[tuple[object, object], Kind] = {}
    for kind in KINDS:
        if kind.span[1] <= 2 or not integers or all(x.device.type == "cpu" for x in tensors):
            found.setdefault((integers and kind.span, flags and kind.boolean), kind)
    return list(found.values())


def make_up(data: Any, examples: int, generator: torch.Generator, *, numbers: Numbers = torch.randn, kind: Kind = PLAIN) -> Any:
    """Made-up data of the same shapes and types."""

    def replace(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        shape = (examples, *x.shape[1:])
        if x.dtype == torch.bool:
            return _flags(shape, kind.boolean, generator).to(x)
        if x.is_floating_point():
            return numbers(shape, generator=generator).to(x)
        return torch.randint(*kind.span, shape, generator=generator).to(x)

    return tree_map(replace, data)


def _flags(shape: tuple[int, ...], value: bool | None, generator: torch.Generator) -> Tensor:
    """Booleans. If they are mixed, each example has both: a mask that hides everything would leave no number."""
    if value is not None:
        return torch.full(shape, value)
    flags = torch.rand(shape, generator=generator) < 0.5
    if len(shape) > 1 and shape[-1]:
        flags[..., -1], flags[..., 0] = True, False
    return flags


def describe_types(data: Any) -> str:
    """Types and shapes, for a message; no values.

    >>> describe_types((torch.zeros(7, 2), torch.zeros(7, dtype=torch.long)))
    'float32 (examples, 2) and int64 (examples)'
    """
    tensors = [x for x in leaves(data) if isinstance(x, Tensor)]
    return " and ".join(
        f"{str(x.dtype).removeprefix('torch.')} ({', '.join(['examples', *map(str, x.shape[1:])])})" for x in tensors
    )


def move_to_device(data: Any, device: torch.device) -> Any:
    """The data on the model's device. Data may be on the CPU or on that device."""

    def there(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.device == device:
            return x
        if x.device.type != "cpu":
            raise InputError(
                f"the data are on {x.device}, the model is on {device}. Put both on one device, or leave the data on the CPU: "
                "each batch is then moved to the model."
            )
        return x.to(device)

    if isinstance(data, tuple):
        return _as_tuple(data, [move_to_device(part, device) for part in data])
    return there(data) if isinstance(data, Tensor) else tree_map(there, data)


# ---------------------------------------------------------------- batches that show a dependence


class Effort(NamedTuple):
    """How many made-up examples a model is checked with."""

    batch: int = 7  # a batch, and those compared one at a time; a period of one is not a period of the other
    single: int = 5
    examples: int = 6  # of a batch that shows a dependence
    primes: tuple[int, int] = (11, 13)  # rows of two batches: few other dimensions are a multiple of both by chance


THOROUGH, SPARING = Effort(), Effort(3, 2, 3, (5, 7))
LARGE = 1 << 24  # parameters of a model that is checked with fewer examples
HEAVY = 1 << 21  # products of one example, of a model that is, too


def effort_for(model: nn.Module, products: int = 0) -> Effort:
    """By the size of the model, and how many products it takes to run it on one example."""
    large = sum(parameter.numel() for parameter in model.parameters()) > LARGE
    return SPARING if large or products > HEAVY else THOROUGH


SHORT = (8, 16, 32)  # lengths to which long sequences and images are cut


def shortened(data: Any, runs: Callable[[Any], bool]) -> Any:
    """The data with their long dimensions cut, where the model still `runs`: to show a dependence, short sequences will do."""
    lengths = {size for x in leaves(data) if isinstance(x, Tensor) for size in x.shape[1:]}
    for length in sorted(lengths, reverse=True):
        for short in SHORT:
            if 2 * short <= length and runs(found := _cut(data, length, short)):
                data = found
                break
    return data


def _cut(data: Any, length: int, short: int) -> Any:
    def cut(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x[(slice(None), *(slice(short) if size == length else slice(None) for size in x.shape[1:]))] if x.ndim else x

    return tree_map(cut, data)


EXTREME = 1e3  # how much larger the extreme example is
IGNORED = -100  # the label that torch's losses ignore
MARKS = (0.0, -1.0)  # values that models may read as missing
GOLDEN = 0.618  # whose multiples, without their integers, are spread over 0 … 1


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standardised features."""
    return torch.randn(shape, generator=generator)


def padded(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Features of another length for each example; the rest is marked as missing. Every third example's are larger than usual."""
    each = (shape[0], *[1] * (len(shape) - 1))
    places = torch.arange(shape[0]).view(each)
    marks = torch.tensor(MARKS).repeat(shape[0])[: shape[0]].view(each)
    features = normal(shape, generator) * torch.where(places % 3 == 0, 5.0, 1.0)
    for dim in {1, len(shape) - 1} if len(shape) > 1 else ():
        lengths = ((places + 1) * GOLDEN % 1 * shape[dim]).ceil()
        inside = torch.arange(shape[dim]).view(-1, *[1] * (len(shape) - dim - 1)) < lengths
        features = torch.where(inside, features, marks)
    return features


def positive(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Positive features, for models that take a logarithm or a root."""
    return torch.rand(shape, generator=generator) + 0.5


class Like(NamedTuple):
    """What made-up examples are like: shapes and types of one example, and which values the model can take."""

    inputs: Any
    targets: Any
    kind: Kind
    numbers: Sequence[Numbers]
    effort: Effort


class MadeUp:
    """Made-up batches with the shapes and types of the data."""

    def __init__(self, model: nn.Module, like: "Like", dtype: torch.dtype) -> None:
        self._model, self._inputs, self._targets = model, like.inputs, like.targets
        self._kind, self._numbers, self._dtype, self._size = like.kind, like.numbers, dtype, like.effort.examples
        self._generator = torch.Generator().manual_seed(0)

    def usual(self) -> list[Any]:
        """Random examples."""
        return [self._cast(self._draw(numbers)) for numbers in self._numbers]

    def rows(self, size: int) -> Any:
        """A batch of `size` random examples, the same at every call."""
        self._generator.manual_seed(1)
        return self._cast(self._draw(self._numbers[0], size))

    def revealing(self) -> list[Any]:
        """Batches that reveal whether examples depend on each other."""
        numbers, found = self._numbers[0], []
        for value in _paddings(self._model, self._inputs):
            examples, labels = self._draw(numbers)
            found.append((_pad_examples(examples, value), labels))
        found.append(_alike_but_one(self._draw(numbers)))
        examples, labels = self._draw(numbers)
        extreme = _with_extremes(examples)
        found += [(extreme, rare) for rare in _rare_targets(labels) or [labels]]
        if tables := [module.num_embeddings for module in self._model.modules() if isinstance(module, nn.Embedding)]:
            found.append(self._draw(numbers, kind=self._kind._replace(span=(0, min(tables)))))
        return [self._cast(batch) for batch in found]

    def _draw(self, numbers: Numbers, size: int | None = None, kind: Kind | None = None) -> Any:
        size = size or self._size
        examples = make_up(self._inputs, size, self._generator, numbers=numbers, kind=kind or self._kind)
        plain = Kind(boolean=self._kind.boolean)
        return examples, make_up(self._targets, size, self._generator, numbers=torch.rand, kind=plain)

    def _cast(self, batch: Any) -> Any:
        return tree_map(lambda x: x.to(self._dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, batch)


def _rare_targets(targets: Any) -> list[Any]:
    """Targets with values of special meaning: 0 and 1, and the label that a loss ignores."""
    tensors = [x for x in leaves(targets) if isinstance(x, Tensor)]
    found = []
    if any(x.is_floating_point() for x in tensors):
        found.append(tree_map(lambda x: x.round() if isinstance(x, Tensor) and x.is_floating_point() else x, targets))
    if any(x.dtype == torch.int64 for x in tensors):
        found.append(tree_map(_ignore_some, targets))
    return found


def _ignore_some(x: Any) -> Any:
    """Replace every third label, in one half of the examples, by the one that torch's losses ignore."""
    if not isinstance(x, Tensor) or x.dtype != torch.int64 or not x.ndim:
        return x
    marked = x.clone()
    marked[: len(x) // 2].view(-1)[::3] = IGNORED
    return marked


def _paddings(model: nn.Module, inputs: Any) -> list[int]:
    """Values that may mean padding: 0; for integers also 1, the last id, and what embeddings declare."""
    tensors = [x for x in leaves(inputs) if isinstance(x, Tensor) and x.ndim > 1]
    if not tensors:
        return []
    if all(x.is_floating_point() for x in tensors):
        return [0]
    tables = [module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    last = [module.num_embeddings - 1 for module in model.modules() if isinstance(module, nn.Embedding)]
    return sorted({0, 1, *last[:1], *(index for index in tables if index is not None)})


def _pad_examples(examples: Any, value: int) -> Any:
    """Sequences padded at the end: one of full length, one of padding only, the others short."""

    def pad(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[1] < 2:
            return x
        longest = x.shape[1]
        lengths = torch.tensor([longest, 0, *itertools.islice(itertools.cycle([1, 2, 1 + longest // 2]), len(x) - 2)])
        inside = torch.arange(longest) < lengths.unsqueeze(1)
        inside = inside.view(len(x), longest, *[1] * (x.ndim - 2)).to(x.device)
        return x & inside if x.dtype == torch.bool else torch.where(inside, x, torch.full_like(x, value))

    return tree_map(pad, examples)


def _alike_but_one(batch: Any) -> Any:
    """A batch in which all examples but the first are the same."""
    return tree_map(lambda x: torch.cat([x[:1], x[1:2].expand_as(x[1:])]) if isinstance(x, Tensor) and x.ndim else x, batch)


def _with_extremes(examples: Any) -> Any:
    """A batch whose first example is huge, and whose second is 0."""

    def stretch(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        factors = torch.ones(len(x), *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        factors[0], factors[1] = EXTREME, 0.0
        return x * factors

    return tree_map(stretch, examples)
