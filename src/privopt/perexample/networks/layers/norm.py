"""Norm layers that do not mix examples: the scale's gradient is Σ δ x̂, the shift's Σ δ."""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privopt.perexample.networks.factors import Dense
from privopt.perexample.networks.layers.site import NamedFactors, Site


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
        yield "weight", Dense(_over_rows(site.examples_first(normal) * deltas, inner))
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
    for name, values in (("weight", normal * gradients), ("bias", gradients)):
        parameter = getattr(module, name)
        if parameter is not None and parameter.requires_grad:
            sums = values.flatten(2).sum(2) if values.ndim > 2 else values
            rows = site.examples_first(sums)
            yield name, Dense(rows if rows.ndim == 2 else rows.sum(1))


def _over_rows(values: Tensor, inner: int) -> Tensor:
    """The sum over everything between the examples and the normalised dimensions."""
    between = list(range(1, values.ndim - inner))
    return values.sum(between) if between else values
