"""Changes of every value: added noise, and bright for dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from abnn.outliers.base import POSITIVE, Change
from abnn.outliers.random import Rng


@dataclass(kw_only=True, eq=False)
class Noise(Change):
    """``x + severity * scale * n`` with ``n ~ N(0, 1)`` for every value.

    ``scale`` counts in widths of each channel's value range, or with ``units="raw"`` in the units of the data.
    ``clip`` keeps the result in the range; ``shared_channels`` adds the same noise to all channels of a place.
    """

    name: ClassVar[str] = "noise"
    limits = (("scale", *POSITIVE),)
    choices = (("units", ("range", "raw")),)
    scale: float = 2.0
    units: Literal["range", "raw"] = "range"
    clip: bool = False
    shared_channels: bool = False

    @property
    def uses_range(self) -> bool:
        return self.clip or self.units == "range"

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        shape = (len(x), 1, *x.shape[2:]) if self.shared_channels else x.shape
        noise = rng.normal(*shape).expand_as(x)
        if not self.uses_range:
            return x + dial * self.scale * noise
        low, span = self.value_range(x)
        result = x + dial * self.scale * (span if self.units == "range" else 1.0) * noise
        return result.clamp(low, low + span) if self.clip else result


@dataclass(kw_only=True, eq=False)
class Invert(Change):
    """``(1 - severity) x + severity (low + high - x)``: grey at 1/2, bright for dark at 1.

    Its shape can be read again beyond 1/2, so the two-tier recipe does not count it as destroyed content.
    """

    name: ClassVar[str] = "invert"

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        low, span = self.value_range(x)
        return torch.lerp(x, 2 * low + span - x, dial)
