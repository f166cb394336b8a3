"""Dead leaves: shapes that cover one another, with edges and colours much as photographs have them.

Lee, Mumford and Huang 2001, "Occlusion Models for Natural Images"; Baradad et al. 2021, "Learning to See by Looking at Noise"
(arXiv:2106.05963), for what networks learn from them. The time for a scene grows with leaves times places, so that scenes of large
images are made smaller, and resized.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.outliers.base import Blend
from abnn.outliers.blobs import smooth_field
from abnn.outliers.random import Rng

SMALLEST, LARGEST = 0.05, 0.6
MOST_PLACES = 112
"""Of each side of a scene before it is resized."""


class Leaves(Blend):
    """A scene of ``count`` leaves in place of the content.

    The size r of a leaf has a density proportional to r^-3, which makes the scenes look alike at every scale. Leaves are
    ellipses and boxes at any angle, of one colour each with a smooth texture of its own strength.
    """

    name = "leaves"
    forms = ("image",)
    limits = (*Blend.limits, ("count", 2, 10_000))
    count: int = 32

    def other(self, x: Tensor, rng: Rng) -> Tensor:
        return leaf_scenes(x.shape, self.count, rng)


def leaf_scenes(shape: torch.Size, count: int, rng: Rng) -> Tensor:
    """Return scenes of ``count`` leaves with values in [0, 1], [B, C, H, W]; sides above ``MOST_PLACES`` are interpolated."""
    small = torch.Size((*shape[:2], *(min(side, MOST_PLACES) for side in shape[2:])))
    scenes = exact_scenes(small, count, rng)
    if small == shape:
        return scenes
    return F.interpolate(scenes, size=shape[2:], mode="bilinear", align_corners=False).clamp(0, 1)


def exact_scenes(shape: torch.Size, count: int, rng: Rng) -> Tensor:
    """Return scenes whose every place is computed; each leaf costs time for each of them."""
    batch, channels, height, width = shape
    masks = leaf_masks(batch, count, height, width, rng)
    top = masks.to(torch.uint8).argmax(dim=1)  # the first leaf that covers each place, [B, H, W]
    vivid = rng.uniform(batch, 1, 1)
    grey = rng.uniform(batch, count, 1)
    colour = torch.lerp(grey.expand(-1, -1, channels), rng.uniform(batch, count, channels), vivid)
    index = top.flatten(1)[:, :, None].expand(-1, -1, channels)
    scene = colour.gather(1, index).transpose(1, 2).unflatten(2, (height, width))
    strength = (0.4 * rng.uniform(batch, count)).gather(1, top.flatten(1)).view(batch, 1, height, width)
    fine = torch.lerp(smooth_field(shape, 8, rng), smooth_field(shape, 16, rng), rng.uniform(batch, 1, 1, 1))
    contrast = rng.between(0.4, 1.0, batch, 1, 1, 1)
    scene = 0.5 + contrast * (scene - 0.5)
    return (scene + strength * (fine - 0.5)).clamp(0, 1)


def leaf_masks(batch: int, count: int, height: int, width: int, rng: Rng) -> Tensor:
    """Return which places each leaf covers, [B, count, H, W]; the last leaf covers everything."""
    # r with density r^-3 between the ends, by the inverse of its distribution function
    ratio = (SMALLEST / LARGEST) ** 2
    size = SMALLEST * (1 - rng.uniform(batch, count) * (1 - ratio)).rsqrt()
    stretch = torch.exp(rng.between(-0.7, 0.7, batch, count))
    angle = math.pi * rng.uniform(batch, count)
    centre = rng.between(-0.1, 1.1, 2, batch, count)
    box = rng.uniform(batch, count) < 0.4

    rows, columns = (
        (torch.arange(side, device=size.device, dtype=size.dtype) + 0.5) / side for side in (height, width)
    )
    size, stretch, angle, box, top, left = (each[..., None, None] for each in (size, stretch, angle, box, *centre))
    down, right = rows[:, None] - top, columns - left
    along = (angle.cos() * right + angle.sin() * down).abs() / (size * stretch)
    across = (angle.cos() * down - angle.sin() * right).abs() / (size / stretch)
    covered = torch.where(box, torch.maximum(along, across), torch.hypot(along, across)) < 1
    return torch.cat([covered[:, :-1], torch.ones_like(covered[:, :1])], dim=1)
