"""ASH-S: keep the largest of the last features, scale them up by what was cut, then take the energy.

    h' = h [h >= q_p(h)],   s(x) = E(W (h' exp(sum h / sum h')) + b)

q_p(h) is the p-quantile of the features of this one input, E the energy. Djurisic et al. 2023, "Extremely Simple Activation
Shaping for Out-of-Distribution Detection", arXiv:2209.09858, variant ASH-S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.baselines.base import check_share
from abnn.baselines.posthoc.base import Features, PostHoc, part
from abnn.baselines.posthoc.energy import energy


def shape(last: Tensor, pruned: float) -> Tensor:
    """The share ``pruned`` of each row's smallest features set to zero, the others times exp(sum before / sum after)."""
    kept = last.shape[1] - round(last.shape[1] * pruned)
    top = last.topk(max(1, kept), dim=1)
    cut = torch.zeros_like(last).scatter(1, top.indices, top.values)
    after = cut.sum(1, keepdim=True)
    ratio = torch.where(after > 0, last.sum(1, keepdim=True) / after, torch.zeros_like(after))
    return cut * ratio.exp()


@dataclass
class ASH(PostHoc):
    name: ClassVar[str] = "ash"
    needs: ClassVar[tuple[str, ...]] = ("last", "head")
    learns: ClassVar[bool] = False
    pruned: float = 0.65

    def __post_init__(self) -> None:
        check_share("pruned", self.pruned)

    def values(self, features: Features) -> Tensor:
        assert features.head is not None
        return energy(features.head(shape(part(features.last), self.pruned)))
