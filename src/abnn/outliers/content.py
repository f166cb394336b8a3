"""Changes that lead away from the data until nothing supports the label: noise, shuffled patches, inversion, blobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from abnn.errors import unknown
from abnn.outliers.base import Blend, Change, positive
from abnn.outliers.fields import smooth_background, smooth_field
from abnn.outliers.patches import shuffle_patches
from abnn.outliers.random import Rng


@dataclass(kw_only=True, eq=False)
class Noise(Change):
    """``x + severity * scale * n`` with ``n ~ N(0, 1)`` for every value.

    ``scale`` counts in widths of each channel's value range, or with ``units="raw"`` in the units of the data.
    ``clip`` keeps the result in the range; ``shared_channels`` adds the same noise to all channels of a place.
    """

    name: ClassVar[str] = "noise"
    scale: float = 2.0
    units: Literal["range", "raw"] = "range"
    clip: bool = False
    shared_channels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("scale", self.scale)
        if self.units not in ("range", "raw"):
            raise unknown("units", self.units, ("range", "raw"))

    @property
    def uses_range(self) -> bool:
        return self.clip or self.units == "range"

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        shape = (len(x), 1, *x.shape[2:]) if self.shared_channels else x.shape
        noise = rng.normal(*shape).expand_as(x)
        if not self.uses_range:
            return x + dial * self.scale * noise
        low, span = self.value_range(x)
        made = x + dial * self.scale * (span if self.units == "range" else 1.0) * noise
        return made.clamp(low, low + span) if self.clip else made


@dataclass(kw_only=True, eq=False)
class Patches(Change):
    """Shuffled patches: the more severe, the more of them (share ``severity``) move, and the finer they are.

    The number of patches per axis goes from 2 to ``finest`` in powers of two; around the one that belongs to a
    severity it varies by up to half a power from sample to sample. The values of a sample stay what they were.
    """

    name: ClassVar[str] = "patches"
    ranks: ClassVar[tuple[int, ...] | None] = (1, 2, 3)
    finest: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finest not in (2, 4, 8, 16, 32):
            raise unknown("finest", self.finest, (2, 4, 8, 16, 32))

    @property
    def uses_range(self) -> bool:
        return False

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        share, levels = dial.flatten(), self.finest.bit_length() - 2
        power = 1 + (share * levels + rng.between(-0.5, 0.5, len(x))).round().clamp(0, levels)
        return shuffle_patches(x, torch.pow(2.0, power).long(), share, self.finest, rng)


@dataclass(kw_only=True, eq=False)
class Invert(Change):
    """``(1 - severity) x + severity (low + high - x)``: grey at 1/2, bright for dark at 1.

    Its shape can be read again beyond 1/2, so the two-tier recipe does not count it as destroyed content.
    """

    name: ClassVar[str] = "invert"

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        low, span = self.value_range(x)
        return torch.lerp(x, 2 * low + span - x, dial)


@dataclass(kw_only=True, eq=False)
class Blobs(Blend):
    """High-contrast low-frequency blobs, blended in.

    Smooth fields of 3 to 6 points per axis through a steep logistic function, so that they have shapes and edges.
    """

    name: ClassVar[str] = "blobs"
    ranks: ClassVar[tuple[int, ...] | None] = (1, 2, 3)

    def other(self, x: Tensor, rng: Rng) -> Tensor:
        per_sample = (len(x), *[1] * (x.ndim - 1))
        field = torch.lerp(smooth_field(x.shape, 3, rng), smooth_field(x.shape, 6, rng), rng.uniform(*per_sample))
        return torch.sigmoid((field - 0.5) * rng.between(4.0, 24.0, *per_sample))


@dataclass(kw_only=True, eq=False)
class Backgrounds(Blend):
    """Bare smooth random backgrounds in place of the content."""

    name: ClassVar[str] = "backgrounds"
    ranks: ClassVar[tuple[int, ...] | None] = (1, 2, 3)

    def other(self, x: Tensor, rng: Rng) -> Tensor:
        return smooth_background(x.shape, rng)
