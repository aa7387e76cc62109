"""Random numbers of a model, such as dropout: repeated, seeded for a replay, or replaced by constants. They hide nothing."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class RngState:
    """The state of torch's generator on the CPU, and of that on the model's device.

    >>> state = RngState(torch.device("cpu"))
    >>> first = torch.rand(1)
    >>> with state.replay():
    ...     bool(torch.rand(1) == first)
    True
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._own: Tensor | None = None if device.type == "cpu" else getattr(torch, device.type).get_rng_state(device)

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Draw the same numbers again in this block; afterwards torch goes on where it was."""
        now = RngState(self._device)
        try:
            self._restore()
            yield
        finally:
            now._restore()

    def _restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._own is not None:
            getattr(torch, self._device.type).set_rng_state(self._own, self._device)


def seed_torch(seed: int) -> None:
    """Seed torch's generators.

    `torch.manual_seed` also prepares devices that are not in use, which takes as long as a step of a small model.
    """
    used = torch.cuda.is_initialized() or _has_other_devices()  # type: ignore[no-untyped-call]
    (torch if used else torch.default_generator).manual_seed(seed)


@cache
def _has_other_devices() -> bool:
    return torch.backends.mps.is_available() or torch.xpu.is_available()


SPARE = [np.random.MT19937(0)]  # seeded before each use; a new one takes longer than the rest of a switch


class Dropout:
    """Seeds for the global generators of torch, NumPy and Python, one for each round, so that a replay repeats their numbers."""

    def __init__(self, seed: int, *, replayed: bool = True) -> None:
        self.seed, self._replayed = seed, replayed

    @classmethod
    def drawn(cls, rng: np.random.Generator, *, replayed: bool = True) -> "Dropout":
        """With a seed from the randomness of a run. A run that is never replayed seeds torch only, which is faster."""
        return cls(int(rng.integers(2**62)), replayed=replayed)

    def seed_of(self, *place: int) -> int:
        """The seed for a round (and a piece of it)."""
        return hash((self.seed, *place)) % 2**63  # a hash of integers is the same in every process

    def begin(self, *place: int) -> None:
        """Seed the generators for a round (and a piece of it). Call it inside `global_generators`."""
        seed = self.seed_of(*place)
        if self._replayed:
            seed_all(seed)
        else:
            seed_torch(seed)


def seed_all(seed: int) -> None:
    """Seed torch's, NumPy's and Python's global generators. Call it inside `global_generators`."""
    seed_torch(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # from which the user's code may draw
    random.seed(seed)


@contextmanager
def global_generators(device: torch.device) -> Iterator[None]:
    """Restore the user's global generators after this block.

    NumPy's generator is replaced, because copying it would take a tenth of a small model's step.
    """
    python, numpy = random.getstate(), get_bit_generator()
    own = SPARE.pop() if SPARE else np.random.MT19937(0)
    try:
        set_bit_generator(own)
        with RngState(device).replay():
            yield
    finally:
        set_bit_generator(numpy)
        random.setstate(python)
        SPARE.append(own)


class GlobalRngState:
    """The state of the global generators of torch, NumPy and Python."""

    def __init__(self, device: torch.device) -> None:
        self._torch, self._numpy, self._python = RngState(device), np.random.get_state(), random.getstate()  # noqa: NPY002

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Draw the same numbers in this block, every time."""
        with self._torch.replay():
            try:
                yield
            finally:
                np.random.set_state(self._numpy)  # noqa: NPY002  # the user's
                random.setstate(self._python)


class _Constants(TorchFunctionMode):
    """A mode in which dropout does nothing and random numbers are constants, which carry nothing from one example to another."""

    _DROPOUT = (
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        torch.dropout,
        torch.alpha_dropout,
        torch.feature_dropout,
        torch.bernoulli,
        Tensor.bernoulli,
    )
    _SHAPED_LIKE = (torch.rand_like, torch.randn_like)
    _FLOATS = (torch.rand, torch.randn, torch.normal)
    _INTEGERS = (torch.randint, torch.randint_like, torch.poisson)
    _IN_PLACE = (Tensor.uniform_, Tensor.normal_, Tensor.exponential_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._DROPOUT:
            return args[0] if args else kwargs["input"]
        if func in self._SHAPED_LIKE:
            return torch.full_like(args[0] if args else kwargs["input"], 0.5)
        if func in self._FLOATS:
            return func(*args, **kwargs).fill_(0.5)
        if func in self._INTEGERS:
            return torch.zeros_like(func(*args, **kwargs))
        if func is F.gumbel_softmax:
            return torch.softmax(args[0] if args else kwargs["logits"], kwargs.get("dim", -1))
        if func in self._IN_PLACE:
            return args[0].fill_(0.5)
        if func is Tensor.bernoulli_:
            return args[0].fill_(1.0)
        if func is F.scaled_dot_product_attention and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        elif func is F.scaled_dot_product_attention:
            kwargs = {**kwargs, "dropout_p": 0.0}
        if func is F.multi_head_attention_forward:
            return func(*args, **{**kwargs, "training": False})
        if func is torch.autograd.grad:
            with self, _gradients_under_a_mode():
                return func(*args, **kwargs)
        if func is F.rrelu:
            return F.leaky_relu(args[0] if args else kwargs["input"], 0.25)
        return func(*args, **kwargs)


@contextmanager
def _gradients_under_a_mode() -> Iterator[None]:
    """Let `torch.autograd.grad` run in this block without asking the mode, which would be off until it returns.

    Layers under gradient checkpointing run again in there, and have to do what they did the first time.
    """
    module: Any = torch.autograd
    own = module.has_torch_function
    module.has_torch_function = lambda _: False
    try:
        yield
    finally:
        module.has_torch_function = own


@contextmanager
def without_randomness(model: nn.Module) -> Iterator[None]:
    """Replace dropout and random draws by constants in this block."""
    recurrent = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    try:
        for module, _ in recurrent:
            module.dropout = 0.0
        with _Constants():
            yield
    finally:
        for module, dropout in recurrent:
            module.dropout = dropout
