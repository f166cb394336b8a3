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

from abnn.baselines.base import Method
from abnn.baselines.options import check_share, option
from abnn.errors import InputError, explain
from abnn.model.blocks import probe
from abnn.model.calls import evaluating
from abnn.model.graft import graft
from abnn.train.randomness import seeded


class DropoutHead(nn.Module):
    """Features, dropout, linear layer; in training a fresh mask for every input."""

    def __init__(self, trunk: nn.Module, head: nn.Linear, rate: float) -> None:
        super().__init__()
        self.trunk, self.head, self.rate = trunk, head, rate

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.trunk(x), self.rate, self.training))

    def draw_logits(self, x: Tensor, masks: Tensor) -> Tensor:
        """Return [S, B, K] for masks [S, F] of 0 and 1."""
        features = self.trunk(x)
        return self.head(features * masks[:, None].to(features) / (1 - self.rate))


def split_head(backbone: nn.Module, example: Tensor) -> tuple[nn.Module, nn.Linear]:
    """Return (trunk, head) with backbone(x) = head(trunk(x)); both share the backbone's parameters."""
    network = probe(backbone, example)
    calls = [(call.order, network.modules[name]) for name, call in network.calls.items() if call.output]
    linear = [call for call in calls if isinstance(call[1], nn.Linear)]
    _, head = max(linear, key=lambda call: call[0], default=(0, None))
    if isinstance(head, nn.Linear):
        trunk = graft(backbone, {head: nn.Identity()})
        with torch.no_grad(), evaluating(backbone):
            features = trunk(example)
            fits = isinstance(features, Tensor) and features.shape == (len(example), head.in_features)
            if fits and torch.equal(head(features), backbone(example)):
                return trunk, head
    other = f"{type(backbone).__name__}, whose output is not that of a linear layer"
    fix = "Wrap it so that its last operation is a linear layer on one feature vector per input."
    raise InputError(explain("backbone", other, "a network that ends with nn.Linear", fix))


def draw_masks(draws: int, features: int, rate: float, seed: int) -> Tensor:
    """Return masks [S, F] of 0 and 1; draw s depends on (seed, s) alone."""
    numbers = [torch.rand(features, generator=seeded("mask", seed, s)) for s in range(draws)]
    return (torch.stack(numbers) >= rate).float()


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    name: ClassVar[str] = "mc-dropout"
    random: ClassVar[bool] = True

    rate: float = option(0.1, check_share)

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> DropoutHead:
        return DropoutHead(*split_head(make_backbone(), example), self.rate)

    def draw_logits(self, network: DropoutHead, x: Tensor, draws: int, seed: int) -> Tensor:
        return network.draw_logits(x, draw_masks(draws, network.head.in_features, self.rate, seed).to(x.device))
