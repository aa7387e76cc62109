"""nn.Embedding and nn.EmbeddingBag (sum and mean)."""

import torch
from torch import Tensor, nn

from privopt.perexample.networks.factors import Lookup
from privopt.perexample.networks.layers.site import NamedFactors, Site
from privopt.perexample.networks.unsupported import UnsupportedLayer


def embedding_factors(module: nn.Embedding, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """Each δ belongs to the row of its id."""
    _check(module, site)
    if not module.weight.requires_grad:
        return
    ids = site.examples_first(inputs[0]).reshape(site.examples, -1)
    deltas = site.examples_first(gradients).reshape(ids.numel(), -1)
    owners = torch.arange(site.examples, device=ids.device).repeat_interleave(ids.shape[1])
    yield "weight", _without_padding(module, owners, ids.reshape(-1), deltas, site.examples)


def embedding_bag_factors(module: nn.EmbeddingBag, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """Each bag's δ belongs to the rows of all its ids."""
    _check(module, site)
    if not module.weight.requires_grad:
        return
    ids = inputs[0]
    offsets = inputs[1] if len(inputs) > 1 and ids.ndim == 1 else None
    weights = inputs[-1] if len(inputs) > 1 and inputs[-1].is_floating_point() else None
    if ids.ndim == 2:
        counts = torch.full((ids.shape[0],), ids.shape[1], device=ids.device)
        ids = ids.flatten()
    else:
        assert offsets is not None  # torch has checked it
        ends = offsets[1:] if module.include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([ids.numel()])])
        counts = ends - offsets[: len(ends)]
    bags = torch.arange(len(counts), device=ids.device).repeat_interleave(counts)
    if module.mode == "mean":
        if module.padding_idx is not None:
            counts = counts - torch.zeros_like(counts).index_add_(0, bags, torch.eq(ids, module.padding_idx).to(counts.dtype))
        gradients = gradients / counts.clamp_min(1).unsqueeze(1)
    deltas = gradients[bags]
    if weights is not None:
        deltas = deltas * weights.reshape(-1, 1)
    site.examples_first(gradients)
    owners = torch.div(bags, max(1, len(counts) // max(1, site.examples)), rounding_mode="floor")
    yield "weight", _without_padding(module, owners, ids, deltas, site.examples)


def _without_padding(
    module: nn.Embedding | nn.EmbeddingBag, owners: Tensor, ids: Tensor, deltas: Tensor, examples: int
) -> Lookup:
    if module.padding_idx is not None:
        real = ids != module.padding_idx
        owners, ids, deltas = owners[real], ids[real], deltas[real]
    return Lookup(owners, ids, deltas, examples, module.weight.shape)


def _check(module: nn.Embedding | nn.EmbeddingBag, site: Site) -> None:
    for setting, remedy in (("scale_grad_by_freq", "False"), ("max_norm", "None")):
        if getattr(module, setting):
            raise UnsupportedLayer(
                f"{site.name} ({site.kind}) has {setting}, which makes one example's gradient depend on the others. "
                f"Use {setting}={remedy}."
            )
