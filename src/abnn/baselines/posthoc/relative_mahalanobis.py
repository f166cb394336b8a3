"""Relative Mahalanobis distance: to the nearest class, less the distance to all data taken as one class.

    s(x) = (min_c d_c - d_0) / D

d_c as in :mod:`abnn.baselines.posthoc.mahalanobis`, d_0 the squared distance under one Gaussian fitted to everything. Ren et al.
2021, "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", arXiv:2106.09022. Directions in which all inputs
vary alike, whatever their class, cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.baselines.posthoc.base import Features, part
from abnn.baselines.posthoc.mahalanobis import Mahalanobis, gaussians, squared_distances


def relative_distance(to_classes: Tensor, to_all: Tensor, dimensions: int) -> Tensor:
    """(min_c d_c - d_0) / D from squared distances [N, C] and [N, 1], [N]."""
    return (to_classes - to_all).amin(1) / dimensions


@dataclass
class RelativeMahalanobis(Mahalanobis):
    """On the last features."""

    name: ClassVar[str] = "relative-mahalanobis"

    def learn(self, features: Features) -> dict[str, Tensor]:
        rows = getattr(features, self.needs[0])
        mean, whitening = gaussians(rows, torch.zeros_like(part(features.labels)), 1)
        return {**super().learn(features), "all_mean": mean, "all_whitening": whitening}

    def values(self, features: Features) -> Tensor:
        rows = getattr(features, self.needs[0])
        to_classes = squared_distances(rows, self.state["means"], self.state["whitening"])
        to_all = squared_distances(rows, self.state["all_mean"], self.state["all_whitening"])
        return relative_distance(to_classes, to_all, rows.shape[1])


@dataclass
class RelativeMahalanobisBlocks(RelativeMahalanobis):
    """On the statistics of all blocks."""

    name: ClassVar[str] = "relative-mahalanobis-blocks"
    needs: ClassVar[tuple[str, ...]] = ("blocks",)
