"""Entropy of the predicted class, divided by its largest possible value.

    H(x) = -sum_k p_k ln p_k / ln K,   p = softmax(z)

The same number as the score "entropy" of every prediction (:mod:`abnn.scores.formulas`), here for logits that stand alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from abnn.baselines.posthoc.base import Features, PostHoc
from abnn.scores import entropy as sample_entropy


def entropy(logits: Tensor) -> Tensor:
    """-sum_k p_k ln p_k / ln K, [N]."""
    return sample_entropy(logits.softmax(1)[None])


@dataclass
class Entropy(PostHoc):
    name: ClassVar[str] = "entropy"
    learns: ClassVar[bool] = False

    def values(self, features: Features) -> Tensor:
        return entropy(features.logits)
