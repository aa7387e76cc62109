"""Made-up batches: of the data only shapes and types are used."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privopt.perexample.networks.examples import Kind, Numbers, leaves, make_up

EXAMPLES = 6  # of a batch
EXTREME = 1e3  # how much larger the extreme example is
IGNORED = -100  # the label that torch's losses ignore
MARKS = (0.0, -1.0)  # values that models may read as missing


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standardised features."""
    return torch.randn(shape, generator=generator)


def wide(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Larger features, which no model reads as missing."""
    return 5 * torch.randn(shape, generator=generator)


def padded(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standardised features that end at a random length for each example; the rest is marked as missing."""
    features, examples = normal(shape, generator), shape[0]
    marks = torch.tensor(MARKS).repeat(examples)[:examples]
    for dim in {1, len(shape) - 1} if len(shape) > 1 else ():
        each = (examples, *[1] * (len(shape) - 1))
        lengths = (torch.rand(each, generator=generator) * shape[dim]).ceil()
        places = torch.arange(shape[dim]).view(-1, *[1] * (len(shape) - dim - 1))
        features = torch.where(places < lengths, features, marks.view(each))
    return features


def positive(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Positive features, for models that take a logarithm or a root."""
    return torch.rand(shape, generator=generator) + 0.5


class MadeUp:
    """Made-up batches with the shapes and types of the data."""

    def __init__(
        self, model: nn.Module, inputs: Any, targets: Any, kind: Kind, numbers: Sequence[Numbers], dtype: torch.dtype
    ) -> None:
        self._model, self._inputs, self._targets = model, inputs, targets
        self._kind, self._numbers, self._dtype = kind, numbers, dtype
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
        found.append((_with_extremes(examples), labels))
        found += [(examples, rare) for rare in _rare_targets(labels)]
        if tables := [module.num_embeddings for module in self._model.modules() if isinstance(module, nn.Embedding)]:
            found.append(self._draw(numbers, kind=self._kind._replace(span=(0, min(tables)))))
        return [self._cast(batch) for batch in found]

    def _draw(self, numbers: Numbers, size: int = EXAMPLES, kind: Kind | None = None) -> Any:
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
        lengths = torch.tensor([longest, 0, *itertools.islice(itertools.cycle([1, 2, 1 + longest // 2]), EXAMPLES - 2)])
        inside = torch.arange(longest) < lengths.unsqueeze(1)
        inside = inside.view(EXAMPLES, longest, *[1] * (x.ndim - 2)).to(x.device)
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
        factors = torch.ones(EXAMPLES, *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        factors[0], factors[1] = EXTREME, 0.0
        return x * factors

    return tree_map(stretch, examples)
