"""Examples: tensors, or tuples or dicts of tensors, whose first dimension is the example."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
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
        return tuple(rows_of(part, rows) for part in data)
    return None if data is None else tree_map(lambda x: rows_of(x, rows) if isinstance(x, Tensor) else x, data)


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
        return tuple(move_to_device(part, device) for part in data)
    return there(data) if isinstance(data, Tensor) else tree_map(there, data)
