"""Threshold: a plain network and its largest class probability.

    train   minimise  - 1/B sum_b ln p(y_b | x_b)
    score   1 - max_k p(k | x)

Hendrycks and Gimpel 2017, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks"
(arXiv:1610.02136). Training settings of the SDE-Net experiments, which the authors kept: SGD with learning rate 0.1, a
tenth of it after each quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from abnn.baselines._steps import Losses, Minimise
from abnn.baselines.base import Method, Run, Stage


def plain_losses(run: Run, network: nn.Module | None = None) -> Losses:
    """Cross-entropy alone."""
    return lambda x, y, _: {"cross_entropy": F.cross_entropy(run.logits(x, network), y)}


@dataclass(frozen=True, kw_only=True)
class Threshold(Method):
    name: ClassVar[str] = "threshold"

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> nn.Module:
        return make_backbone()

    def stages(self, run: Run) -> list[Stage]:
        def make() -> Minimise:
            return Minimise(run, plain_losses(run), self.make_optimizer(run.network.parameters()), "training")

        return [Stage("train", run.epochs, make, self.schedule)]
