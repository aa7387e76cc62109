"""nn.Linear, on rows, sequences or any leading dimensions; and norm layers that do not mix examples.

Of a norm layer the scale's gradient is Σ δ x̂, the shift's Σ δ.
"""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privopt.perexample.networks.factors import Dense, Outer, RankOne
from privopt.perexample.networks.tape import NamedFactors, Site


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


def layer_norm_factors(
    module: nn.LayerNorm | nn.RMSNorm, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site
) -> NamedFactors:
    """Normalised over the last dimensions; also RMSNorm."""
    shape, deltas = tuple(module.normalized_shape), site.examples_first(gradients)
    inner = len(shape)
    if module.weight is not None and module.weight.requires_grad:
        if isinstance(module, nn.RMSNorm):
            normal = F.rms_norm(inputs[0], list(shape), None, module.eps)
        else:
            normal = F.layer_norm(inputs[0], list(shape), None, None, module.eps)
        yield "weight", Dense(_over_rows(site.examples_first(normal).mul_(deltas), inner))
    bias = getattr(module, "bias", None)
    if bias is not None and bias.requires_grad:
        yield "bias", Dense(_over_rows(deltas, inner))


def group_norm_factors(module: nn.GroupNorm, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """Normalised over groups of channels and all pixels."""
    return _by_channel(module, F.group_norm(inputs[0], module.num_groups, None, None, module.eps), gradients, site)


def instance_norm_factors(module: nn.InstanceNorm2d, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """Normalised over pixels."""
    return _by_channel(module, F.instance_norm(inputs[0], eps=module.eps), gradients, site)


def _by_channel(module: nn.GroupNorm | nn.InstanceNorm2d, normal: Tensor, gradients: Tensor, site: Site) -> NamedFactors:
    for name, values in (("weight", normal.mul_(gradients)), ("bias", gradients)):
        parameter = getattr(module, name)
        if parameter is not None and parameter.requires_grad:
            sums = values.flatten(2).sum(2) if values.ndim > 2 else values
            rows = site.examples_first(sums)
            yield name, Dense(rows if rows.ndim == 2 else rows.sum(1))


def _over_rows(values: Tensor, inner: int) -> Tensor:
    """The sum over everything between the examples and the normalised dimensions."""
    between = list(range(1, values.ndim - inner))
    return values.sum(between) if between else values
