"""Identity: a fingerprint of what a program computes, from its code and the values that the code holds.

A killed run goes on with the noise that it began with. That is free only if the query is the same: the same losses of the same
model. So the fingerprint of a function covers its byte code, its constants, its defaults, and all that it reaches: closure
values, global names, other functions. That of a torch module covers its class, its settings, its hooks and its values. Objects of
an installed package are identified by their name and the package's version. An object without a value, such as an open file, is
refused by name.

Line numbers, comments and file names do not count: a program may be edited where that does not change what it computes.

Code may behave as its fingerprint does not say, so losses and gradients on made-up examples are compared too (`probe_model`).
"""

import copyreg
import dis
import functools
import hashlib
import os
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privopt
from privopt.checkpoint import CLOSE
from privopt.errors import InputError
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.examples import call_model, compute_losses, make_up, move_to_device, possible_kinds
from privopt.perexample.networks.model_state import ModelState, training_mode
from privopt.perexample.networks.rng import global_generators, seed_all

PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.Size,
    np.dtype,
)
PACKAGES = ("site-packages", "dist-packages")  # also of a user, of a system below a virtual environment, or named in a .pth file
INSTALLED = (
    *{str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    *{str(Path(place).resolve()) + os.sep for place in sys.path if Path(place).name in PACKAGES},
    str(Path(privopt.__file__).resolve().parent) + os.sep,
)
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE, which every class written in Python has
OF_CLASSES = {  # attributes that differ where a class computes the same; the last two are caches of copyreg and annotationlib
    "__dict__",
    "__weakref__",
    "__module__",
    "__doc__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",
    "__annotations_cache__",
}
CODE = (types.FunctionType, types.MethodType, functools.partial, type, nn.Module)
HOOKS = [name for name in vars(nn.Module()) if "hook" in name]  # dictionaries by a number that counts all hooks of a process


def identify(*, values: bool = True, **named: Any) -> str:
    """A fingerprint of these values, and of all code that they reach. Without `values` tensors count by their shapes only.

    >>> scale = 2.0
    >>> before = identify(loss=lambda output, target: scale * (output - target))
    >>> before == identify(loss=lambda output, target: scale * (output - target))
    True
    >>> scale = 3.0
    >>> before == identify(loss=lambda output, target: scale * (output - target))
    False
    >>> from threading import Lock
    >>> identify(model={"guard": Lock()})
    Traceback (most recent call last):
    privopt.errors.InputError: model → guard: a lock has no value that identifies it, so a replay might compute ...
    """
    digest = _Digest(values)
    for name, value in named.items():
        with digest.within(name):
            digest.feed(value)
    return digest.hexdigest()


class _Digest:
    """A hash of values of any kind; a value that occurs again is hashed by its first position."""

    def __init__(self, values: bool) -> None:
        self._values, self._hash, self._path = values, hashlib.sha256(), list[str]()
        self._met: dict[int, tuple[int, Any]] = {}  # by id; the value is kept alive, so that its id stays unique

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        self._path.append(name)
        self._say(name)
        yield
        self._path.pop()

    def feed(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._met:
            self._say("met", self._met[id(value)][0])
            return
        self._met[id(value)] = len(self._met), value
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._say("array", value.dtype, value.shape)
            self._hash.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, dict | types.MappingProxyType):
            self._say(type(value).__name__, len(value))
            for key, inner in value.items():
                self.feed(key)
                with self.within(str(key) if isinstance(key, str | int) else type(key).__name__):
                    self.feed(inner)
        elif isinstance(value, list | tuple) and type(value).__init__ in (list.__init__, tuple.__init__):
            self._all(type(value), value)
        elif isinstance(value, set | frozenset):
            self._all(type(value), sorted(value, key=repr))
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._all(types.MethodType, [value.__func__, value.__self__])
        elif isinstance(value, functools.partial):
            self._all(functools.partial, [value.func, value.args, value.keywords])
        elif isinstance(value, types.ModuleType):
            self._namespace(value, [])
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, Enum):
            self._all(type(value), [value.name, value.value])
        elif isinstance(value, weakref.ref):
            self._all(weakref.ref, [value()])
        elif isinstance(value, staticmethod | classmethod):
            self._all(type(value), [value.__func__])
        elif isinstance(value, property):
            self._all(property, [value.fget, value.fset])
        elif isinstance(value, functools.cached_property):
            self._all(functools.cached_property, [value.func])
        elif isinstance(value, functools._lru_cache_wrapper):
            self._all(functools._lru_cache_wrapper, [value.__wrapped__])
        else:
            self._other(value)

    def _say(self, *words: object) -> None:
        self._hash.update(repr(words).encode())

    def _all(self, kind: type, values: Any) -> None:
        self._say(kind.__qualname__, len(values))
        for place, value in enumerate(values):
            with self.within(str(place)):
                self.feed(value)

    def _tensor(self, value: Tensor) -> None:
        self._say("tensor", value.dtype, tuple(value.shape), value.requires_grad, str(value.layout))
        if not self._values or value.is_meta:  # `Layout` refuses a model on the meta device
            return
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        self._hash.update(dense.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())

    def _code(self, code: types.CodeType) -> None:
        self._say("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
        self._all(types.CodeType, [constant for constant in code.co_consts if constant != code.co_name])

    def _function(self, function: types.FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, map(_content, function.__closure__ or ()), strict=True)
        if self._installed(function):
            for name, value in cells:
                if isinstance(value, CODE + PLAIN):  # the user's function under a decorator, such as @torch.no_grad()
                    with self.within(name):
                        self.feed(value)
            return
        self._code(function.__code__)
        self._all(tuple, [function.__defaults__, function.__kwdefaults__])
        for name, value in cells:
            with self.within(name):
                self.feed(value)
        names, attributes = _names(function.__code__)
        for name in names:
            if name in function.__globals__:
                value = function.__globals__[name]
                with self.within(name):
                    self._namespace(value, attributes) if isinstance(value, types.ModuleType) else self.feed(value)

    def _namespace(self, module: types.ModuleType, names: list[str]) -> None:
        """Hash the values that code which reads these names may reach in a Python module."""
        self._say("module", module.__name__, _version(module.__name__))
        if _is_installed_module(module):
            return
        for name in names:
            if name in vars(module):
                value = vars(module)[name]
                with self.within(name):
                    self._namespace(value, names) if isinstance(value, types.ModuleType) else self.feed(value)

    def _class(self, kind: type) -> None:
        if self._installed(kind):
            return
        self._say("class", kind.__qualname__)
        self._all(tuple, kind.__bases__)
        for name, value in sorted(vars(kind).items()):
            empty = name == "__annotations__" and not value  # created on first access
            if name not in OF_CLASSES and not name.startswith("_abc_") and not empty:
                with self.within(name):
                    self.feed(value)

    def _module(self, module: nn.Module) -> None:
        self.feed(type(module))
        for name, value in sorted(vars(module).items()):
            if name == "training" and not self._values:
                continue
            with self.within(name):
                self.feed(list(value.values()) if name in HOOKS and isinstance(value, dict) else value)

    def _other(self, value: Any) -> None:
        """Hash any other object as pickle sees it: its constructor and its state."""
        if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | None):
            self._all(types.BuiltinFunctionType, [value.__name__, value.__self__])
            return
        name = getattr(value, "__qualname__", None)
        if isinstance(name, str) and self._installed(value):
            return
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:
            reduced = None
        if reduced is None or (
            isinstance(reduced, tuple) and any(isinstance(part, types.GeneratorType) for part in reduced[1:3])
        ):
            raise InputError(
                f"{' → '.join(self._path)}: a {type(value).__name__} has no value that identifies it, so a replay might "
                "compute something else with the same noise. With a checkpoint, let the model and the loss hold and use what has "
                "a value: numbers, tensors, functions, modules."
            )
        if isinstance(reduced, str):
            self._say("name", type(value).__qualname__, reduced)
            return
        made, arguments, *state = reduced
        self._all(type(value), [type(value), made, arguments, *(list(p) if isinstance(p, Iterator) else p for p in state)])

    def _installed(self, value: Any) -> bool:
        """Hash an object of an installed package by its name and the package's version. Returns whether it is one."""
        home = getattr(value, "__module__", None) or "builtins"
        if isinstance(value, types.FunctionType):  # functools.wraps gives it the __module__ of what it wraps
            home = value.__globals__.get("__name__") or "builtins"
        if home == "__main__" or not _is_installed(value, home):
            return False
        self._say("installed", home, value.__qualname__, _version(home))
        return True


def _is_installed(value: Any, home: str) -> bool:
    """Whether Python or an installed package defines an object.

    A class may claim any module: it counts if it is found there by its name, or if it is not written in Python.
    """
    code = getattr(value, "__code__", None)
    if isinstance(code, types.CodeType):
        return _is_installed_file(code.co_filename)
    if not isinstance(value, type):
        return _is_installed(type(value), type(value).__module__) and _is_installed_module(_nearest_module(home))
    if not value.__flags__ & HEAP_TYPE:
        return True
    found: Any = sys.modules.get(home)
    if not _is_installed_module(found):
        return False
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _nearest_module(name: str) -> types.ModuleType | None:
    """The module of this name, or the nearest loaded parent, such as torch for torch.ops.aten."""
    while name not in sys.modules and "." in name:
        name = name.rpartition(".")[0]
    return sys.modules.get(name)


def _is_installed_module(module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    if module is not None and file is None:
        return module.__name__ in sys.builtin_module_names
    return isinstance(file, str) and _is_installed_file(file)


def _is_installed_file(file: str) -> bool:
    return str(Path(file).resolve()).startswith(INSTALLED)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return None


def _names(code: types.CodeType) -> tuple[list[str], list[str]]:
    """Global names that the code reads, and all names of attributes; including those of inner functions."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    attributes = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner, others = _names(constant)
            found.update(inner)
            attributes.update(others)
    return sorted(found), sorted(attributes)


@functools.cache
def _version(module: str) -> str:
    """The version of the package that contains this module; Python's for the standard library."""
    outer = module.partition(".")[0]
    if outer in sys.stdlib_module_names or outer == "builtins":
        return sys.version
    known = getattr(sys.modules.get(outer), "__version__", None)
    if isinstance(known, str):
        return known
    try:
        return version(outer)
    except PackageNotFoundError:
        return ""


# ---------------------------------------------------------------- probes


EXAMPLES = 7
REGIMES: tuple[Callable[..., Tensor], ...] = (
    torch.randn,
    lambda shape, generator: 5 * torch.randn(shape, generator=generator),
    lambda shape, generator: torch.rand(shape, generator=generator) + 0.5,
    lambda shape, generator: torch.rand(shape, generator=generator).round(),  # 0 or 1, as targets may be
)
STEP = 0.1  # standard deviation of the noise on parameters, so that none is 0


def probe_model(oracle: TorchOracle, first: Any) -> list[float]:
    """Losses of made-up examples and norms of their gradients, at the start and at other parameters.

    `first`, a batch of one example, gives the shapes and types. Refuse a model or a loss that computes something else a second
    time: a replay would use the same noise for other losses.
    """
    found, again = _probe_points(oracle, first), _probe_points(oracle, first)
    size = float(np.nan_to_num(np.abs(found), posinf=0.0).max(initial=0.0))
    if len(found) != len(again) or not np.allclose(found, again, CLOSE, 1e-6 * size, equal_nan=True):
        raise InputError(
            "the model or the loss computes something else when it is called again, even after torch.manual_seed, so a replay "
            "would use the same noise for other losses. With a checkpoint, draw random numbers from torch's own generator: "
            "torch.rand(…), without generator=…; and let nothing depend on how often the model was called."
        )
    return found


def _probe_points(oracle: TorchOracle, first: Any) -> list[float]:
    layout, generator = oracle.layout, torch.Generator().manual_seed(0)
    parameters, memory = list(layout.parameters.values()), ModelState(oracle.model)
    start, found = [parameter.detach().clone() for parameter in parameters], list[float]()
    try:
        with training_mode(oracle.model), global_generators(layout.device):
            for away in (0.0, STEP):
                for parameter, value in zip(parameters, start, strict=True):
                    parameter.data.copy_(value + away * torch.randn(value.shape, generator=generator).to(value))
                for numbers in REGIMES:
                    found += _probe_batch(oracle, move_to_device(first, layout.device), numbers, generator)
                    memory.restore()
    finally:
        for parameter, value in zip(parameters, start, strict=True):
            parameter.data.copy_(value)
        memory.restore()
    return found


def _probe_batch(oracle: TorchOracle, first: Any, numbers: Callable[..., Tensor], generator: torch.Generator) -> list[float]:
    """Losses and gradient norms of one made-up batch, of the first kind that the model accepts."""
    parameters, weights = list(oracle.layout.parameters.values()), torch.linspace(1.0, 2.0, EXAMPLES)
    for kind in possible_kinds(first):
        inputs, targets = make_up(first, EXAMPLES, generator, numbers=numbers, kind=kind)
        seed_all(0)
        try:
            with torch.enable_grad():
                losses = compute_losses(oracle.loss, call_model(oracle.model, inputs), targets)
                total = (losses * weights.to(losses)).sum()
                gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        except (RuntimeError, IndexError, ValueError):
            continue
        norms = [0.0 if gradient is None else float(gradient.to_dense().norm()) for gradient in gradients]
        return [*losses.detach().double().tolist(), *norms]
    return []
