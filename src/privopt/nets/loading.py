"""Reading private examples: a pair of tensors, a map-style dataset, or what a DataLoader says about reading one.

Of a DataLoader, the dataset, `batch_size`, `collate_fn` and the settings of its workers are used. Which examples a batch holds is
never the loader's choice: a batch is a Poisson sample of all examples, or ε would not be what the accountant computes. So a
sampler of the user's own, `shuffle` and weights are refused.

Workers read the pieces of a round ahead, of a round that is drawn already: no round is drawn for their sake. The random numbers
of a piece (augmentation) follow from its place and not from the worker that reads it, so a replay repeats them.

`collate_fn` sees several examples at once. That it leaves each as it is, but for padding at the end, is checked on examples of
the data: those of a small batch are compared with the same ones in a larger batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from privopt.errors import InputError
from privopt.nets.data import as_dataset
from privopt.perexample.networks.examples import leaves, rows_of
from privopt.perexample.networks.rng import global_generators, seed_all, without_randomness
from privopt.perexample.networks.unsupported import UnsupportedLayer

LABELS = ("labels", "label")  # the entry of a dict that is the target, as Hugging Face names it
COMPARED = 8  # examples whose batches are compared
OWN_COLLATION = "batches are put together by the loader's collate_fn, which was compared on a few examples"
DRAWN_BY_US = (
    "Each round needs a Poisson sample of all examples: ε is computed for that, and another choice of examples would not have it"
)
SAMPLERS = {  # what to write instead
    "SubsetRandomSampler": "Give these examples as a dataset: torch.utils.data.Subset(dataset, indices)",
    "DistributedSampler": "Leave it out: under torchrun each process gives all of the data, or its own as a Shard",
}


class Examples:
    """Private examples, and how a batch of them is made.

    >>> examples = Examples.given(DataLoader(TensorDataset(torch.eye(3), torch.arange(3)), batch_size=2))
    >>> len(examples), examples.batch_size, examples.read([0, 2])[1]
    (3, 2, tensor([0, 2]))
    """

    def __init__(self, data: Dataset[Any], loader: DataLoader[Any] | None = None) -> None:
        self.data = data
        self.batch_size: int | None = None
        self._collate: Callable[[list[Any]], Any] = default_collate
        self._loader, self._tasks = loader, list[tuple[int, list[int]]]()
        self._pool: DataLoader[Any] | None = None
        if loader is not None:
            said = getattr(loader.batch_sampler, "batch_size", None)  # Accelerate's loaders have none of their own
            self.batch_size = said if said != 1 else None  # 1 is what it has if nothing is said
            self._collate = loader.collate_fn

    @classmethod
    def given(cls, data: Any) -> Self:
        """Validate what a user gave as data."""
        if isinstance(data, DataLoader):
            dataset = as_dataset(data.dataset)
            check_loader(data)
            return cls(dataset, data)
        return cls(as_dataset(data))

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]  # map-style datasets have a length

    @property
    def workers(self) -> int:
        """How many processes read."""
        return 0 if self._loader is None else self._loader.num_workers

    @property
    def own_collation(self) -> bool:
        """Whether the user's own code puts examples together."""
        return self._collate is not default_collate

    @property
    def code(self) -> dict[str, Any]:
        """The user's code that decides what a batch holds, beside the dataset: a replay with another would ask another query."""
        return {"collate_fn": self._collate, "worker_init_fn": None if self._loader is None else self._loader.worker_init_fn}

    @property
    def tensors(self) -> tuple[Tensor, ...] | None:
        """All examples, if they are tensors in memory."""
        held = isinstance(self.data, TensorDataset) and not self.own_collation
        return tuple(self.data.tensors) if isinstance(self.data, TensorDataset) and held else None

    @property
    def first(self) -> Any:
        """The first example as a batch of one."""
        return self.read([0])

    def items(self, rows: Any) -> list[Any]:
        """These examples, one by one."""
        return [self.data[int(row)] for row in rows]

    def read(self, rows: Any) -> Any:
        """A batch of these examples."""
        if self.tensors is not None:
            return rows_of(self.tensors, torch.as_tensor(np.asarray(rows)))
        return self.collate(self.items(rows))

    def read_sorted(self, rows: Any) -> Any:
        """A batch of these examples, the shortest first if the user's code puts them together.

        The first ones then need less padding than all of them, which shows whether losses depend on the padding.
        """
        return self.read_first(rows, len(rows)) if self.own_collation else self.read(rows)

    def read_first(self, rows: Any, count: int) -> Any:
        """A batch of the shortest of these examples."""
        return self.collate(sorted(self.items(rows), key=_length)[:count])

    def collate(self, items: list[Any]) -> Any:
        """A batch; a Mapping of any kind as a dict."""
        try:
            batch = self._collate(items)
        except RuntimeError as error:
            if "equal size" not in str(error):
                raise
            raise InputError(
                "the examples have different shapes, so they make no batch. Pad them to one shape in the dataset, or in the "
                "collate_fn of a DataLoader."
            ) from None  # torch's message has the lengths of two examples
        return dict(batch) if isinstance(batch, Mapping) else batch

    def collate_pairs(self, items: list[Any]) -> tuple[Any, Any]:
        """A batch as (inputs, targets)."""
        return split_pair(self.collate(items))

    def pair(self, rows: Any) -> tuple[Any, Any]:
        """A batch of these examples as (inputs, targets)."""
        return split_pair(self.read(rows))

    def ahead(self, parts: Sequence[Any], seeds: Sequence[int]) -> Iterator[Any]:
        """The batches of these parts, which workers read ahead, each with random numbers of its own."""
        assert self._loader is not None
        self._tasks[:] = [(seed, [int(row) for row in rows]) for seed, rows in zip(seeds, parts, strict=True)]
        if self._pool is None:
            loader = self._loader
            self._pool = DataLoader(
                _Seeded(self),
                batch_size=None,
                sampler=self._tasks,
                collate_fn=_as_it_is,
                num_workers=loader.num_workers,
                prefetch_factor=loader.prefetch_factor,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                persistent_workers=True,
                generator=torch.Generator(),  # so that the user's own goes on where it was
            )
        return iter(self._pool)

    def check_collation(self) -> None:
        """Refuse a collate_fn that does more to an example than padding it.

        >>> mixing = DataLoader([1.0, 2.0], collate_fn=lambda items: torch.tensor(items) / len(items))
        >>> Examples.given(mixing).check_collation()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        privopt.perexample.networks.unsupported.UnsupportedLayer: collate_fn gives an example other values beside others...
        """
        if not self.own_collation or len(self) < 2:
            return
        with global_generators(torch.device("cpu")):
            items = self.few_items()
            with without_randomness(nn.Identity()):
                whole = self._repeatable(items)
                for size in {1, 2, (len(items) + 1) // 2} - {len(items)}:
                    self._compare(self._repeatable(items[:size]), whole, size)

    def few_items(self) -> list[Any]:
        """A few examples, whose batches are compared."""
        seed_all(0)
        return self.items(range(min(COMPARED, len(self))))

    def _repeatable(self, items: list[Any]) -> list[Any]:
        seed_all(0)
        return leaves(self.collate(items))

    def _compare(self, few: list[Any], whole: list[Any], size: int) -> None:
        if len(few) != len(whole):
            raise UnsupportedLayer(
                "collate_fn gives a list with an entry for each example, which cannot be cut into parts of a batch. Stack the "
                "examples to tensors, padded at the end if they have different lengths, with a mask or their lengths beside them."
            )
        same = all(_agree(part, other, size) for part, other in zip(few, whole, strict=True))
        if not same:
            raise UnsupportedLayer(
                "collate_fn gives an example other values beside others, or says how many there are, so one example would change "
                "the gradients of others. Padding at the end is all it may do: no mixup, no statistics of the batch, no padding "
                "in front."
            )

    def __reduce__(self) -> Any:  # to a worker that is not forked
        return _reader, (self.data, self._collate)


def _reader(data: Dataset[Any], collate: Callable[[list[Any]], Any]) -> Examples:
    examples = Examples(data)
    examples._collate = collate
    return examples


class _Seeded(Dataset[Any]):
    """Batches, read with random numbers of their own: workers that stay would go on with those of the piece before."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __getitem__(self, task: tuple[int, list[int]]) -> Any:
        seed, rows = task
        seed_all(seed)
        return self._examples.read_sorted(rows)


def _length(item: Any) -> int:
    """How many numbers an example has."""
    return sum(x.numel() if isinstance(x, Tensor) else 1 for x in leaves(item))


def _as_it_is(batch: Any) -> Any:
    return batch


def _agree(part: Any, other: Any, size: int) -> bool:
    """Whether the examples of a batch of this size are the first ones of a larger batch, but for padding at the end."""
    if not isinstance(part, Tensor):
        return bool(part == other)
    if not isinstance(other, Tensor) or part.ndim != other.ndim or not part.ndim or part.dtype != other.dtype:
        return isinstance(other, Tensor) and not part.ndim and not other.ndim and bool(part == other)
    if len(part) != size or any(mine > more for mine, more in zip(part.shape[1:], other.shape[1:], strict=True)):
        return bool(part.shape == other.shape and torch.equal(part, other))  # what all examples share
    return torch.equal(part.nan_to_num(), like(part, other).nan_to_num())


def like(part: Any, other: Any) -> Any:
    """The first rows of a batch, cut where those of a smaller batch end."""
    return other[tuple(slice(0, length) for length in part.shape)] if isinstance(part, Tensor) and part.ndim else other


def check_loader(loader: DataLoader[Any]) -> None:
    """Refuse a loader that chooses examples itself."""
    if type(loader.batch_sampler) is not BatchSampler:
        found = "batch_size=None" if loader.batch_sampler is None else type(loader.batch_sampler).__name__
        raise InputError(f"the DataLoader makes its own batches ({found}). {DRAWN_BY_US}. Leave it out, and say batch_size=….")
    if type(loader.sampler) is SequentialSampler:
        return
    if isinstance(loader.sampler, WeightedRandomSampler):
        raise InputError(
            f"the DataLoader draws examples by weights. {DRAWN_BY_US}: an example that is drawn more often would cost more. "
            "Weigh the losses by public numbers instead; the clip still bounds each example."
        )
    if isinstance(loader.sampler, RandomSampler):
        raise InputError(
            f"the DataLoader has shuffle=True. {DRAWN_BY_US}. Leave shuffle out: batches are drawn at random already, anew in "
            "each round."
        )
    name = type(loader.sampler).__name__
    remedy = SAMPLERS.get(name, "Leave it out: the dataset that you give has the examples to draw from")
    raise InputError(f"the DataLoader has a sampler of its own ({name}). {DRAWN_BY_US}. {remedy}.")


def split_pair(batch: Any) -> tuple[Any, Any]:
    """A batch, or an example, as (inputs, targets); of a dict the targets are its labels."""
    if isinstance(batch, Mapping):
        if named := next((name for name in LABELS if name in batch), None):
            return {name: value for name, value in batch.items() if name != named}, batch[named]
        raise InputError(
            f"an item of the dataset is a dict with the entries {', '.join(map(str, batch))}, but none is named 'labels', which "
            "the loss is given. Name the targets so, or give pairs: ({'input_ids': …}, targets)."
        )
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    found = f"{len(batch)} values" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
    raise InputError(
        f"an item of the dataset is {found}, but a pair (inputs, targets) is needed, or a dict with 'labels'. Several inputs "
        "are a tuple: ((a, b), y)."
    )
