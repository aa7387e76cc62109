"""Models that are not supported: each error names the module, the reason and an alternative."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin

from privopt.errors import PrivoptError


class UnsupportedLayer(PrivoptError):
    """A module that has no per-example gradient, or none in the way it is used."""


class UnsupportedLoss(PrivoptError):
    """A loss that does not give one value for each example."""


class SlowModel(UserWarning):
    """A model whose examples go through it one by one."""


def refuse_mixing(modules: Iterable[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Refuse modules that mix examples or keep statistics of batches. Returns norms, whose mode may change later."""
    norms: list[tuple[str, nn.Module]] = []
    for name, module in modules:
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            raise UnsupportedLayer(
                f"{name} ({type(module).__name__}) has no parameters yet. Run the model once on made-up data first."
            )
        if isinstance(module, torch.jit.ScriptModule):
            where = name or "the model"
            raise UnsupportedLayer(
                f"{where} is TorchScript, whose layers are not visible. Give the model that it was compiled from."
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise UnsupportedLayer(
                f"{name or 'the model'} ({type(module).__name__}) has max_norm, which changes the table's rows that some "
                "example uses, and no noise hides that. Use max_norm=None."
            )
        if not isinstance(module, _NormBase):
            continue
        norms.append((name, module))
        if module.track_running_stats and not module.training:
            continue  # with fixed statistics it is a scale and a shift
        kind = type(module).__name__
        where = name or "the model"
        if isinstance(module, _BatchNorm):
            raise UnsupportedLayer(
                f"{where} ({kind}) mixes examples, so no per-example gradient exists. GroupNorm does not mix. "
                "privopt.replace_batchnorm(model) puts it there."
            )
        if module.track_running_stats:
            raise UnsupportedLayer(
                f"{where} ({kind}) keeps running statistics of private batches, which no noise hides. "
                "Use track_running_stats=False, which privopt.replace_batchnorm(model) sets."
            )
    return norms


def rounding_settings(model: nn.Module, device: torch.device) -> dict[str, Any]:
    """The settings of torch, by name, that say how products of this model are rounded."""
    if device.type != "cuda":
        return {"torch.backends.mkldnn.matmul": getattr(torch.backends.mkldnn, "matmul", None)}
    found: dict[str, Any] = {"torch.backends.cuda.matmul": torch.backends.cuda.matmul}
    if any(isinstance(module, _ConvNd) for module in model.modules()):
        found["torch.backends.cudnn.conv"] = getattr(torch.backends.cudnn, "conv", None)
    return found


def refuse_rounding(settings: Mapping[str, Any]) -> None:
    """Refuse settings that round float32 products: a norm and a sum that are rounded differently bound nothing."""
    for name, where in settings.items():
        if (precision := getattr(where, "fp32_precision", "none")) not in ("none", "ieee"):
            raise UnsupportedLayer(
                f"products of float32 are rounded to {precision}, so a clip would not keep its bound. "
                f'Set {name}.fp32_precision = "ieee"; torch.autocast is as fast, and keeps it.'
            )


def batch_dims(model: nn.Module) -> dict[nn.Module, int]:
    """The dimension of the examples, for modules of torch's transformers where it is not the first."""
    dims: dict[nn.Module, int] = {}
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) and not module.self_attn.batch_first:
            dims.update(dict.fromkeys(module.children(), 1))
        if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder) and module.norm is not None:
            first = next(iter(module.layers), None)
            inner = getattr(first, "self_attn", None)
            if inner is not None and not inner.batch_first:
                dims[module.norm] = 1
    return dims


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm (at most `groups` groups) for BatchNorm, and instance norms without running statistics.

    >>> replace_batchnorm(nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12)), groups=8)[1].num_groups
    6
    """
    model = copy.deepcopy(model)
    if isinstance(model, _NormBase):
        return _replace_norm(model, groups)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _NormBase):
                setattr(module, name, _replace_norm(child, groups))
    return model


def _replace_norm(norm: _NormBase, groups: int) -> nn.Module:
    if not isinstance(norm, _BatchNorm):
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        return norm
    count = next(n for n in range(min(groups, norm.num_features), 0, -1) if norm.num_features % n == 0)
    replacement = nn.GroupNorm(count, norm.num_features, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        replacement.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
        replacement.weight.requires_grad_(norm.weight.requires_grad)
        replacement.bias.requires_grad_(norm.bias.requires_grad)
        replacement.to(norm.weight.device, norm.weight.dtype)
    return replacement.train(norm.training)
