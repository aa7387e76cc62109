"""nn.Linear, on rows, sequences or any leading dimensions."""

from torch import Tensor, nn

from privopt.perexample.networks.factors import Dense, Outer, RankOne
from privopt.perexample.networks.layers.site import NamedFactors, Site


def linear_factors(module: nn.Linear, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """y = W a + b: δ ⊗ a and δ, summed over what lies between batch and features."""
    a, d = as_sequences(site.examples_first(inputs[0])), as_sequences(site.examples_first(gradients))
    weight, bias = module._parameters["weight"], module._parameters.get("bias")  # the bias may be a buffer
    assert weight is not None
    of_bias = Dense(sum_over_time(d)) if a.ndim == 2 or bias is not None else None
    if weight.requires_grad:
        yield "weight", RankOne(a, of_bias) if a.ndim == 2 and of_bias is not None else Outer.of(a, d, weight.shape)
    if bias is not None and bias.requires_grad and of_bias is not None:
        yield "bias", of_bias


def as_sequences(tensor: Tensor) -> Tensor:
    """The tensor as (examples, width) or (examples, time, width)."""
    return tensor if tensor.ndim <= 3 else tensor.flatten(1, -2)


def sum_over_time(gradients: Tensor) -> Tensor:
    """The sum over time."""
    return gradients if gradients.ndim == 2 else gradients.sum(1)
