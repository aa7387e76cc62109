"""Ranks: the processes of a torchrun job, which train one model together.

Rank 0 leads: it has the budget, the ledger, the generator of the noise and the checkpoint. The others answer for their part of
the examples. This file is about processes only: joining, agreeing, messages, and what happens when one of them ends or hangs.
What they compute together is in `ranked`.

Everything that is sent goes from rank 0 to all, or from all to rank 0, by collectives of gloo on the CPU. Ranks are trusted, and
so is the network between them: sums without noise and pickled Python objects travel on it.
"""

import atexit
import os
import pickle
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from privopt.checkpoint import different
from privopt.errors import InputError, PartFailed, PrivoptError, RankFailed
from privopt.nets.identity import identify

TIMEOUT = timedelta(minutes=10)  # for one message, of a group that the script did not make itself
KEPT = "What was paid for stays in the ledger. Start the job again: with a checkpoint it goes on, and pays nothing twice."


class Shard:
    """The examples that this process holds, and no other: `fit(model, loss, Shard(dataset), ...)` in every process of a job.

    The number of examples is the sum over all processes, and public, as are the sizes of the shards. No example may be in two
    shards: it would count twice, beyond what the noise hides. The statement names that as assumed.
    """

    def __init__(self, data: Any) -> None:
        if isinstance(data, Shard):
            raise InputError("a Shard holds a dataset or a pair of tensors, not another Shard.")
        self.data = data


class Ranks:
    """This process among those of its job."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def share(self, value: Any = None) -> Any:
        """Send rank 0's value to all; every rank returns it."""
        message = bytearray(pickle.dumps(value)) if self.leads else bytearray()
        length = torch.tensor([len(message)])
        self.broadcast(length)
        received = torch.frombuffer(message, dtype=torch.uint8) if self.leads else torch.empty(int(length), dtype=torch.uint8)
        self.broadcast(received)
        return value if self.leads else pickle.loads(received.numpy().tobytes())

    def broadcast(self, tensor: Tensor) -> None:
        """Replace the tensor by that of rank 0."""
        with self._reporting():
            dist.broadcast(tensor, 0, group=self._group)

    def reduce(self, tensor: Tensor) -> None:
        """Replace rank 0's tensor by the sum over all ranks; what others then have is undefined."""
        with self._reporting():
            dist.reduce(tensor, 0, group=self._group)

    def gather(self, value: Any) -> list[Any]:
        """What each rank has here, in the order of ranks."""
        found: list[Any] = [None] * self.size
        with self._reporting():
            dist.all_gather_object(found, value, group=self._group)
        return found

    def check_agreement(self, parts: Mapping[str, str]) -> None:
        """Refuse ranks that were asked for something else than rank 0; every rank raises the same."""
        first, *others = self.gather(dict(parts))
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise RankFailed(
                    f"rank {rank} of {self.size} was not asked for the same as rank 0{different(first, other)}. All processes of "
                    "a job run the same script, with the same data in the same order: seed what is drawn before privopt is "
                    "called. If each has examples of its own, mark them: Shard(dataset). Nothing was paid."
                )

    def share_state(self, model: nn.Module) -> None:
        """Give the model rank 0's parameters and buffers, as DistributedDataParallel does."""
        for tensor in (*model.parameters(), *model.buffers()):
            received = tensor.detach().cpu().contiguous()
            self.broadcast(received)
            tensor.data.copy_(received)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """If this block fails on rank 0, tell the others, which wait for a message."""
        try:
            yield
        except BaseException as error:
            told = isinstance(error, PartFailed) or not isinstance(error, RankFailed)  # else nobody may be there to be told
            if self.leads and told:
                self.stop(error)
            raise

    def stop(self, error: BaseException) -> None:
        """Tell the other ranks why rank 0 stops. Messages that are not privopt's may hold a private value."""
        reason = str(error) if isinstance(error, PrivoptError) else type(error).__name__
        with suppress(RankFailed):  # if they have ended before
            self.share(("stop", reason))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RankFailed(
                f"rank {self.rank} of {self.size} waited for the others in vain: one has ended or hangs ({reason}). {KEPT}"
            ) from None


def join() -> Ranks | None:
    """This process's place in its job; None if there is no job.

    A process group that the script made is used; under torchrun one is made if the script did not.
    """
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if not dist.is_torchelastic_launched():
            return None
        default_interface(os.environ)
        dist.init_process_group("gloo", timeout=TIMEOUT)
        atexit.register(_leave)
    return Ranks(None if "gloo" in str(dist.get_backend()) else _gloo_group())


def _leave() -> None:
    """End the group that `join` made: threads of gloo that outlive the interpreter may abort a process that is done."""
    if dist.is_initialized():
        dist.destroy_process_group()


def default_interface(environment: Any) -> None:
    """Let gloo use the loopback interface if the job is on this machine only and nobody chose another."""
    local = environment.get("MASTER_ADDR", "127.0.0.1") in ("127.0.0.1", "localhost")
    if local and environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE") and ("lo" in _interfaces()):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


_groups: dict[int, Any] = {}  # gloo groups beside the script's own, by its identity


def _gloo_group() -> Any:
    """A group of all ranks for tensors on the CPU, beside a default group that has none."""
    world = id(dist.group.WORLD)
    if world not in _groups:
        _groups[world] = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return _groups[world]


def describe(value: Any, *, values: bool = True) -> str:
    """A fingerprint of a model, a loss or settings, to compare ranks by; its type, if it has none."""
    try:
        return identify(values=values, value=value)
    except InputError:
        return f"{type(value).__module__}.{type(value).__qualname__}"


def arithmetic() -> str:
    """What decides how floating-point numbers are rounded, beside the code: threads, instruction set, version of torch."""
    return f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def count_examples(ranks: Ranks | None, data: Any, sharded: bool) -> int:
    """How many examples there are, in all shards."""
    return sum(ranks.gather(len(data))) if sharded and ranks is not None else len(data)
