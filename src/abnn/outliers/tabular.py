"""Outliers of flat inputs ``[B, F]``: features off their scale, and features that do not belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.outliers.base import POSITIVE, Change, Exchange
from abnn.outliers.random import Rng


@dataclass(kw_only=True, eq=False)
class FeatureNoise(Change):
    """``x + severity * scale * (high - low) * n`` with ``n ~ N(0, 1)``: every feature leaves its range by its own width."""

    name: ClassVar[str] = "feature-noise"
    forms = ("flat",)
    limits = (("scale", *POSITIVE),)
    scale: float = 1.0

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        _, span = self.value_range(x)
        return x + dial * self.scale * span * rng.normal(*x.shape)


@dataclass(kw_only=True, eq=False)
class FeatureShuffle(Exchange):
    """A random share ``severity`` of a sample's features take the values that they have in other samples of the batch.

    Each feature keeps its distribution and loses its connection with the others. Alone in its batch, a sample has
    nothing to swap with, and gets severity 0.
    """

    name: ClassVar[str] = "feature-shuffle"
    forms = ("flat",)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        batch, features = x.shape
        # Each feature goes round its own random cycle through all samples, so that none keeps its value by chance.
        order = rng.permutations(features, batch)
        other = torch.zeros_like(order).scatter(1, order, order.roll(1, dims=1)).t()
        hit = rng.permutations(batch, features) < (dial * features).ceil()
        return torch.where(hit, x.gather(0, other), x)
