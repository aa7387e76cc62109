"""Data for networks: a dataset with a length, or tensors; and how many examples go through the model at a time."""

import hashlib
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from privopt.errors import InputError
from privopt.perexample.torch.data import call, rows_of, synthetic

MEMORY = 256 << 20  # bytes of activations at a time
SAMPLED = 64  # examples whose content is fingerprinted


def as_dataset(data: Any) -> Dataset[Any]:
    """A map-style dataset of (inputs, targets)."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        if len(data[0]) != len(data[1]):
            raise InputError(f"there are {len(data[0])} inputs, but {len(data[1])} targets.")
        return TensorDataset(data[0], data[1])
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InputError(
            f"{type(data).__name__} has no length, so examples cannot be sampled from it. Give a map-style Dataset, with __len__ "
            "and __getitem__, or a pair of tensors (inputs, targets)."
        )
    return data


def physical_batch_size(model: nn.Module, inputs: Any) -> int:
    """How many examples at a time keep the activations of a forward pass within `MEMORY`; measured on made-up examples."""
    saved = 0

    def weigh(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    examples = 2
    fixed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor), torch.random.fork_rng(devices=[]):
        call(model, synthetic(rows_of(inputs, slice(0, 1)), examples, torch.Generator().manual_seed(0)))
    each = max(1, saved - fixed) / examples
    return int(min(max(MEMORY / each, 8), 4096))


def fingerprint(dataset: Dataset[Any], model: nn.Module, settings: object) -> str:
    """Of the data (all of a TensorDataset, some examples of any other), the model's start and the settings."""
    digest = hashlib.sha256(repr(settings).encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    if isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    else:
        size = len(dataset)  # type: ignore[arg-type]
        for place in range(0, size, max(1, size // SAMPLED)):
            digest.update(pickle.dumps(dataset[place]))
    return digest.hexdigest()
