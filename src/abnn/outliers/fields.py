"""Smooth random fields and soft object masks: pure functions over whole batches ``[B, C, *size]``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.outliers.random import Rng

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def smooth_field(shape: torch.Size, cells: int, rng: Rng) -> Tensor:
    """Uniform values on a grid of ``cells`` points per axis, linearly interpolated to ``shape``; in [0, 1].

    Channels share a part of the field that differs from sample to sample, so that colours range from grey to vivid.
    """
    batch, channels, *size = shape
    # An axis shorter than the grid is one point per value; both ends of every axis are grid points.
    grid = [min(cells, length) for length in size]
    coarse = rng.uniform(batch, channels, *grid)
    if channels > 1:
        colour = rng.uniform(batch, 1, *[1] * len(size))
        coarse = torch.lerp(coarse[:, :1].expand_as(coarse), coarse, colour)
    return F.interpolate(coarse, size=size, mode=LINEAR[len(size)], align_corners=True)


def smooth_background(shape: torch.Size, rng: Rng) -> Tensor:
    """A random level plus a random amount of two octaves of smooth field, kept in [0, 1]."""
    per_sample = (shape[0], 1, *[1] * (len(shape) - 2))
    field = torch.lerp(smooth_field(shape, 2, rng), smooth_field(shape, 4, rng), rng.uniform(*per_sample))
    level, amount = rng.uniform(*per_sample), rng.uniform(*per_sample)
    return (level + amount * 2 * (field - 0.5)).clamp(0, 1)


def border_level(x: Tensor) -> Tensor:
    """Median over the outermost values of each channel, which is the background of most centred objects."""
    edges = [x.select(axis, end) for axis in range(2, x.ndim) for end in (0, -1)]
    level = torch.cat([edge.reshape(*x.shape[:2], -1) for edge in edges], dim=2).median(dim=2).values
    return level.view(*level.shape, *[1] * (x.ndim - 2))


def object_mask(x: Tensor, background: Tensor) -> Tensor:
    """How much each place belongs to the object, in [0, 1]: its distance from the background over the largest one.

    For anti-aliased shapes of one level on a background of another, bright on dark or dark on bright, this is the
    share of the place that the shape covers.
    """
    distance = (x - background).abs().amax(dim=1, keepdim=True)
    largest = distance.flatten(1).amax(dim=1).view(-1, *[1] * (x.ndim - 1))
    return distance / largest.clamp_min(torch.finfo(x.dtype).tiny)
