"""Smooth random shapes in place of the content: blobs with edges, and bare backgrounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.outliers.base import SPATIAL, Blend
from abnn.outliers.fields import smooth_background, smooth_field
from abnn.outliers.random import Rng


@dataclass(kw_only=True, eq=False)
class Blobs(Blend):
    """High-contrast low-frequency blobs, blended in.

    Smooth fields of 3 to 6 points per axis through a steep logistic function, so that they have shapes and edges.
    """

    name: ClassVar[str] = "blobs"
    forms = SPATIAL

    def other(self, x: Tensor, rng: Rng) -> Tensor:
        per_sample = (len(x), *[1] * (x.ndim - 1))
        field = torch.lerp(smooth_field(x.shape, 3, rng), smooth_field(x.shape, 6, rng), rng.uniform(*per_sample))
        return torch.sigmoid((field - 0.5) * rng.between(4.0, 24.0, *per_sample))


@dataclass(kw_only=True, eq=False)
class Backgrounds(Blend):
    """Bare smooth random backgrounds in place of the content."""

    name: ClassVar[str] = "backgrounds"
    forms = SPATIAL

    def other(self, x: Tensor, rng: Rng) -> Tensor:
        return smooth_background(x.shape, rng)
