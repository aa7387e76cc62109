"""Data for networks: datasets, their fingerprints, and the number of examples that go through the model at a time.

Public examples give mean gradients of batches, by plain autograd and without dropout, and a mean loss.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from privopt.errors import InputError
from privopt.perexample.linear_oracle import public_batches
from privopt.perexample.networks import TorchOracle, per_example
from privopt.perexample.networks.examples import call_model, compute_losses, make_up, move_to_device, possible_kinds, rows_of
from privopt.perexample.networks.model_state import ModelState, evaluation_mode
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
    if hasattr(data, "to_numpy"):
        raise InputError(
            f"the data are a {type(data).__name__}, whose items are columns. Give a pair of tensors, such as "
            "(torch.tensor(frame[inputs].to_numpy()), torch.tensor(frame[target].to_numpy())); `privopt train` takes tables."
        )
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InputError(
            f"{type(data).__name__} has no length, so examples cannot be sampled from it. Give a map-style Dataset, with __len__ "
            "and __getitem__, or a pair of tensors (inputs, targets)."
        )
    return data


WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


def as_model(model: Any) -> nn.Module:
    """Validate that the model is a module of torch, whole and in one process."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, but a torch.nn.Module is needed.")
    for module in model.modules():
        kinds = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")]
        if found := next((name for name in WRAPPERS if name in kinds), None):
            raise InputError(
                f"the model is wrapped in {found}, which adds up or distributes gradients that are not private. Give the plain "
                "model, whole in every process: under torchrun privopt clips in each, adds up, and adds noise once. A model that "
                "does not fit into one process is not supported."
            )
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise InputError(
            "parameters of the model are DTensors, of which each process has a part, but the norm of an example's gradient needs "
            "all of it. Give the plain model, whole in every process."
        )
    return model


def physical_batch_size(model: nn.Module, inputs: Any, formed: int = 0) -> int:
    """The number of examples whose activations, and `formed` numbers of gradients for each, fit into `MEMORY`.

    Activations are measured on made-up examples. A batch of formed gradients is made once and summed up once.
    """
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
            with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor), RngState(device).replay():
                call_model(model, made_up)
            break
        except (RuntimeError, IndexError, ValueError):
            if kind is candidates[-1]:
                raise
        finally:
            start.restore()
    each = max(1, sum(kept.values())) / examples + 2 * 4 * formed
    return int(min(max(MEMORY / each, 1), 4096))


def content(dataset: Dataset[Any], most: int | None = None) -> str:
    """A fingerprint of all of the data; random examples are read with a fixed seed.

    With `most`, of so many examples, evenly spread: for data that are read from files, and are compared, not replayed.

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
        return _read(dataset, size, most)


def _read(dataset: Dataset[Any], size: int, most: int | None = None) -> str:
    """A fingerprint of the first examples, read with a fixed seed."""
    seed_all(0)
    digest = hashlib.sha256(str(size).encode() if most else b"")
    count = min(size, most or size)
    for place in range(count):
        _feed(digest, dataset[place * size // count])
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


# ---------------------------------------------------------------- public examples


BATCH = 64  # mean gradients of larger batches say less about the size of gradients


class PublicExamples:
    """(θ, round) → the mean gradient of a batch of public examples, through the model of the private ones.

    The caller declares that the examples are public: they are used without noise, and no event is recorded.
    """

    def __init__(self, oracle: TorchOracle, size: int, read: Callable[[Any], Any], batch_size: int = BATCH) -> None:
        self._oracle, self._read = oracle, read
        self._batches = public_batches(size, batch_size)

    @property
    def epoch(self) -> int:
        return len(self._batches)

    def __call__(self, parameters: Tensor, round_: int) -> Tensor:
        oracle = self._oracle
        inputs, targets = move_to_device(self._read(self._batches[round_ % len(self._batches)]), oracle.layout.device)
        oracle.flat.assign(parameters)
        with evaluation_mode(oracle.model), torch.enable_grad():
            mean = compute_losses(oracle.loss, call_model(oracle.model, inputs), targets).mean()
            parts = torch.autograd.grad(mean, list(oracle.layout.parameters.values()), allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])


def describe_public(data: Dataset[Any]) -> str:
    """The number of examples and a hash of them, for a statement."""
    return f"the examples given as public: {len(data)} of them, sha256 {content(data)[:16]}"  # type: ignore[arg-type]


def public_loss(model: nn.Module, loss: Callable[..., Tensor], inputs: Any, targets: Any) -> float:
    """The mean loss of the model on public examples, without dropout: post-processing, so it is free.

    >>> public_loss(nn.Identity(), nn.MSELoss(), torch.ones(2, 3), torch.zeros(2, 3))
    1.0
    """
    with evaluation_mode(model), torch.no_grad():
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        inputs, targets = move_to_device((inputs, targets), device)
        return float(compute_losses(per_example(loss), call_model(model, inputs), targets).mean())
