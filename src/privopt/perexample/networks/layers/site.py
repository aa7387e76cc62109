"""A site: the place of a layer in a model, and the dimension along which its tensors hold the examples."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from privopt.perexample.networks.factors import Factor
from privopt.perexample.networks.unsupported import UnsupportedLayer

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
