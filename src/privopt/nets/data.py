"""Data for networks: datasets, their fingerprints, and the number of examples that go through the model at a time."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from privopt.errors import InputError
from privopt.perexample.networks.examples import call_model, make_up, move_to_device, possible_kinds, rows_of
from privopt.perexample.networks.model_state import ModelState
from privopt.perexample.networks.recorder import record
from privopt.perexample.networks.rng import RngState, global_generators, seed_all

READ_TWICE = 32  # examples that are read twice, to see that a seed repeats them
MEMORY = 64 << 20  # bytes of activations at a time


def as_dataset(data: Any) -> Dataset[Any]:
    """Validate the data and return them as a map-style dataset."""
    tensors = isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
    if isinstance(data, tuple) and not tensors:
        raise InputError(
            f"the data are ({', '.join(type(part).__name__ for part in data[:3])}), but a pair of tensors (inputs, targets) or a "
            "map-style Dataset is needed. torch.as_tensor makes a tensor of an array."
        )
    if tensors:
        if data[0].shape[:1] != data[1].shape[:1]:
            sizes = [part.shape[0] if part.ndim else "no" for part in data]
            raise InputError(f"there are {sizes[0]} inputs, but {sizes[1]} targets.")
        return TensorDataset(data[0], data[1])
    if isinstance(data, DataLoader):
        raise InputError("privopt draws the batches itself, at random for each round: give the loader's dataset, loader.dataset.")
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InputError(
            f"{type(data).__name__} has no length, so examples cannot be sampled from it. Give a map-style Dataset, with __len__ "
            "and __getitem__, or a pair of tensors (inputs, targets)."
        )
    return data


def as_model(model: Any) -> nn.Module:
    """Validate that the model is a module of torch."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, but a torch.nn.Module is needed.")
    return model


def pairs(data: Dataset[Any]) -> Dataset[Any]:
    """Validate that a dataset holds pairs (inputs, targets)."""
    first = data[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        found = f"{len(first)} values" if isinstance(first, tuple | list) else f"a {type(first).__name__}"
        raise InputError(
            f"an item of the dataset is {found}, but a pair (inputs, targets) is needed. Several inputs are a tuple: ((a, b), y)."
        )
    return data


def first_of(data: Dataset[Any]) -> Any:
    """The first example as a batch of one."""
    return default_collate([data[0]])


def physical_batch_size(model: nn.Module, inputs: Any) -> int:
    """The number of examples whose activations fit into `MEMORY`; measured on made-up examples."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}  # bytes, by address

    def weigh(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    examples = 2
    device = next(model.parameters()).device
    start = ModelState(model)
    first, generator = move_to_device(rows_of(inputs, slice(0, 1)), device), torch.Generator().manual_seed(0)
    candidates = possible_kinds(first)
    for kind in candidates:
        kept.clear()
        made_up = make_up(first, examples, generator, kind=kind)
        try:
            with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor), RngState(device).replay(), record(model):
                call_model(model, made_up)
            break
        except (RuntimeError, IndexError, ValueError):
            if kind is candidates[-1]:
                raise
        finally:
            start.restore()
    each = max(1, sum(kept.values())) / examples
    return int(min(max(MEMORY / each, 8), 4096))


def content(dataset: Dataset[Any]) -> str:
    """A fingerprint of all of the data; random examples are read with a fixed seed.

    Refuse examples that a seed does not repeat: a replay would add the same noise to other examples, which reveals both.
    """
    if isinstance(dataset, TensorDataset):
        digest = hashlib.sha256()
        _feed(digest, dataset.tensors)
        return digest.hexdigest()
    size = len(dataset)  # type: ignore[arg-type]
    with torch.random.fork_rng(), global_generators(torch.device("cpu")):
        if _read(dataset, min(size, READ_TWICE)) != _read(dataset, min(size, READ_TWICE)):
            raise InputError(
                f"{type(dataset).__name__} gives other examples each time, even after torch.manual_seed, so a replay would use "
                "the same noise for other data. With a checkpoint or a saved state, draw augmentation from torch's own "
                "generator: torch.rand(…), without generator=…."
            )
        return _read(dataset, size)


def _read(dataset: Dataset[Any], size: int) -> str:
    """A fingerprint of the first examples, read with a fixed seed."""
    seed_all(0)
    digest = hashlib.sha256()
    for place in range(size):
        _feed(digest, dataset[place])
    return digest.hexdigest()


def values(*parts: nn.Module | torch.optim.Optimizer) -> str:
    """A fingerprint of the values of models and optimizers."""
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part.state_dict())
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(repr((value.dtype, tuple(value.shape))).encode())
        digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    elif isinstance(value, dict):
        for key, inner in value.items():
            _feed(digest, key)
            _feed(digest, inner)
    elif isinstance(value, tuple | list):
        digest.update(f"{len(value)}".encode())
        for inner in value:
            _feed(digest, inner)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(repr((value.dtype, value.shape)).encode())
        digest.update(np.ascontiguousarray(value))
    else:
        digest.update(f"{type(value).__name__} {value!r};".encode())
