"""Smooth random fields in place of the content: blobs with edges, and bare backgrounds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.outliers.base import SPATIAL, Blend
from abnn.outliers.random import Rng

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Blobs(Blend):
    """High-contrast low-frequency blobs, blended in; see :func:`blobs`."""

    name = "blobs"
    forms = SPATIAL

    def other(self, x: Tensor, rng: Rng) -> Tensor:
        return blobs(x.shape, rng)


class Backgrounds(Blend):
    """Bare smooth random backgrounds in place of the content."""

    name = "backgrounds"
    forms = SPATIAL

    def other(self, x: Tensor, rng: Rng) -> Tensor:
        return smooth_background(x.shape, rng)


def smooth_field(shape: torch.Size, cells: int, rng: Rng) -> Tensor:
    """Return uniform values on a grid of ``cells`` points per axis, linearly interpolated to ``shape``; in [0, 1].

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
    """Return a random level plus a random amount of two octaves of smooth field, cut to [0, 1]."""
    per_sample = (shape[0], 1, *[1] * (len(shape) - 2))
    field = torch.lerp(smooth_field(shape, 2, rng), smooth_field(shape, 4, rng), rng.uniform(*per_sample))
    level, amount = rng.uniform(*per_sample), rng.uniform(*per_sample)
    return (level + amount * 2 * (field - 0.5)).clamp(0, 1)


def blobs(shape: torch.Size, rng: Rng) -> Tensor:
    """Return smooth fields of 3 to 6 points per axis through a steep logistic function, which gives them edges."""
    per_sample = (shape[0], *[1] * (len(shape) - 1))
    field = torch.lerp(smooth_field(shape, 3, rng), smooth_field(shape, 6, rng), rng.uniform(*per_sample))
    return torch.sigmoid((field - 0.5) * rng.between(4.0, 24.0, *per_sample))
