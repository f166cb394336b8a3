"""MC dropout: dropout before the classifier, active at prediction too.

    draw s    p_s = softmax(W (m_s * f(x)) / (1 - rate) + b),   m_s ~ Bernoulli(1 - rate) per feature
    predict   p = 1/S sum_s p_s
    score     1 - max_k p_k

Gal and Ghahramani 2016, "Dropout as a Bayesian Approximation" (arXiv:1506.02142). Place and rate are those of the SDE-Net
experiments. There, and in the authors' evaluation, a name mismatch left dropout off at test time; here it is on.
A mask is a draw of weights: at prediction it is the same for all inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.baselines._head import split_head
from abnn.baselines._steps import Minimise
from abnn.baselines.base import Method, Run, Stage, check_share
from abnn.baselines.threshold import plain_losses
from abnn.predict import Prediction
from abnn.train.randomness import seeded


class DropoutHead(nn.Module):
    """Features, dropout, linear layer; in training a fresh mask for every input."""

    def __init__(self, trunk: nn.Module, head: nn.Linear, rate: float) -> None:
        super().__init__()
        self.trunk, self.head, self.rate = trunk, head, rate

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.trunk(x), self.rate, self.training))

    def draw_logits(self, x: Tensor, masks: Tensor) -> Tensor:
        """[S, B, K] for masks [S, F] of 0 and 1."""
        features = self.trunk(x)
        return self.head(features * masks[:, None].to(features) / (1 - self.rate))


def draw_masks(draws: int, features: int, rate: float, seed: int) -> Tensor:
    """[S, F] of 0 and 1; draw s depends on (seed, s) alone."""
    return torch.stack(
        [(torch.rand(features, generator=seeded("mask", seed, s)) >= rate).float() for s in range(draws)]
    )


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    name: ClassVar[str] = "mc-dropout"
    random: ClassVar[bool] = True

    rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("rate", self.rate)

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> DropoutHead:
        return DropoutHead(*split_head(make_backbone(), example), self.rate)

    def stages(self, run: Run) -> list[Stage]:
        def make() -> Minimise:
            return Minimise(run, plain_losses(run), self.make_optimizer(run.network.parameters()), "training")

        return [Stage("train", run.epochs, make, self.schedule)]

    def predict(self, network: nn.Module, x: Tensor, draws: int, seed: int) -> Prediction:
        assert isinstance(network, DropoutHead)
        masks = draw_masks(draws, network.head.in_features, self.rate, seed)
        return Prediction(network.draw_logits(x, masks.to(x.device)).float().softmax(2), default=self.score)
