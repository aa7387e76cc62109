"""Convolutions and transposed convolutions, in one, two and three dimensions.

A convolution is a linear layer on patches, so its gradient is Σ over pixels of δ ⊗ patch. Patches are cut a few examples at a
time and never kept. A transposed convolution is the same with inputs and gradients exchanged: Σ over pixels of x ⊗ patch of δ.

Where patches would be many times the image, each example is a group of one larger convolution instead. Torch computes its weight
gradient. Groups do not mix, so its parts are the gradients of each example.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from privopt.perexample.networks.factors import Dense, Outer, Term
from privopt.perexample.networks.tape import NamedFactors, Site

SHORT = 16  # pixels in a row of the output: shorter rows are indexed faster than copied
MANY, CHANNELS = 1024, 8  # places and channels of a group, from which a grouped convolution is faster than patches
FEW, SMALL = 16, 9  # the same where a group has one channel: from so many places, with a kernel of so many pixels


@dataclass(frozen=True)
class Patches:
    """Patches of images (examples, channels, *pixels): a source of (examples · groups, places, channels/groups · kernel)."""

    images: Tensor
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    places: tuple[int, ...]

    @property
    def shape(self) -> torch.Size:
        examples, channels = self.images.shape[:2]
        return torch.Size((examples * self.groups, prod(self.places), channels // self.groups * prod(self.kernel)))

    @property
    def stored(self) -> int:
        return self.images.numel()

    def block(self, start: int, stop: int, space: Tensor | None = None) -> Tensor:
        images = self.images[start // self.groups : stop // self.groups]
        patches = self._cut(images, space)  # (examples, channels · kernel, places)
        return patches.reshape(-1, patches.shape[1] // self.groups, patches.shape[2]).transpose(1, 2)

    def _cut(self, images: Tensor, space: Tensor | None) -> Tensor:
        if prod(self.kernel) == prod(self.stride) == 1 and images.shape[2:] == self.places:
            return images.flatten(2)
        pads = [n for pad in reversed(self.padding) for n in (pad, pad)]
        padded = (F.pad(images, pads) if any(pads) else images).contiguous()
        channels = images.shape[1] * prod(self.kernel)
        numbers = len(images) * channels * prod(self.places)
        patches = padded.new_empty(numbers) if space is None else space[:numbers]  # memory that is new takes longer than the copy
        if self.places[-1] < SHORT:
            pixels, rows = self._pixels, padded.flatten(0, 1).flatten(1)
            torch.index_select(rows, 1, pixels, out=patches.view(len(rows), len(pixels)))
        else:
            windows = self._windows(padded)
            patches.view(windows.shape).copy_(windows)
        return patches.view(len(images), channels, -1)

    @cached_property
    def _pixels(self) -> Tensor:
        """The indices of a channel's patches in the channel."""
        sizes = [size + 2 * pad for size, pad in zip(self.images.shape[2:], self.padding, strict=True)]
        return self._windows(torch.arange(prod(sizes), device=self.images.device).view(sizes)).reshape(-1)

    def _windows(self, padded: Tensor) -> Tensor:
        """(…, *kernel, *places): every patch, without a copy. (Copying this view is faster than F.unfold.)"""
        first = padded.ndim - len(self.kernel)
        steps = padded.stride()[first:]
        return padded.as_strided(
            (*padded.shape[:first], *self.kernel, *self.places),
            (
                *padded.stride()[:first],
                *(step * n for step, n in zip(steps, self.dilation, strict=True)),
                *(step * n for step, n in zip(steps, self.stride, strict=True)),
            ),
            padded.storage_offset(),
        )

    def _patch_counts(self, images: Tensor) -> list[int]:
        """How many patches fit; output padding of a transposed convolution can make them more than its places."""
        return [
            (size + 2 * pad - dilation * (width - 1) - 1) // step + 1
            for size, pad, dilation, width, step in zip(
                images.shape[2:], self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        ]

    def lengths(self) -> Tensor:
        """An upper bound: for each place in the kernel, a pixel is in at most one patch."""
        rows = self.images.reshape(len(self.images) * self.groups, -1)
        return torch.linalg.vector_norm(rows, dim=1).mul_(prod(self.kernel) ** 0.5)

    def take(self, index: Tensor) -> "Patches":
        return replace(self, images=self.images[torch.div(index[:: self.groups], self.groups, rounding_mode="floor")])

    def less(self, other: "Patches") -> "Patches":
        return replace(self, images=self.images - other.images)

    def contract(self, gradients: Tensor, groups: int) -> Tensor:
        """The ordinary weight gradient of a convolution whose output gradient is `gradients`."""
        out = gradients.transpose(1, 2).reshape(len(self.images), -1, *self.places)
        result = self._weight_gradient(self.images, out, self.groups)
        return result.reshape(result.shape[0], -1)

    def multiply(self, gradients: Tensor, start: int, stop: int) -> Tensor | None:
        if not self._is_faster_grouped(self.images.shape[1] // self.groups, q := gradients.shape[2]):
            return None
        images = self.images[start // self.groups : stop // self.groups]
        rows = gradients.transpose(1, 2).reshape(1, -1, *self.places)
        return self._weight_gradient(images.reshape(1, -1, *images.shape[2:]), rows, stop - start).reshape(stop - start, q, -1)

    def _is_faster_grouped(self, channels: int, q: int) -> bool:
        places, pixels = prod(self.places), prod(self.kernel)
        if channels == q == 1:
            return places >= (FEW if pixels <= SMALL else MANY)
        return places >= MANY and channels >= CHANNELS and pixels > 1

    def _weight_gradient(self, images: Tensor, gradients: Tensor, groups: int) -> Tensor:
        """The weight gradient of a convolution of these images with so many groups."""
        if (counts := self._patch_counts(images)) != list(self.places):
            missing = [n for more, own in zip(counts[::-1], self.places[::-1], strict=True) for n in (0, more - own)]
            gradients = F.pad(gradients, missing)
        weight = gradients.new_empty(1).expand(gradients.shape[1], images.shape[1] // groups, *self.kernel)
        found: Tensor = torch.ops.aten.convolution_backward.default(
            gradients,
            images,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0,) * len(self.kernel),
            groups,
            (False, True, False),
        )[1]
        return found


def conv_factors(module: Any, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """nn.Conv1d, nn.Conv2d, nn.Conv3d."""
    pixels = len(module.kernel_size)
    images, padding = _batched(inputs[0], pixels), module.padding
    gradients = _batched(gradients, pixels)
    if module.weight.requires_grad:
        if isinstance(padding, str) or module.padding_mode != "zeros":
            mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
            images = F.pad(images, module._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * pixels
        places = tuple(gradients.shape[2:])
        patches = Patches(images, module.kernel_size, module.stride, tuple(padding), module.dilation, module.groups, places)
        yield "weight", _outer(patches, gradients, module, site)
    yield from _bias(module, gradients, site)


def conv_transpose_factors(module: Any, inputs: tuple[Tensor, ...], gradients: Tensor, site: Site) -> NamedFactors:
    """nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d."""
    pixels = len(module.kernel_size)
    images, gradients = _batched(inputs[0], pixels), _batched(gradients, pixels)
    if module.weight.requires_grad:
        places = tuple(images.shape[2:])
        patches = Patches(
            gradients, module.kernel_size, module.stride, tuple(module.padding), module.dilation, module.groups, places
        )
        yield "weight", _outer(patches, images, module, site)
    yield from _bias(module, gradients, site)


def _outer(patches: Patches, other: Tensor, module: Any, site: Site) -> Outer:
    groups = module.groups
    if len(other) == site.examples:
        deltas = other.reshape(len(other) * groups, other.shape[1] // groups, -1).transpose(1, 2)
        return Outer([Term(patches, deltas)], module.weight.shape, groups)
    # several images of one example: each is a term
    own, rest = site.examples_first(patches.images), site.examples_first(other)
    terms = []
    for k in range(own.shape[1]):
        deltas = rest[:, k].reshape(len(own) * groups, other.shape[1] // groups, -1).transpose(1, 2)
        terms.append(Term(replace(patches, images=own[:, k].contiguous()), deltas))
    return Outer(terms, module.weight.shape, groups)


def _bias(module: Any, gradients: Tensor, site: Site) -> NamedFactors:
    if module.bias is not None and module.bias.requires_grad:
        sums = site.examples_first(gradients.flatten(2).sum(2))
        yield "bias", Dense(sums if sums.ndim == 2 else sums.sum(1))


def _batched(tensor: Tensor, pixels: int) -> Tensor:
    """A single image has no batch dimension: it is a batch of one."""
    return tensor if tensor.ndim == pixels + 2 else tensor.unsqueeze(0)
