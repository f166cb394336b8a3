"""Mahalanobis distance to the nearest class, or relative to all data: on the last features, normalised ones, or all blocks.

    mahalanobis            min_c sqrt(d_c / D),       d_c = (f - m_c)^T C^-1 (f - m_c)
    relative-mahalanobis   (min_c d_c - d_0) / D,     d_0 under one Gaussian fitted to everything

with class means m_c and one covariance C of all classes, shrunk towards its diagonal as in :mod:`abnn.bayes.gaussians`. f are the
last features; with "-l2" divided by their length; with "-blocks" the statistics of all blocks. Lee et al. 2018, arXiv:1807.03888,
without its input perturbation and its regression on outliers; Ren et al. 2021, arXiv:2106.09022; Mueller and Hein 2025,
arXiv:2505.18032.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.baselines.posthoc.base import Features, PostHoc, add_score
from abnn.bayes.gaussians import Moments


def squared_distances(features: Tensor, means: Tensor, whitening: Tensor) -> Tensor:
    """Return (f - m_c)^T W^T W (f - m_c) for every class, [N, C]; W^T W is the inverse covariance."""
    left, right = features @ whitening.T, means @ whitening.T
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square()


def gaussians(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return class means [C, D] and W [D, D] with W^T W the inverse of the shrunk covariance that the classes share."""
    moments = Moments(classes, features.shape[1])
    for rows, numbers in zip(features.split(4096), labels.split(4096)):
        moments.add(rows.double().cpu(), numbers.cpu())
    means, whitening = moments.finish()
    return means.float(), whitening.float()


@dataclass
class Mahalanobis(PostHoc):
    """relative: less the distance to all data; unit: features are divided by their length."""

    name: ClassVar[str] = "mahalanobis"
    needs: ClassVar[tuple[str, ...]] = ("last",)
    by_class: ClassVar[bool] = True
    relative: ClassVar[bool] = False
    unit: ClassVar[bool] = False

    def rows(self, features: Features) -> Tensor:
        """f, [N, D]."""
        rows = features.part(self.needs[0])
        return F.normalize(rows, dim=1) if self.unit else rows

    def learn(self, features: Features) -> dict[str, Tensor]:
        rows, labels = self.rows(features), features.part("labels")
        means, whitening = gaussians(rows, labels, features.logits.shape[1])
        state = {"means": means, "whitening": whitening}
        if self.relative:
            state["all_mean"], state["all_whitening"] = gaussians(rows, torch.zeros_like(labels), 1)
        return state

    def values(self, features: Features) -> Tensor:
        rows = self.rows(features)
        to_classes = squared_distances(rows, self.state["means"], self.state["whitening"])
        if not self.relative:
            return (to_classes.amin(1) / rows.shape[1]).sqrt()
        to_all = squared_distances(rows, self.state["all_mean"], self.state["all_whitening"])
        return (to_classes - to_all).amin(1) / rows.shape[1]


add_score(Mahalanobis, "mahalanobis-l2", unit=True)
add_score(Mahalanobis, "mahalanobis-blocks", needs=("blocks",))
add_score(Mahalanobis, "relative-mahalanobis", relative=True)
add_score(Mahalanobis, "relative-mahalanobis-l2", relative=True, unit=True)
add_score(Mahalanobis, "relative-mahalanobis-blocks", relative=True, needs=("blocks",))
