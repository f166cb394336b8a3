"""Max logit: the largest logit, negated.

    s(x) = -max_k z_k

Hendrycks et al. 2022, "Scaling Out-of-Distribution Detection for Real-World Settings", arXiv:1911.11132.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from abnn.baselines.posthoc.base import Features, PostHoc


def max_logit(logits: Tensor) -> Tensor:
    """-max_k z_k, [N]."""
    return -logits.amax(1)


@dataclass
class MaxLogit(PostHoc):
    name: ClassVar[str] = "max-logit"
    learns: ClassVar[bool] = False

    def values(self, features: Features) -> Tensor:
        return max_logit(features.logits)
