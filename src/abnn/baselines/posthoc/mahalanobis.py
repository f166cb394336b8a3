"""Mahalanobis distance to the nearest class, on the last features or over all blocks.

    s(x) = min_c sqrt(d_c / D),   d_c = (f - m_c)^T C^-1 (f - m_c)

with class means m_c and one covariance C of all classes, shrunk towards its diagonal as in :mod:`abnn.bayes.gaussians`. Lee et al.
2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", arXiv:1807.03888, without
its input perturbation and its regression on outliers. f are the last features, or the means and standard deviations of the
channels of all blocks side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.baselines.posthoc.base import Features, PostHoc, part
from abnn.bayes.gaussians import Moments


def squared_distances(features: Tensor, means: Tensor, whitening: Tensor) -> Tensor:
    """(f - m_c)^T W^T W (f - m_c) for every class, [N, C]; W^T W is the inverse covariance."""
    return torch.cdist(
        features @ whitening.T, means @ whitening.T, compute_mode="donot_use_mm_for_euclid_dist"
    ).square()


def gaussians(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Class means [C, D] and W [D, D] with W^T W the inverse of the shrunk covariance that the classes share."""
    moments = Moments(classes, features.shape[1])
    for rows, numbers in zip(features.split(4096), labels.split(4096)):
        moments.add(rows.double().cpu(), numbers.cpu())
    means, whitening = moments.finish()
    return means.float(), whitening.float()


@dataclass
class Mahalanobis(PostHoc):
    """On the last features."""

    name: ClassVar[str] = "mahalanobis"
    needs: ClassVar[tuple[str, ...]] = ("last",)
    by_class: ClassVar[bool] = True

    def learn(self, features: Features) -> dict[str, Tensor]:
        rows = getattr(features, self.needs[0])
        means, whitening = gaussians(rows, part(features.labels), features.logits.shape[1])
        return {"means": means, "whitening": whitening}

    def values(self, features: Features) -> Tensor:
        rows = getattr(features, self.needs[0])
        squares = squared_distances(rows, self.state["means"], self.state["whitening"])
        return (squares.amin(1) / rows.shape[1]).sqrt()


@dataclass
class MahalanobisBlocks(Mahalanobis):
    """On the statistics of all blocks."""

    name: ClassVar[str] = "mahalanobis-blocks"
    needs: ClassVar[tuple[str, ...]] = ("blocks",)
