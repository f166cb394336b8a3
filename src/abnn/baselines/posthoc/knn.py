"""KNN: how far the k-th nearest training input is, in the direction of the last features.

    s(x) = || h / |h| - (h / |h|)_(k) ||,   (.)_(k) the k-th nearest of the stored training features

Sun et al. 2022, "Out-of-Distribution Detection with Deep Nearest Neighbors", arXiv:2204.06507; k = 50 there for CIFAR-10. At
most ``stored`` training inputs are kept, a random choice that belongs to ``seed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.baselines.base import check_count
from abnn.baselines.posthoc.base import Features, PostHoc, part

ROWS = 2**24  # distances held at a time


def kth_distance(queries: Tensor, stored: Tensor, neighbours: int) -> Tensor:
    """Euclidean distance of each query to its k-th nearest stored vector, both scaled to length one, [N]."""
    queries, stored = F.normalize(queries, dim=1), F.normalize(stored, dim=1)
    neighbours = min(neighbours, len(stored))
    parts = queries.split(max(1, ROWS // len(stored)))
    # Matrix products would lose the digits of small distances.
    gaps = (torch.cdist(each, stored, compute_mode="donot_use_mm_for_euclid_dist") for each in parts)
    return torch.cat([gap.kthvalue(neighbours, dim=1).values for gap in gaps])


@dataclass
class KNN(PostHoc):
    name: ClassVar[str] = "knn"
    needs: ClassVar[tuple[str, ...]] = ("last",)
    neighbours: int = 50
    stored: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("neighbours", self.neighbours)
        check_count("stored", self.stored)

    def learn(self, features: Features) -> dict[str, Tensor]:
        last = part(features.last)
        if len(last) > self.stored:
            order = torch.randperm(len(last), generator=torch.Generator().manual_seed(self.seed))
            last = last[order[: self.stored].to(last.device)]
        return {"stored": F.normalize(last, dim=1)}

    def values(self, features: Features) -> Tensor:
        return kth_distance(part(features.last), self.state["stored"], self.neighbours)
