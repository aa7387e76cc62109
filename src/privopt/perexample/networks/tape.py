"""A tape: the record of one forward pass from which one backward pass gives every example's gradient.

A tap is a place in the graph whose gradient is recorded. The backward pass goes through activations only and computes no weight
gradient.

A site is the place of a layer in a model, and the dimension along which its tensors hold the examples.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from privopt.perexample.networks.factors import Factor, Outer
from privopt.perexample.networks.factors.factor import Buffers
from privopt.perexample.networks.factors.outer import add_factors
from privopt.perexample.networks.model_state import at_least_float32, full_precision
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss

NamedFactors = Iterator[tuple[str, Factor]]  # a parameter's name in its module, and its factor


class Site(NamedTuple):
    """One module of a model. `examples` is the size of the batch that went through it."""

    name: str
    kind: str
    dim: int
    examples: int

    def examples_first(self, tensor: Tensor) -> Tensor:
        """The tensor with examples first; rows of one example that were merged into the batch become a dimension again."""
        if tensor.ndim > self.dim:
            size = tensor.shape[self.dim]
            if size == self.examples:
                return tensor if self.dim == 0 else tensor.transpose(0, self.dim)
            if self.dim == 0 and self.examples and size % self.examples == 0:
                return tensor.reshape(self.examples, -1, *tensor.shape[1:])
        raise UnsupportedLayer(
            f"{self.name or 'the model'} ({self.kind}) was given a tensor of shape {tuple(tensor.shape)} for a batch of "
            f"{self.examples}: the examples must be the first dimension (batch_first=True), and each must go through it. What is "
            "the same for all, such as positions, has to be expanded: positions.expand(len(x), -1)."
        )


FactorRule = Callable[[Any, tuple[Tensor, ...], Tensor, Site], NamedFactors]
"""(module, inputs, gradient of the output, site) → the factors of the module's trainable parameters."""


ParameterFactors = Iterable[tuple[nn.Parameter, Factor]]
Gradients = Sequence[Tensor | None]  # of a tap's edges; None: no loss depends on it
MakeFactors = Callable[[Gradients, int], ParameterFactors]  # (gradients of the edges, examples)
HIDING = "the model calls torch.utils.checkpoint with use_reentrant=True, which hides its layers. Use use_reentrant=False."
NO_GRADIENT = "the losses depend on no trainable parameter. Is something frozen, detached or computed under torch.no_grad()?"


class Tap(NamedTuple):
    """Edges whose gradients are recorded, and the function that turns them into factors."""

    name: str
    kind: str
    edges: tuple[GradientEdge, ...]
    kept: Sequence[tuple[Tensor, int]]  # tensors that must not change, and their versions
    make_factors: MakeFactors


class Tape:
    """The taps of one forward pass."""

    def __init__(self, buffers: Buffers | None = None) -> None:
        self._buffers = buffers
        self.taps: list[Tap] = []
        self.formed: set[nn.Parameter] = set()  # whose gradients had to be formed for each example
        self.recording = True

    def tap(
        self,
        name: str,
        kind: str,
        outputs: Sequence[Tensor],
        kept: Sequence[Tensor],
        make_factors: MakeFactors,
    ) -> None:
        """Record the gradients of these outputs. `kept` tensors must not change before the backward pass."""
        edges = tuple(map(get_gradient_edge, outputs))
        self.taps.append(Tap(name, kind, edges, [(tensor, tensor._version) for tensor in kept], make_factors))

    def tap_edges(self, name: str, kind: str, edges: Sequence[GradientEdge], make_factors: MakeFactors) -> None:
        """Record the gradients of these edges."""
        self.taps.append(Tap(name, kind, tuple(edges), (), make_factors))

    def factors(self, losses: Tensor) -> dict[nn.Parameter, Factor]:
        """Run one backward pass of the losses (one value for each example). A tape can be used once."""
        if losses.ndim != 1:
            raise UnsupportedLoss(
                f"the loss gave a value of shape {tuple(losses.shape)} for a batch: one value for each example is needed. "
                'Use reduction="none" and average over what is not the batch.'
            )
        self.recording = False
        taps, self.taps = self.taps, []
        edges = [edge for tap in taps for edge in tap.edges]
        if not losses.requires_grad:
            raise UnsupportedLoss(NO_GRADIENT)
        if not edges:
            return {}
        examples = losses.shape[0]
        found: dict[nn.Parameter, list[Factor]] = {}
        start = 0
        with full_precision(losses.device):
            gradients = _backward(losses, edges)
            for tap in taps:
                stop = start + len(tap.edges)
                own = [None if gradient is None else at_least_float32(gradient) for gradient in gradients[start:stop]]
                start = stop
                for tensor, version in tap.kept:
                    if tensor._version != version:
                        raise UnsupportedLayer(
                            f"the input of {tap.name or 'the model'} ({tap.kind}) was changed in place after it was used. "
                            "Use the operation that makes a new tensor (x = x + y instead of x += y)."
                        )
                if any(gradient is not None for gradient in own):
                    for parameter, factor in tap.make_factors(own, examples):
                        found.setdefault(parameter, []).append(factor)
            totals = {parameter: add_factors(factors) for parameter, factors in found.items()}
        for factor in totals.values():
            if isinstance(factor, Outer):
                factor.buffers = self._buffers
        return totals


def _backward(losses: Tensor, edges: Sequence[GradientEdge]) -> Gradients:
    try:
        ones = torch.ones_like(losses)  # the sum of the losses would be one more node
        return torch.autograd.grad([losses], edges, [ones], allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise UnsupportedLayer(HIDING) from None
