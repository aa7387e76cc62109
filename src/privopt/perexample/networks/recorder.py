"""The recorder: records one forward pass of a model, and leaves the model as it was.

    recorder = Recorder(model)
    with recorder.record() as tape:
        losses = loss(model(inputs), targets)      # one value for each example
        grads = tape.factors(losses)

If every trainable parameter belongs to a module with a closed form (`layers`), the model may be run on the batch. Otherwise it
is run on each example on its own (`apart`), where any code can be attributed.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privopt.perexample.networks.apart import Apart, Layers
from privopt.perexample.networks.examples import call_model, compute_losses, count_examples
from privopt.perexample.networks.factors.factor import Buffers
from privopt.perexample.networks.layers import OBSERVED, REWRITTEN, FactorRule, Site
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.loss_modules import Loss, per_example
from privopt.perexample.networks.model_state import at_least_float32, forwards
from privopt.perexample.networks.tape import Gradients, MakeFactors, ParameterFactors, Tape
from privopt.perexample.networks.torch_grads import TorchGrads
from privopt.perexample.networks.unsupported import (
    UnsupportedLayer,
    UnsupportedLoss,
    batch_dims,
    refuse_mixing,
    refuse_rounding,
    rounding_settings,
)

HOLDERS = (nn.ParameterList, nn.ParameterDict)
Way = Literal["together", "mapped", "one by one"]


@dataclass(frozen=True)
class _Observed:
    """A module whose inputs and output are recorded."""

    name: str
    module: nn.Module
    layer: FactorRule
    dim: int

    def forward(self, tape: Tape, *, first: bool) -> Callable[..., Tensor]:
        """A forward function that records the module's inputs and output. `first`: the examples come first in any case."""
        module, own = self.module, type(self.module).forward

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            output: Tensor = own(module, *args, **kwargs)
            if not tape.recording or not output.requires_grad:
                return output
            if kwargs:
                bound = inspect.signature(own).bind(module, *args, **kwargs)
                bound.apply_defaults()  # otherwise `args` ends at the first omitted argument
                args = bound.args[1:]
            if output._is_view():
                output = output.clone()  # an in-place change of a view would bypass the tap
            kept = [x.detach() for x in args if isinstance(x, Tensor)]
            tape.tap(self.name, type(module).__name__, [output], kept, self._factors_from(kept, 0 if first else self.dim))
            return output

        return forward

    def _factors_from(self, kept: list[Tensor], dim: int) -> MakeFactors:
        def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
            site = Site(self.name, type(self.module).__name__, dim, examples)
            assert gradients[0] is not None
            found, own = self.layer(self.module, tuple(map(at_least_float32, kept)), gradients[0], site), self.module._parameters
            return [(own[name], factor) for name, factor in found]  # type: ignore[misc]  # a trainable parameter is not None

        return make_factors


class Recorder:
    """How each module of a model is recorded, decided once.

    `way` says how the model is run: on the batch, or on each example on its own (`apart`). The check of a model finds the first
    of `ways` whose gradients are exact.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._buffers = Buffers()
        self._observed: list[_Observed] = []
        self._rewritten: list[tuple[str, nn.Module, Callable[..., Any]]] = []
        self.ways: tuple[Way, ...] = ("together", "mapped", "one by one")
        self._norms = refuse_mixing(model.named_modules())
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._rounding = rounding_settings(model, device)
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
            own = _own_parameters(module)
            if not own:
                continue
            if forward in OBSERVED and _is_unmodified(module, own):
                self._observed.append(_Observed(name, module, OBSERVED[forward], dims.get(module, 0)))
            else:  # in a batch nothing tells which example has which share of the gradient
                self.ways = ("mapped", "one by one")
        self.way: Way = self.ways[0]
        self.formed = 0  # numbers of an example's gradient that have no factored form, as the check finds them

    def record(self) -> "Recording":
        """Record what the model computes in this block."""
        refuse_mixing(self._norms)  # their mode may have changed
        refuse_rounding(self._rounding)  # the setting may have changed
        tape = Tape(self._buffers)
        if self.way == "one by one":
            return Recording(tape, Apart(self.model, tape, {}).forwards(mapped=False))
        recorded = {observed.module: observed.forward(tape, first=self.way == "mapped") for observed in self._observed}
        for name, module, rewrite in self._rewritten:
            recorded[module] = rewrite(module, name, tape)
        return Recording(tape, Apart(self.model, tape, recorded).forwards(mapped=True) if self.way == "mapped" else recorded)


class Recording:
    """A block in which a model is recorded. (A class: a generator would take as long as a small layer.)"""

    def __init__(self, tape: Tape, recorded: Layers) -> None:
        self._tape, self._recorded = tape, forwards(recorded)

    def __enter__(self) -> Tape:
        self._recorded.__enter__()
        return self._tape

    def __exit__(self, *_: object) -> None:
        self._recorded.__exit__()


def record(model: nn.Module) -> Recording:
    """Record one forward pass of a model."""
    return Recorder(model).record()


def _own_parameters(module: nn.Module) -> list[str]:
    """The trainable parameters that a module's own code may use, including those in its lists and dicts of parameters."""
    if isinstance(module, HOLDERS):
        return []  # their owner has the code that uses them
    held = [(f"{name}.", part) for name, part in module.named_children() if isinstance(part, HOLDERS)]
    return [
        f"{path}{key}"
        for path, part in [("", module), *held]
        for key, parameter in part._parameters.items()
        if parameter is not None and parameter.requires_grad
    ]


def _is_unmodified(module: nn.Module, own: list[str]) -> bool:
    """Whether the module is torch's own: its weight is a parameter, not computed from others."""
    if "forward" in module.__dict__ or not set(own) <= {"weight", "bias"} or "weight" not in module._parameters:
        return False
    if getattr(module, "track_running_stats", False) or getattr(module, "mode", None) == "max":
        return False
    return not hasattr(module, "parametrizations")


def gradients(recorder: Recorder, layout: Layout, loss: Loss, inputs: Any, targets: Any, examples: int) -> TorchGrads:
    """Compute each example's gradient by one forward and one backward pass; `loss` gives one value for each example."""
    if examples == 0:
        return TorchGrads(layout, {}, 0)
    with torch.enable_grad(), recorder.record() as tape:
        losses = compute_losses(loss, call_model(recorder.model, inputs), targets)
        if losses.ndim == 1 and losses.shape[0] != examples:
            raise UnsupportedLoss(
                f"the loss gave {losses.shape[0]} values for a batch of {examples}: one for each example is needed."
            )
        factors = tape.factors(losses)
    return TorchGrads(layout, {layout.names[parameter]: factor for parameter, factor in factors.items()}, examples)


def per_example_gradients(model: nn.Module, loss: Loss, inputs: Any, targets: Any = None) -> TorchGrads:
    """The gradients of each example of a batch, in factored form. **Not private**, and not checked."""
    recorder, layout, count = Recorder(model), Layout(model), count_examples((inputs, targets))
    reasons: list[Exception] = []
    for way in recorder.ways:
        recorder.way = way
        try:
            return gradients(recorder, layout, per_example(loss), inputs, targets, count)
        except UnsupportedLoss:
            raise
        except (UnsupportedLayer, RuntimeError, ValueError, TypeError) as error:
            reasons.append(error)
    raise next((error for error in reasons if isinstance(error, UnsupportedLayer)), reasons[0])
