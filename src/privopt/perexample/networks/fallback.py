"""The fallback: parameters that a module's own code uses, and modules without a closed form.

The module's own code is run again, one example at a time under `vmap`, with the modules that it calls replaced by their recorded
results. Its parameters act on the inputs of those modules and on its output, whose gradients the backward pass has recorded; a
vector-Jacobian product of this code gives each example's gradient. Its values are compared with the recorded ones, so code that
draws random numbers or mixes examples is refused.
"""

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from privopt.perexample.networks.factors import Dense
from privopt.perexample.networks.layers.recurrent import refuse_projection
from privopt.perexample.networks.rng import RngState
from privopt.perexample.networks.tape import Gradients, ParameterFactors, Site, Tape
from privopt.perexample.networks.unsupported import UnsupportedLayer

TOLERANCE = {None: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # relative, between two runs, by the type of autocast
READINGS = 16  # ways to assign rows to examples that are tried


@dataclass
class ModuleCall:
    """One recorded call of a module whose own code is run again."""

    module: nn.Module
    arguments: Any
    draws: RngState | None
    cast_to: torch.dtype | None  # type of autocast
    results: list[Any] = field(default_factory=list)  # of the modules that it called, in order
    outgoing: list[Tensor] = field(default_factory=list)  # the inputs of those modules, then its own output
    edges: list[GradientEdge | None] = field(default_factory=list)  # where their gradients are recorded

    @contextmanager
    def conditions(self, device: torch.device) -> Iterator[None]:
        """The random numbers and the precision of the recorded call."""
        with ExitStack() as stack:
            if self.draws is not None:
                stack.enter_context(self.draws.replay())
            stack.enter_context(torch.autocast(device.type, self.cast_to, enabled=self.cast_to is not None))
            yield


class Fallback:
    """Hooks that record calls. `modules`: those whose code is run again, each with its name and the names of its parameters."""

    def __init__(self, modules: dict[nn.Module, tuple[str, list[str]]], tape: Tape) -> None:
        self._modules, self._tape = modules, tape
        self._stack: list[ModuleCall | None] = []

    def hooks(self) -> Iterator[Any]:
        """Register hooks on these modules and all inside them; yields the handles."""
        inside = {part: None for module in self._modules for part in module.modules()}
        for part in inside:
            yield part.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True)
            yield part.register_forward_hook(self._leave, with_kwargs=True)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not self._tape.recording:
            return None
        caller = self._stack[-1] if self._stack else None
        if caller is not None:
            args, kwargs = _clone_differentiable((args, kwargs))
            _record_outgoing(caller, (args, kwargs))
        if module in self._modules:
            device = module.get_parameter(self._modules[module][1][0]).device
            draws = RngState(device) if module.training else None
            cast_to = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
            self._stack.append(ModuleCall(module, _detached_copy((args, kwargs)), draws, cast_to))
        else:
            self._stack.append(None)
        return args, kwargs

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not self._tape.recording:
            return None
        call = self._stack.pop()
        if call is not None:
            output = _clone_differentiable(output)
            _record_outgoing(call, output)
            self._close(call)
        caller = self._stack[-1] if self._stack else None
        if caller is not None:
            caller.results.append(_detached_copy(output))
        return output

    def _close(self, call: ModuleCall) -> None:
        name, own = self._modules[call.module]
        recorded = [place for place, edge in enumerate(call.edges) if edge is not None]
        if not recorded:
            return
        kind = type(call.module).__name__

        def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
            site = Site(name, kind, 0, examples)
            places = [place for place, gradient in zip(recorded, gradients, strict=True) if gradient is not None]
            values = replay_gradients(call, own, places, [gradient for gradient in gradients if gradient is not None], site)
            for parameter, rows in values.items():
                yield call.module.get_parameter(parameter), Dense(rows)

        self._tape.tap_edges(name, kind, [edge for edge in call.edges if edge is not None], make_factors)


def _clone_differentiable(values: Any) -> Any:
    """Copies of differentiable tensors, with gradients of their own. (A view would lose them to an in-place change.)"""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) and x.requires_grad else x, values)


def _record_outgoing(call: ModuleCall, values: Any) -> None:
    for value in tree_flatten(values)[0]:
        if isinstance(value, Tensor):
            call.outgoing.append(value.detach().clone())
            call.edges.append(get_gradient_edge(value) if value.requires_grad else None)


def _detached_copy(values: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, values)


def replay_gradients(
    call: ModuleCall, own: list[str], places: list[int], cotangents: list[Tensor], site: Site
) -> dict[str, Tensor]:
    """Each example's gradient of the module's own parameters: name → (examples, *shape)."""
    if isinstance(call.module, nn.LSTM) and call.module.proj_size:
        refuse_projection(call.module, site.name, call.arguments, places)
    readings = list(_readings(call, site.examples))
    deltas = [site.examples_first(cotangent) for cotangent in cotangents] if readings else []
    expected = [site.examples_first(call.outgoing[place]) for place in places] if readings else []
    for rows in readings:
        found = _try_reading(call, own, places, deltas, rows, site.examples)
        if found is None:
            continue
        gradients, sent = found
        if not all(_close(value, wanted, TOLERANCE[call.cast_to]) for value, wanted in zip(sent, expected, strict=True)):
            continue
        if len(readings) == 1 or _adds_up(call, own, places, cotangents, rows, site):
            return gradients
    if not any(1 in rows for rows in readings):
        raise UnsupportedLayer(
            f"{site.name} ({site.kind}) is called without a batch of examples, so its parameters {', '.join(own)} have no "
            "per-example gradient here. Use them in a module that is given the examples (or remove the parametrization)."
        )
    raise UnsupportedLayer(
        f"{site.name or 'the model'} ({site.kind}) computes something else for one example than for a batch: its own "
        "code draws random numbers, mixes examples or keeps a state. Put that into another module (nn.Dropout for F.dropout)."
    )


def _readings(call: ModuleCall, examples: int) -> Iterator[tuple[int, ...]]:
    """Ways to assign rows to examples, the likeliest first: how many rows of each tensor are one example; 0: it has no examples.

    A mask or a table of positions may have as many rows as there are examples, and rows of one example may be merged into the
    batch. The right way is the one with the recorded values and with gradients that add up (`_adds_up`): while a parameter is 0,
    what it multiplies does not show in the values.
    """
    arguments, results = ([x for x in tree_flatten(side)[0] if isinstance(x, Tensor)] for side in (call.arguments, call.results))
    counts = [_rows_each(x, examples) for x in arguments]
    merged = [(0, count) if 1 in counts and count > 1 else (count, 0) for count in counts]
    merged += [(_rows_each(x, examples), 0) for x in results]  # most modules are called with the batch
    choices = [pair if any(pair) else (0,) for pair in merged]
    yield from itertools.islice((rows for rows in itertools.product(*choices) if any(rows)), READINGS)


def _rows_each(tensor: Tensor, examples: int) -> int:
    return tensor.shape[0] // examples if tensor.ndim and examples and tensor.shape[0] % examples == 0 else 0


def _try_reading(
    call: ModuleCall, own: list[str], places: list[int], deltas: list[Tensor], rows: tuple[int, ...], examples: int
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]] | None:
    """Each example's gradients and the values, with rows assigned to examples in this way; None if the code cannot run so."""
    leaves, form = tree_flatten((call.arguments, call.results))
    originals = [x for x in leaves if isinstance(x, Tensor)]
    tensors = [x.reshape(examples, n, *x.shape[1:]) if n else x for x, n in zip(originals, rows, strict=True)]
    parameters = {name: call.module.get_parameter(name).detach() for name in own}

    def code(parameters: dict[str, Tensor], *values: Tensor) -> tuple[Tensor, ...]:
        tensors_left = iter(values)
        arguments, results = tree_unflatten([next(tensors_left) if isinstance(x, Tensor) else x for x in leaves], form)
        sent = _run(call.module, parameters, arguments, results)
        return tuple(sent[place] for place in places)

    def one(*values: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        sent, pull = vjp(lambda p: code(p, *values[: len(tensors)]), parameters)[:2]
        (gradients,) = pull(tuple(g.reshape(s.shape).to(s.dtype) for g, s in zip(values[len(tensors) :], sent, strict=True)))
        return gradients, tuple(s.squeeze(0) for s in sent)

    with call.conditions(deltas[0].device):
        try:
            dims = tuple(0 if n else None for n in rows) + (0,) * len(deltas)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # no batching rule: correct, and slow
                return vmap(one, in_dims=dims, randomness="different")(*tensors, *deltas)
        except (RuntimeError, NotImplementedError):  # an operation without a rule for vmap: one example after the other
            pass
        try:
            return _one_at_a_time(code, parameters, tensors, rows, deltas, examples)
        except (RuntimeError, ValueError, IndexError) as error:
            if "memory" in str(error):
                raise
            return None


def _one_at_a_time(
    code: Callable[..., tuple[Tensor, ...]],
    parameters: dict[str, Tensor],
    tensors: list[Tensor],
    rows: tuple[int, ...],
    deltas: list[Tensor],
    examples: int,
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    found: list[list[Tensor]] = []
    outputs: list[list[Tensor]] = []
    for i in range(examples):
        with torch.enable_grad():
            leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
            sent = code(leaves, *(x[i].clone() if n else x for x, n in zip(tensors, rows, strict=True)))
            pairs = [(s, d[i].reshape(s.shape).to(s.dtype)) for s, d in zip(sent, deltas, strict=True) if s.requires_grad]
        outputs.append([s.detach().squeeze(0) for s in sent])
        ends, starts = zip(*pairs, strict=True) if pairs else ((), ())
        own = torch.autograd.grad(ends, list(leaves.values()), starts, allow_unused=True) if pairs else [None] * len(leaves)
        found.append([torch.zeros_like(v) if g is None else g for g, v in zip(own, leaves.values(), strict=True)])
    gradients = {name: torch.stack([row[k] for row in found]) for k, name in enumerate(parameters)}
    return gradients, tuple(torch.stack(values) for values in zip(*outputs, strict=True))


def _adds_up(
    call: ModuleCall, own: list[str], places: list[int], cotangents: list[Tensor], rows: tuple[int, ...], site: Site
) -> bool:
    """Whether Σ wᵢ gᵢ is the gradient of the batch for cotangents wᵢ δᵢ, with different weights wᵢ.

    Which rows belong to an example does not depend on their values. So numbers are made up, and no real example has an influence.
    """
    trial = replace(call, arguments=_random_numbers(call.arguments), results=_random_numbers(call.results))
    deltas = _random_numbers(cotangents)
    found = _try_reading(trial, own, places, [site.examples_first(delta) for delta in deltas], rows, site.examples)
    if found is None:
        return False
    weights = torch.arange(1.0, site.examples + 1, dtype=deltas[0].dtype, device=deltas[0].device).cos()
    leaves = {name: call.module.get_parameter(name).detach().clone().requires_grad_() for name in own}
    with trial.conditions(weights.device), torch.enable_grad():
        sent = _run(call.module, leaves, *_detached_copy((trial.arguments, trial.results)))
    tolerance = TOLERANCE[call.cast_to]
    if not all(
        _close(value, site.examples_first(sent[place].detach()), tolerance) for value, place in zip(found[1], places, strict=True)
    ):
        return False
    pairs = [
        (sent[place], (delta * _row_weights(weights, delta)).to(sent[place].dtype))
        for place, delta in zip(places, deltas, strict=True)
        if sent[place].requires_grad
    ]
    ends, starts = zip(*pairs, strict=True) if pairs else ((), ())
    batch = torch.autograd.grad(ends, list(leaves.values()), starts, allow_unused=True) if pairs else [None] * len(leaves)
    for name, wanted in zip(own, batch, strict=True):
        gradients = found[0][name]
        total, terms = (torch.tensordot(w.to(x.dtype), x, 1) for w, x in ((weights, gradients), (weights.abs(), gradients.abs())))
        gap = total if wanted is None else total - wanted
        if not bool(gap.abs().amax() <= tolerance * terms.amax() + 1e-12):  # terms may cancel
            return False
    return True


def _random_numbers(values: Any) -> Any:
    """Random numbers between 0.5 and 1.5 in place of all floating-point numbers."""
    generator = torch.Generator().manual_seed(0)

    def draw(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        return (torch.rand(x.shape, generator=generator, dtype=torch.float64) + 0.5).to(x)

    return tree_map(draw, values)


def _row_weights(weights: Tensor, tensor: Tensor) -> Tensor:
    """The weight of each row of `tensor`, whose examples may have several rows each."""
    each = weights.repeat_interleave(tensor.shape[0] // len(weights))
    return each.view(-1, *[1] * (tensor.ndim - 1)).to(tensor.dtype)


def _close(value: Tensor, wanted: Tensor, tolerance: float) -> bool:
    """Whether each example's numbers are close, relative to that example's largest number."""
    if value.numel() != wanted.numel():
        return False
    value, wanted = value.reshape(len(wanted), -1), wanted.reshape(len(wanted), -1)
    usable = torch.isfinite(wanted)
    gap, size = (torch.where(usable, x, 0.0).abs() for x in (value - wanted, wanted))
    return not wanted.numel() or bool((gap.amax(1) <= tolerance * size.amax(1) + 1e-12).all())


def _run(module: nn.Module, parameters: dict[str, Tensor], arguments: Any, results: list[Any]) -> list[Tensor]:
    """The tensors that the module's own code computes: the inputs of each module that it calls, then its output."""
    sent: list[Tensor] = []
    left = iter(results)

    def collect(values: Any) -> None:
        sent.extend(x for x in tree_flatten(values)[0] if isinstance(x, Tensor))

    def placeholder(*args: Any, **kwargs: Any) -> Any:
        collect((args, kwargs))
        return next(left)

    args, kwargs = arguments
    below = [part for part in module.modules() if part is not module]
    with forwards(dict.fromkeys(below, placeholder)), _without_hooks(below):
        collect(functional_call(module, parameters, args, kwargs))
    return sent


@contextmanager
def _without_hooks(modules: list[nn.Module]) -> Iterator[None]:
    """Without the user's hooks in this block: they were applied to the recorded results."""
    hooked = [module for module in modules if module._forward_hooks or module._forward_pre_hooks]
    before = [(module, module._forward_hooks, module._forward_pre_hooks) for module in hooked]
    try:
        for module in hooked:
            module._forward_hooks, module._forward_pre_hooks = OrderedDict(), OrderedDict()
        yield
    finally:
        for module, after_it, before_it in before:
            module._forward_hooks, module._forward_pre_hooks = after_it, before_it


class forwards:  # noqa: N801  # it reads as a phrase
    """Other forward functions for these modules in this block."""

    def __init__(self, replacements: dict[nn.Module, Callable[..., Any]]) -> None:
        self._replacements = replacements
        self._before = [(module.__dict__, module.__dict__.get("forward")) for module in replacements]

    def __enter__(self) -> None:
        for module, forward in self._replacements.items():
            module.__dict__["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for attributes, own in self._before:
            if own is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = own
