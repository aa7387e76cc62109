"""The oracle of a network: per-example gradients on its data."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from privopt.errors import InputError, PrivoptError
from privopt.perexample.networks.examples import (
    call_model,
    compute_losses,
    copy_tensors,
    count_examples,
    leaves,
    move_to_device,
    rows_of,
)
from privopt.perexample.networks.isolation.small_tables import check_with_small_tables
from privopt.perexample.networks.layout import FlatParameters, Layout
from privopt.perexample.networks.loss_modules import Loss, check_targets, per_example
from privopt.perexample.networks.model_state import at_least_float32
from privopt.perexample.networks.recorder import Recorder, Way, gradients
from privopt.perexample.networks.torch_grads import ChunkedGrads, TorchGrads, cut
from privopt.perexample.networks.unsupported import UnsupportedLoss


class TorchOracle:
    """A network on its data: (θ, rows) → per-example gradients.

    `inputs` and `targets` are tensors, tuples of tensors (several arguments) or a dict (named arguments), with one row for each
    example. The loss gives one value for each example; a loss module of torch is converted. The parameters of the model become
    views of one vector, `flat.vector`, which is θ. `chunk` is the number of examples that go through the model at a time.

    Unless `check` is False, gradients of made-up examples are compared with plain autograd on each example alone. So a model that
    mixes examples, or uses a parameter outside the module that owns it, is refused before any data are used.

    >>> _ = torch.manual_seed(0)
    >>> oracle = TorchOracle(nn.Linear(3, 2), nn.CrossEntropyLoss(), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    >>> grads = oracle(oracle.flat.vector, np.array([0, 3]))
    >>> oracle.size, grads.norms().shape, grads.weighted_sum([1.0, 0.5]).shape
    (5, torch.Size([2]), torch.Size([8]))
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Any,
        targets: Any = None,
        *,
        chunk: int | None = None,
        check: bool = True,
    ) -> None:
        self._size = count_examples((inputs, targets))
        self._fetch: Callable[[Tensor | slice], tuple[Any, Any]] = lambda rows: rows_of((inputs, targets), rows)
        self._start(model, loss, chunk, check, targets)
        self._moves = any(x.device != self.layout.device for x in leaves((inputs, targets)) if isinstance(x, Tensor))

    @classmethod
    def of_dataset(
        cls,
        model: nn.Module,
        loss: Loss,
        dataset: Dataset[Any],
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        chunk: int | None = None,
        check: bool = True,
    ) -> "TorchOracle":
        """An oracle on a map-style dataset of (inputs, targets), whose rows are read when they are drawn."""
        oracle = cls.__new__(cls)
        oracle._size = len(dataset)  # type: ignore[arg-type]  # map-style datasets have a length

        def fetch(rows: Tensor | slice) -> tuple[Any, Any]:
            places = range(oracle._size)[rows] if isinstance(rows, slice) else rows.tolist()
            inputs, targets = collate([dataset[place] for place in (places or [0])])
            count_examples((inputs, targets))
            return (inputs, targets) if len(places) else rows_of((inputs, targets), slice(0))

        oracle._fetch = fetch
        oracle._start(model, loss, chunk, check, None)
        return oracle

    def _start(self, model: nn.Module, loss: Loss, chunk: int | None, check: bool, targets: Any) -> None:
        if not callable(loss):
            raise InputError(f"the loss is a {type(loss).__name__}, but a function or a loss module of torch is needed.")
        self.model, self.loss, self.chunk = model, per_example(loss), chunk
        self._recorder, self._moves = Recorder(model), True
        self.copies = False  # whether the model changes its inputs in place, so that rows are copied
        self.doubts = ["it was not checked"]  # why it is not proved that each example's loss depends on that example only
        self.layout: Layout = Layout(model)
        if isinstance(loss, nn.Module) and any(p.requires_grad and p not in self.layout.names for p in loss.parameters()):
            raise InputError(
                f"the loss ({type(loss).__name__}) has trainable parameters, which would not be trained. Make them part of the "
                "model, or freeze them: loss.requires_grad_(False)."
            )
        if check and self._size:
            one = self._read(slice(0, 1))
            output, self.copies, self.doubts = check_with_small_tables(self._recorder, self.loss, *one)
            if isinstance(output, Tensor) and isinstance(targets, Tensor):
                check_targets(loss, output.detach()[:1].expand(self._size, *output.shape[1:]), targets)

    @property
    def way(self) -> Way:
        """How the model is run, which the check found."""
        return self._recorder.way

    @way.setter
    def way(self, way: Way) -> None:
        self._recorder.way = way

    @property
    def formed(self) -> int:
        """How many numbers of an example's gradient have to be formed."""
        return self._recorder.formed

    @property
    def size(self) -> int:
        """How many examples there are."""
        return self._size

    @property
    def dimension(self) -> int:
        """How many parameters there are."""
        return self.layout.size

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(self.layout.parameters)

    @property
    def flat(self) -> FlatParameters:
        """θ: the model's trainable parameters as one vector, of which they become views."""
        if not isinstance(self.layout, FlatParameters):
            self.layout = FlatParameters(self.model)
        return self.layout

    def __call__(self, parameters: Tensor | None, rows: Any) -> TorchGrads | ChunkedGrads:
        """The gradients of these rows (None: all) at these parameters (None: the current ones)."""
        index, count = self._index(rows)
        if self.chunk is None or count <= self.chunk:
            return self.at_once(parameters, rows)
        at = parameters if parameters is None or isinstance(parameters, Tensor) else torch.as_tensor(parameters)
        point = self.layout.flat() if at is None else at.detach()  # which chunks that are computed again need as it is

        def compute(start: int, stop: int) -> TorchGrads:
            where = point if isinstance(self.layout, FlatParameters) else None
            return self._gradients(where, _part(index, start, stop), stop - start)

        return ChunkedGrads(compute, cut(count, self.chunk), self.layout)

    def at_once(self, parameters: Tensor | None, rows: Any) -> TorchGrads:
        """The gradients of these rows, however many they are, in one pass."""
        at = parameters if parameters is None or isinstance(parameters, Tensor) else torch.as_tensor(parameters)
        return self._gradients(at, *self._index(rows))

    def losses(self, parameters: Tensor, rows: Any) -> Tensor:
        """The loss of each of these examples (None: all), without gradients."""
        index, count = self._index(rows)
        self.flat.assign(parameters)
        step, parts = self.chunk or max(count, 1), []
        with torch.no_grad(), silent():
            for start in range(0, count, step):
                inputs, targets = self._read(_part(index, start, min(start + step, count)))
                parts.append(at_least_float32(compute_losses(self.loss, call_model(self.model, inputs), targets)))
        found = torch.cat(parts) if parts else self.flat.vector[:0]
        if found.shape != (count,):
            raise UnsupportedLoss(f"the losses of {count} examples have the shape {tuple(found.shape)}: one for each is needed.")
        return found

    def _index(self, rows: Any) -> tuple[Tensor | slice, int]:
        """The indices of these rows, and their number."""
        if rows is None:
            return slice(0, self._size), self._size
        index = torch.as_tensor(np.asarray(rows), dtype=torch.long)
        return index, len(index)

    def _read(self, rows: Tensor | slice) -> tuple[Any, Any]:
        fetched = self._fetch(rows)
        if self._moves:
            fetched = move_to_device(fetched, self.layout.device)
        is_view = isinstance(rows, slice)  # of the user's data
        return copy_tensors(fetched) if self.copies and is_view else fetched

    def _gradients(self, parameters: Tensor | None, rows: Tensor | slice, count: int) -> TorchGrads:
        if parameters is not None:
            self.flat.assign(parameters)
        with silent():
            return gradients(self._recorder, self.layout, self.loss, *self._read(rows), count)


def _part(index: Tensor | slice, start: int, stop: int) -> Tensor | slice:
    """Rows start … stop of an index."""
    return slice(start, stop) if isinstance(index, slice) else index[start:stop]


class silent:  # noqa: N801  # it reads as a phrase; a generator would take longer than some layers
    """Replace errors of the user's code on private examples: their messages may hold a private value."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, PrivoptError):
            return
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise InputError("there is not enough memory for one chunk of examples: use a smaller physical_batch_size.") from None
        raise InputError(
            f"reading a batch, the model or the loss failed ({type(error).__name__}), although made-up examples worked: some "
            "example differs from them, perhaps by a token that is not in an embedding's table, or by its length, which a "
            "collate_fn pads. The message is not shown: it may hold a private value."
        ) from None
