"""GEN: a generalised entropy that looks closely at small probabilities.

    G(x) = sum_{k in the M largest} p_k^g (1 - p_k)^g,   p = softmax(z)

Liu et al. 2023, "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection", CVPR, equation 4, with its g = 0.1
and M = 100, or all classes if there are fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from abnn.baselines.base import check_count, check_positive
from abnn.baselines.posthoc.base import Features, PostHoc


def gen(logits: Tensor, gamma: float = 0.1, largest: int = 100) -> Tensor:
    """sum over the largest probabilities of p^g (1 - p)^g, [N].

    1 - p is summed from the other classes: where p rounds to one, what is left of it still counts, to the power 0.1.
    """
    log_p = logits.log_softmax(1)
    top = log_p.topk(min(largest, logits.shape[1]), dim=1)
    rest = (-log_p.exp()).log1p()  # exact but for the largest, where p may round to 1
    others = log_p.scatter(1, log_p.argmax(1, keepdim=True), -float("inf")).logsumexp(1)
    rest = rest.scatter(1, log_p.argmax(1, keepdim=True), others[:, None])
    return (gamma * (top.values + rest.gather(1, top.indices))).exp().sum(1)


@dataclass
class GEN(PostHoc):
    name: ClassVar[str] = "gen"
    learns: ClassVar[bool] = False
    gamma: float = 0.1
    largest: int = 100

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)
        check_count("largest", self.largest)

    def values(self, features: Features) -> Tensor:
        return gen(features.logits, self.gamma, self.largest)
