"""The default attachment: a small addition to the output of a block, which can never outgrow that output.

For a block's output h, normalised by its root mean square q = rms(h) over one input,

    u = up(relu(mix(relu(down(h / q))))),    output = h + q c u / (c + rms(u)),

``down`` maps all features of a position to few, ``mix`` combines each of these with its neighbours (3 positions along
every axis; there is no ``mix`` for tokens and flat features), and ``up`` maps back. ``up`` starts at exactly zero, so
that at first the network's output does not change. The root mean square of the addition stays below c q for all weights
and inputs: no learning rate, no number of steps and no outlier can overwrite the backbone.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.bayes.layers import BayesConv, BayesLinear, Init, MeanField
from abnn.bayes.priors import Prior
from abnn.model.blocks import Block

BOUND = 0.5
"""c: the largest size of the addition, as a share of the block's output."""
WIDTH = 32
"""Features between ``down`` and ``up``, if the budget allows that many."""
SIGMA = 1e-3
"""Width of the posterior of all weights at the start; :mod:`abnn.train.width` finds how wide the data allow it."""

LEAST, MOST = 1e-8, 1e25
"""The range of what outputs are divided by. A block whose output is zero gets no addition."""
SMALLER = 2.0**-36
"""Values are multiplied by it before they are squared: float32 cannot hold the squares of large ones."""


class Bounded(nn.Module):
    """Turns the output of a block, [S·B, ...], into an addition to it."""

    def __init__(self, block: Block, width: int, prior: Prior, init: Init | None) -> None:
        super().__init__()
        self.last = block.layout == "tokens"  # features are in the last dimension
        features = block.output[-1 if self.last else 1]
        places = 0 if self.last else len(block.output) - 2

        def layer(fan_in: int, fan_out: int, starts_at_zero: bool = False) -> MeanField:
            start = init or Init(0.0 if starts_at_zero else 1 / math.sqrt(fan_in), SIGMA)
            if places:
                return BayesConv(fan_in, fan_out, (1,) * places, prior=prior, init=start, shared=True)
            return BayesLinear(fan_in, fan_out, prior=prior, init=start, shared=True)

        self.down = layer(features, width)
        mix_start = init or Init(3 ** (-places / 2), SIGMA)
        self.mix = (
            BayesConv(width, width, (3,) * places, groups=width, prior=prior, init=mix_start, shared=True)
            if places
            else None
        )
        self.up = layer(width, features, starts_at_zero=True)

    def forward(self, main: Tensor, mask: Tensor | None = None, onto: bool = False) -> Tensor:
        """Return the addition to the block's output ``main``.

        mask  [S·B, L], true where a token is no padding; padding does not count in root mean squares
        onto  return ``main`` plus the addition instead: one kernel less than a separate sum
        """
        limits = torch.finfo(main.dtype)
        size = rms(main, mask).clamp(max=min(MOST, limits.max))
        hidden = F.relu(self.down(main / size.clamp_min(max(LEAST, limits.tiny)).to(main.dtype)))
        if self.mix is not None:
            hidden = F.relu(self.mix(hidden))
        addition = self.up(hidden)
        # It is not scaled before it is squared, since it comes from outputs of size 1. If float32 cannot hold its
        # squares, nothing is added.
        norm, unit = _norm(addition, mask)
        factor = (size / torch.rsub(norm, 1.0, alpha=-unit / BOUND)).to(main.dtype)  # q / (1 + rms(u) / c)
        return torch.addcmul(main, addition, factor) if onto else addition * factor


def rms(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the root mean square of each input, [B, 1, ...], for values from 1e-8 to 1e25; never in half precision."""
    norm, unit = _norm(x, mask, SMALLER)
    return norm * unit


def _norm(x: Tensor, mask: Tensor | None, smaller: float = 1.0) -> tuple[Tensor, float]:
    """Return a norm of each input, [B, 1, ...], and the factor that makes a root mean square of it.

    smaller  factor for values before they are squared
    """
    values = x if x.dtype == torch.float64 else x.float()
    if mask is not None:
        weight = mask[..., None]
        share = weight.float().mean(1, keepdim=True).clamp_min(1 / x.shape[1]).to(values.dtype)
        norm, unit = _norm(torch.where(weight, values, 0.0), None, smaller)
        return norm / share.sqrt(), unit
    flat = values.flatten(1)
    norm = torch.linalg.vector_norm(flat if smaller == 1 else flat * smaller, dim=1)
    return norm.view(-1, *[1] * (x.ndim - 1)), 1 / (smaller * x[0].numel() ** 0.5)
