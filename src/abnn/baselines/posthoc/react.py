"""ReAct: the last features cut at a ceiling, then the energy.

    s(x) = E(W min(h, c) + b),   c the p-quantile of all last features of the training data

Sun et al. 2021, "ReAct: Out-of-distribution Detection With Rectified Activations", arXiv:2111.12797; p = 0.9 there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from abnn.baselines.base import check_share
from abnn.baselines.posthoc.base import Features, Head, PostHoc, part
from abnn.baselines.posthoc.energy import energy


def react(last: Tensor, head: Head, ceiling: Tensor) -> Tensor:
    """E(W min(h, c) + b), [N]."""
    return energy(head(last.clamp_max(ceiling)))


@dataclass
class ReAct(PostHoc):
    name: ClassVar[str] = "react"
    needs: ClassVar[tuple[str, ...]] = ("last", "head")
    quantile: float = 0.9

    def __post_init__(self) -> None:
        check_share("quantile", self.quantile)

    def learn(self, features: Features) -> dict[str, Tensor]:
        # torch.quantile refuses more than 2^24 numbers.
        ceiling = np.quantile(part(features.last).float().cpu().numpy(), self.quantile)
        return {"ceiling": torch.tensor(ceiling, dtype=torch.float32)}

    def values(self, features: Features) -> Tensor:
        assert features.head is not None
        return react(part(features.last), features.head, self.state["ceiling"])
