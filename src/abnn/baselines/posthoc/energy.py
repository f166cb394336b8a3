"""Energy: the negative log of the summed exponentials of the logits.

    E(x) = -T log sum_k exp(z_k / T)

Liu et al. 2020, "Energy-based Out-of-distribution Detection", arXiv:2010.03759, equation 4; T = 1 there. Unlike the
softmax it sees a shift of all logits: E(z + c) = E(z) - c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from abnn.baselines.base import check_positive
from abnn.baselines.posthoc.base import Features, PostHoc


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """-T log sum_k exp(z_k / T), [N]."""
    return -temperature * (logits / temperature).logsumexp(1)


@dataclass
class Energy(PostHoc):
    name: ClassVar[str] = "energy"
    learns: ClassVar[bool] = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def values(self, features: Features) -> Tensor:
        return energy(features.logits, self.temperature)
