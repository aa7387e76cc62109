"""The recorder: watches one forward pass of a model and leaves nothing behind on it.

    recorder = Recorder(model)
    with recorder.record() as tape:
        losses = loss(model(inputs), targets)      # one value for each example
        grads = tape.factors(losses)

Every trainable parameter belongs to a module with a closed form (`layers`), or its module's own code is run again
(`fallback`); what neither can do is refused here, by name.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privopt.perexample.networks.buffers import Buffers
from privopt.perexample.networks.fallback import Fallback, forwards
from privopt.perexample.networks.layers import OBSERVED, REWRITTEN, LayerGrads, Site
from privopt.perexample.networks.precision import at_least_float32
from privopt.perexample.networks.tape import Found, Gradients, Tape
from privopt.perexample.networks.unsupported import batch_dims, products, refuse_mixing, refuse_rounding

HOLDERS = (nn.ParameterList, nn.ParameterDict)


@dataclass(frozen=True)
class _Observed:
    name: str
    module: nn.Module
    layer: LayerGrads
    dim: int

    def forward(self, tape: Tape) -> Callable[..., Tensor]:
        """What the module does, watched."""
        module, own = self.module, type(self.module).forward

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            output: Tensor = own(module, *args, **kwargs)
            if not tape.recording or not output.requires_grad:
                return output
            if kwargs:
                bound = inspect.signature(own).bind(module, *args, **kwargs)
                bound.apply_defaults()  # `args` would end at the first one that was left out
                args = bound.args[1:]
            if output._is_view():
                output = output.clone()  # an in-place change of a view would bypass the tap
            kept = [x.detach() for x in args if isinstance(x, Tensor)]
            tape.tap(self.name, type(module).__name__, [output], kept, self._made(kept))
            return output

        return forward

    def _made(self, kept: list[Tensor]) -> Callable[[Gradients, int], Found]:
        def made(gradients: Gradients, examples: int) -> Found:
            site = Site(self.name, type(self.module).__name__, self.dim, examples)
            assert gradients[0] is not None
            found, own = self.layer(self.module, tuple(map(at_least_float32, kept)), gradients[0], site), self.module._parameters
            return [(own[name], factor) for name, factor in found]  # type: ignore[misc]  # it is trainable, so it is there

        return made


class Recorder:
    """What to watch in a model, decided once."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._buffers = Buffers()
        self._observed: list[_Observed] = []
        self._rewritten: list[tuple[str, nn.Module, Callable[..., Any]]] = []
        self._again: dict[nn.Module, tuple[str, list[str]]] = {}
        self._norms = refuse_mixing(model.named_modules())
        self._products = products(model, next((parameter.device for parameter in model.parameters()), torch.device("cpu")))
        dims = batch_dims(model)
        covered: set[nn.Module] = set()
        for name, module in model.named_modules():
            if module in covered:
                continue
            forward = type(module).forward
            if forward in REWRITTEN and "forward" not in module.__dict__ and not getattr(module, "proj_size", 0):
                if any(parameter.requires_grad for parameter in module.parameters()):
                    covered.update(module.modules())
                    self._rewritten.append((name, module, REWRITTEN[forward]))
                continue
            own = _own(module)
            if not own:
                continue
            if forward in OBSERVED and _plain(module, own):
                self._observed.append(_Observed(name, module, OBSERVED[forward], dims.get(module, 0)))
            else:
                self._again[module] = (name, own)

    def record(self) -> "Recording":
        """Watch what happens in the model inside this block."""
        refuse_mixing(self._norms)  # a mode may have changed
        refuse_rounding(self._products)  # so may this
        tape = Tape(self._buffers)
        watched = {observed.module: observed.forward(tape) for observed in self._observed}
        for name, module, rewrite in self._rewritten:
            watched[module] = rewrite(module, name, tape)
        return Recording(tape, forwards(watched), Fallback(self._again, tape) if self._again else None)


class Recording:
    """A block in which a model is watched. (A class: a generator for it would take as long as a small layer.)"""

    def __init__(self, tape: Tape, watched: forwards, fallback: Fallback | None) -> None:
        self._tape, self._watched, self._fallback = tape, watched, fallback
        self._handles: list[Any] = []

    def __enter__(self) -> Tape:
        try:
            self._watched.__enter__()
            if self._fallback is not None:
                self._handles.extend(self._fallback.hooks())
        except BaseException:
            self.__exit__()
            raise
        return self._tape

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._watched.__exit__()


def record(model: nn.Module) -> Recording:
    """Watch one forward pass of a model."""
    return Recorder(model).record()


def _own(module: nn.Module) -> list[str]:
    """The trainable parameters that a module's own code may use: those in its lists and dicts of parameters, too."""
    if isinstance(module, HOLDERS):
        return []  # they have no code: their owner has it
    held = [(f"{name}.", part) for name, part in module.named_children() if isinstance(part, HOLDERS)]
    return [
        f"{path}{key}"
        for path, part in [("", module), *held]
        for key, parameter in part._parameters.items()
        if parameter is not None and parameter.requires_grad
    ]


def _plain(module: nn.Module, own: list[str]) -> bool:
    """Whether the module is as torch made it: its weight is a parameter, not computed from others."""
    if "forward" in module.__dict__ or not set(own) <= {"weight", "bias"} or "weight" not in module._parameters:
        return False
    if getattr(module, "track_running_stats", False) or getattr(module, "mode", None) == "max":
        return False
    return not hasattr(module, "parametrizations")
