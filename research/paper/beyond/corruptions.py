"""Corruptions of images that keep the label, at five strengths each: what good in-distribution data may suffer in use.

After the idea of Hendrycks and Dietterich (2019), with a few plain functions for small images in [0, 1]. All random
numbers come from the generator, and how many depends on the shape alone: every strength changes an image in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Corruption = Callable[[Tensor, float, torch.Generator], Tensor]


def noise(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """x + amount n with n ~ N(0, 1), clipped."""
    return (x + amount * torch.randn(x.shape, generator=generator)).clamp(0, 1)


def blur(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Gaussian blur with a standard deviation of ``amount`` pixels, cut off at three of them."""
    reach = max(1, math.ceil(3 * amount))
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / amount) ** 2)
    weights = (weights / weights.sum()).to(x.dtype)
    channels = x.shape[1]
    padded = F.pad(x, [reach] * 4, mode="replicate")
    rows = F.conv2d(padded, weights.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(rows, weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def brightness(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """x + amount, clipped."""
    return (x + amount).clamp(0, 1)


def contrast(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """m + amount (x - m) with the mean m of each image."""
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return mean + amount * (x - mean)


def pixelate(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Fewer pixels, ``amount`` of the side, drawn as blocks. Aligned centres, or a coarser grid could do less harm."""
    sides = [max(1, round(amount * side)) for side in x.shape[2:]]
    small = F.interpolate(x, sides, mode="bilinear", antialias=True, align_corners=False)
    return F.interpolate(small, list(x.shape[2:]), mode="nearest-exact")


def rotation(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Turned by ``amount`` degrees, to the left or to the right; the border's values go on outside."""
    sign = 2.0 * torch.randint(2, (len(x),), generator=generator) - 1
    angle = math.radians(amount) * sign
    zero = torch.zeros_like(angle)
    return _moved(x, angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero)


def shift(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Moved by ``amount`` of the side in any direction; the border's values go on outside."""
    angle = 2 * math.pi * torch.rand(len(x), generator=generator)
    one, zero = torch.ones_like(angle), torch.zeros_like(angle)
    right, down = 2 * amount * angle.cos(), 2 * amount * angle.sin()  # the side is 2 long there
    return _moved(x, one, zero, right, zero, one, down)


CORRUPTIONS: dict[str, tuple[Corruption, tuple[float, ...]]] = {
    "noise": (noise, (0.05, 0.1, 0.2, 0.3, 0.4)),
    "blur": (blur, (0.5, 0.75, 1.0, 1.5, 2.0)),
    "brightness": (brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (contrast, (0.75, 0.5, 0.35, 0.2, 0.1)),
    "pixelate": (pixelate, (0.75, 0.6, 0.5, 0.4, 0.3)),
    "rotation": (rotation, (10.0, 20.0, 30.0, 45.0, 60.0)),
    "shift": (shift, (0.05, 0.1, 0.15, 0.2, 0.25)),
}
"""Each with its five amounts, from weak to strong."""


def corrupt(x: Tensor, name: str, strength: int, seed: int) -> Tensor:
    """Images corrupted with a strength from 1 to 5, the same ones for the same seed."""
    change, amounts = CORRUPTIONS[name]
    return change(x, amounts[strength - 1], torch.Generator().manual_seed(seed))


def _moved(x: Tensor, *matrix: Tensor) -> Tensor:
    """Images moved by a 2 x 3 matrix each, row by row."""
    grid = F.affine_grid(torch.stack(matrix, 1).view(-1, 2, 3), list(x.shape), align_corners=False).to(x.dtype)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
