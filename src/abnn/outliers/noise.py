"""Changes of every value: added noise, and bright for dark; of flat inputs ``[B, F]`` also features that do not belong together."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from abnn.outliers.base import POSITIVE, Change, Exchange
from abnn.outliers.random import Rng


class Noise(Change):
    """``x + severity * scale * n`` with ``n ~ N(0, 1)`` for every value.

    ``scale`` counts in widths of each channel's value range, or with ``units="raw"`` in the units of the data.
    ``clip`` keeps the result in the range; ``shared_channels`` adds the same noise to all channels of a place.
    """

    name = "noise"
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


class Invert(Change):
    """``(1 - severity) x + severity (low + high - x)``: grey at 1/2, bright for dark at 1.

    Its shape can be read again beyond 1/2, so the two-tier recipe does not count it as destroyed content.
    """

    name = "invert"

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        low, span = self.value_range(x)
        return torch.lerp(x, 2 * low + span - x, dial)


class FeatureNoise(Change):
    """``x + severity * scale * (high - low) * n`` with ``n ~ N(0, 1)``: every feature leaves its range by its own width."""

    name = "feature-noise"
    forms = ("flat",)
    limits = (("scale", *POSITIVE),)
    scale: float = 1.0

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        _, span = self.value_range(x)
        return x + dial * self.scale * span * rng.normal(*x.shape)


class FeatureShuffle(Exchange):
    """A random share ``severity`` of a sample's features take the values that they have in other samples of the batch.

    Each feature keeps its distribution and loses its connection with the others. Alone in its batch, a sample has
    nothing to swap with, and gets severity 0.
    """

    name = "feature-shuffle"
    forms = ("flat",)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        batch, features = x.shape
        # Each feature goes round its own random cycle through all samples, so that none keeps its value by chance.
        order = rng.permutations(features, batch)
        other = torch.zeros_like(order).scatter(1, order, order.roll(1, dims=1)).t()
        hit = rng.permutations(batch, features) < (dial * features).ceil()
        return torch.where(hit, x.gather(0, other), x)
