"""Features of images that nobody has to learn: a scattering transform, whitened on made-up strokes.

Bruna, Mallat: Invariant Scattering Convolution Networks; with a private linear model on top Tramèr, Boneh: Differentially Private
Learning Needs Better Features (or Much More Data). The filters are fixed, and the whitening is computed on images that are drawn
here, so the features are a public function of one image each: they cost nothing, and need no event.

Two scales J = 2: averages of the image, of |image ⋆ ψ|, and of ||image ⋆ ψ| ⋆ ψ'| with the wider ψ', over windows of 4 pixels.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from privopt.errors import InputError

SCALES = 2
STRIDE = 2**SCALES  # pixels of a window
MARGIN = 4  # pixels around an image, over which filters may reach
STROKES = 4096  # made-up images, for the whitening
SEED = 0


def _grid(size: int) -> tuple[Tensor, Tensor]:
    """Coordinates of a square, with 0 at the corner, around which it is periodic."""
    line = (torch.arange(size, dtype=torch.float64) + size // 2) % size - size // 2
    return line[:, None], line[None, :]


def _morlet(size: int, scale: int, angle: float, angles: int) -> Tensor:
    """A Morlet wavelet in the Fourier domain; its mean is 0."""
    rows, columns = _grid(size)
    along = math.cos(angle) * rows + math.sin(angle) * columns
    across = (-math.sin(angle) * rows + math.cos(angle) * columns) * 4 / angles
    envelope = torch.exp(-(along**2 + across**2) / (2 * (0.8 * 2**scale) ** 2))
    wave = torch.exp(1j * (3 * math.pi / 4 / 2**scale) * along)
    own = envelope * wave
    own = own - envelope * (own.sum() / envelope.sum())
    return torch.fft.fft2(own / own.abs().sum() * 2)


def _windows(size: int, margin: int) -> Tensor:
    """A matrix of Gaussian weights that averages `size` padded pixels over windows."""
    centres = torch.arange(STRIDE / 2 - 0.5, size - 2 * margin, STRIDE) + margin
    weights = torch.exp(-((torch.arange(size)[None, :] - centres[:, None]) ** 2) / (2 * (0.8 * 2 ** (SCALES - 1)) ** 2))
    return weights / weights.sum(1, keepdim=True)


class Scattering(nn.Module):
    """Scattering coefficients of square images: (examples, channels, size, size) → (examples, features). Nothing is trained.

    >>> transform = Scattering(28)
    >>> transform(torch.zeros(2, 1, 28, 28)).shape, sum(p.numel() for p in transform.parameters())
    (torch.Size([2, 3969]), 0)
    """

    def __init__(self, size: int, angles: int = 8) -> None:
        super().__init__()
        if size % STRIDE:
            raise InputError(f"images of {size} pixels cannot be cut into windows of {STRIDE}: pad them to a multiple of it.")
        self.size, padded = size, size + 2 * MARGIN
        turns = [math.pi * turn / angles for turn in range(angles)]
        fine, coarse = (torch.stack([_morlet(padded, scale, turn, angles) for turn in turns]) for scale in range(SCALES))
        self.register_buffer("fine", fine.to(torch.complex64))
        self.register_buffer("coarse", coarse.to(torch.complex64))
        self.register_buffer("windows", _windows(padded, MARGIN).float())

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[2:] != (self.size, self.size):
            raise InputError(f"images have the shape {tuple(images.shape)}, but (examples, channels, {self.size}, {self.size}).")
        padded = nn.functional.pad(images, [MARGIN] * 4, mode="replicate")
        own = torch.fft.fft2(padded)
        first = torch.fft.ifft2(own.unsqueeze(2) * self.fine).abs()
        wider = _halved(own.unsqueeze(2) * self.coarse).abs()
        second = _halved(torch.fft.fft2(first).unsqueeze(3) * self.coarse).abs().flatten(2, 3)
        parts = [self._average(padded.unsqueeze(2)), self._average(first), self._average(wider), self._average(second)]
        return torch.cat([part.flatten(1) for part in parts], 1)

    def _average(self, maps: Tensor) -> Tensor:
        windows: Any = self.windows
        if maps.shape[-1] < windows.shape[1]:
            windows = windows[:, ::2] / windows[:, ::2].sum(1, keepdim=True)
        return windows @ maps @ windows.T


def _halved(spectrum: Tensor) -> Tensor:
    """Every second pixel in each direction, of an image whose spectrum this is."""
    half = spectrum.shape[-1] // 2
    rows = spectrum[..., :half, :] + spectrum[..., half:, :]
    return torch.fft.ifft2((rows[..., :half] + rows[..., half:]) / 4)


def draw_strokes(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Made-up images of pen strokes, between 0 and 1: two or three bent lines each.

    >>> images = draw_strokes(3, 28, torch.Generator().manual_seed(0))
    >>> images.shape, bool(images.max() <= 1)
    (torch.Size([3, 1, 28, 28]), True)
    """
    time = torch.linspace(0, 1, 24)
    bends = torch.stack([(1 - time) ** 2, 2 * time * (1 - time), time**2])  # of a Bézier curve
    lines, line = 3, torch.arange(size, dtype=torch.float32)
    corners = size * (0.15 + 0.7 * torch.rand(count, lines, 3, 2, generator=generator))
    corners[:, 1:, 0] = corners[:, :-1, 2]  # each goes on where the one before ended
    points = torch.einsum("kt,nlkc->nltc", bends, corners)
    width = size / 28 * (0.9 + 0.6 * torch.rand(count, 1, 1, generator=generator))
    used = torch.rand(count, generator=generator) < 0.6
    ink = torch.zeros(count, size, size)
    for number in range(lines):
        rows, columns = (points[:, number, :, axis, None] - line for axis in (0, 1))
        near = torch.exp(-(rows**2) / (2 * width**2)).transpose(1, 2).unsqueeze(3)
        stroke = (near * torch.exp(-(columns**2) / (2 * width**2)).unsqueeze(1)).amax(2)
        ink = torch.maximum(ink, stroke if number < 2 else stroke * used[:, None, None])
    return (1.5 * ink).clamp_max(1).unsqueeze(1)


FLOOR = 0.003  # of the largest deviation, so that directions in which strokes hardly differ are not blown up
LIFT = 0.01  # added to a coefficient before its logarithm: images are between 0 and 1


class ImageFeatures:
    """Images between 0 and 1 → whitened logarithms of scattering coefficients, of length about 1: inputs of a linear model.

    The same for everybody: the strokes are drawn with a fixed seed, and no private image is looked at.
    """

    def __init__(self, size: int, channels: int = 1, *, width: int = 500, batch: int = 64) -> None:
        self._transform, self._batch = Scattering(size), batch
        generator = torch.Generator().manual_seed(SEED)
        grey = draw_strokes(STROKES, size, generator)
        tints = torch.rand(STROKES, channels, 1, 1, generator=generator) if channels > 1 else torch.ones(1)
        known = torch.cat([self._scatter(part) for part in torch.split(grey * tints, batch)])
        self._mean = known.mean(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)  # of the random directions that the decomposition begins with
            _, deviations, directions = torch.svd_lowrank(known - self._mean, min(width, *known.shape), niter=3)
        deviations = deviations / math.sqrt(STROKES)
        self._project = directions / (deviations + FLOOR * deviations[0]) / math.sqrt(len(deviations))
        self.width = len(deviations)

    def __call__(self, images: Tensor) -> Tensor:
        """The features, one row for each image."""
        images = images.float() if images.is_floating_point() else images
        return torch.cat([(self._scatter(part) - self._mean) @ self._project for part in torch.split(images, self._batch)])

    def _scatter(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return (LIFT + self._transform(images).clamp_min(0)).log()
