"""Combinations: operations of a forward pass that make one number of several examples, whatever their values are.

A dependence may show only at rare values: a mask that is rarely set, a rare label. Shapes show it without values. The batch has
a prime number of rows, so a dimension that holds the examples is a multiple of it. An operation *combines* examples if it takes
such a dimension and returns none, if it returns two, or if it works along it (a sort, a softmax).

Not all of these mix examples: a check may look at the largest number and raise. So the result of a reduction is changed as
another batch might change it (a larger maximum, a larger count); if the losses change too, they depend on other examples.
"""

import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

REDUCTIONS = {
    "sum", "mean", "nansum", "nanmean", "prod", "max", "min", "amax", "amin", "aminmax", "any", "all", "std", "var", "std_mean",
    "var_mean", "linalg_vector_norm", "norm", "median", "nanmedian", "logsumexp", "count_nonzero", "dot", "mm", "bmm", "mv",
    "addmm",
}  # fmt: skip
PRODUCTS = {"dot", "mm", "bmm", "mv", "addmm"}
ALONG = {
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_softmax", "_log_softmax", "sort", "argsort", "topk", "flip",
    "roll", "gather", "scatter", "scatter_add", "index_select", "index_add", "kthvalue", "mode",
}  # fmt: skip
SEPARABLE = {"_pack_padded_sequence", "_pad_packed_sequence", "nll_loss_forward", "nll_loss2d_forward"}


class Operation(NamedTuple):
    """An operation that combines examples, and the line of code that calls it."""

    name: str
    where: str

    def __str__(self) -> str:
        return f"{self.name} at {self.where}" if self.where else self.name


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations that combine the rows of a batch of `size`, and changes the result of the reduction number `change`."""

    def __init__(self, size: int, change: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size, self._change = size, change
        self.reductions: list[Operation] = []
        self.others: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2].removesuffix("_")
        inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if name in SEPARABLE or not any(map(self._holds, inputs)):
            return result
        found = [x for x in tree_flatten(result)[0] if isinstance(x, Tensor)]
        lost = not any(map(self._holds, found))
        if lost and found and name in REDUCTIONS:
            self.reductions.append(Operation(name, code_line()))
            if len(self.reductions) - 1 == self._change:
                _change(name, found[0])
        elif lost or any(self._twice(x) for x in found) or self._along(name, args, kwargs or {}):
            self.others.append(Operation(name, code_line()))
        return result

    def _holds(self, tensor: Tensor) -> bool:
        """Whether a dimension holds the examples."""
        return any(size and size % self._size == 0 for size in tensor.shape)

    def _twice(self, tensor: Tensor) -> bool:
        """Whether two dimensions do."""
        return sum(bool(size) and size % self._size == 0 for size in tensor.shape) > 1

    def _along(self, name: str, args: Any, kwargs: Any) -> bool:
        """Whether an operation works along the examples."""
        x = args[0] if args else None
        if not isinstance(x, Tensor):
            return False
        if name == "index":
            return any(
                isinstance(index, Tensor) and x.shape[place] % self._size == 0 and not _in_order(index, x.shape[place])
                for place, index in enumerate(args[1])
            )
        if name == "native_layer_norm":
            return any(size % self._size == 0 for size in args[1])
        if name == "native_group_norm":
            return bool(x.shape[0] % self._size)
        if name not in ALONG or not x.ndim:
            return False
        dims = kwargs.get("dim", kwargs.get("dims", args[1] if len(args) > 1 else -1))
        dims = args[2] if name == "roll" and len(args) > 2 else dims
        return any(
            x.shape[dim] % self._size == 0 for dim in (dims if isinstance(dims, list | tuple) else [dims]) if _is_dim(dim, x)
        )


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts products of numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.count += count(*args, **(kwargs or {}), out_val=result) // 2
        return result


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which operations are called at which line of code, and along which dimensions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = set[tuple[Any, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.rpartition("::")[2].removesuffix("_")
        dims = repr((args[1:], kwargs)) if name in (REDUCTIONS | ALONG) - PRODUCTS else ""
        self.found.add((name, dims if "tensor" not in dims else "", code_line()))
        return func(*args, **(kwargs or {}))


def _is_dim(dim: Any, x: Tensor) -> bool:
    return isinstance(dim, int) and -x.ndim <= dim < x.ndim


def _in_order(index: Tensor, rows: int) -> bool:
    """Whether an index takes each row in its place, as in x[torch.arange(len(x)), lengths]."""
    return index.numel() == rows and index.dtype == torch.int64 and bool((index.flatten() == torch.arange(rows)).all())


def _change(name: str, found: Tensor) -> None:
    """Change a result as another batch might."""
    with torch.no_grad():
        if found.is_floating_point():
            found.mul_(1.5).add_(0.1)
        elif found.dtype == torch.bool:
            found.fill_(name == "any")
        else:
            found.add_(1)


def find_combinations(
    losses: Callable[[int], Tensor], sizes: tuple[int, int]
) -> tuple[list[tuple[int, Operation]], list[Operation], tuple[Tensor, Tensor]]:
    """Reductions (with their numbers) and other operations that combine examples, and the losses of both batches.

    `losses(n)` computes the losses of n rows.
    """
    watches, found = [], []
    for size in sizes:
        with torch.no_grad(), Watch(size) as watch:
            found.append(losses(size))
        watches.append(watch)
    first, second = watches
    reductions = [(place, op) for place, op in enumerate(first.reductions) if op in second.reductions]
    others = list(dict.fromkeys(op for op in first.others if op in second.others))
    return reductions, others, (found[0], found[1])


LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<frozen")


def code_line(trace: TracebackType | None = None) -> str:
    """The innermost line of the user's code, if there is one: neither torch's nor ours. Of a trace, or of what runs now."""
    lines = [(f, n) for f, n in traceback.walk_tb(trace)][::-1] if trace else traceback.walk_stack(None)
    for frame, number in lines:
        path = frame.f_code.co_filename
        if not path.startswith(LIBRARIES):
            return f"{Path(path).name}, line {number}: {linecache.getline(path, number, frame.f_globals).strip()}"
    return ""
