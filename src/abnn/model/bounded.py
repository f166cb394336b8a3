"""The default attachment: a small addition to what a block says, which can never outgrow it.

For a block's output h, normalised by its root mean square q = rms(h) over one input,

    u = up(relu(mix(relu(down(h / q))))),    output = h + q c u / (c + rms(u)),

where ``down`` maps all features of a position to few, ``mix`` lets each of these see its neighbours (3 places along every
axis; not for tokens and flat features), and ``up`` maps back. ``up`` starts at exactly zero, so that at first the network says what
it said. The root mean square of the addition stays below c q, whatever the weights and the input are: no rate, no number of
steps and no outlier can overwrite the backbone.
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
"""c: the largest share of a block's output that is added to it."""
WIDTH = 32
"""Features between ``down`` and ``up``, where the budget allows so many."""
SIGMA = 1e-3
"""Of all weights at first; see :mod:`abnn.train.width` for how wide a posterior the data allow."""

LEAST, MOST = 1e-8, 1e25
"""What outputs are divided by, at least and at most: a block that says nothing gets no addition."""
SMALLER = 2.0**-36
"""Values are multiplied by it before they are squared: squares of large ones are more than float32 holds."""


class Bounded(nn.Module):
    """Turns the output of a block, [S·B, ...], into what is added to it."""

    def __init__(self, block: Block, width: int, prior: Prior, init: Init | None) -> None:
        super().__init__()
        self.last = block.layout == "tokens"  # features are in the last dimension
        features = block.output[-1 if self.last else 1]
        places = 0 if self.last else len(block.output) - 2

        def layer(fan_in: int, fan_out: int, starts_at_zero: bool = False) -> MeanField:
            chosen = init or Init(0.0 if starts_at_zero else 1 / math.sqrt(fan_in), SIGMA)
            if places:
                return BayesConv(fan_in, fan_out, (1,) * places, prior=prior, init=chosen, shared=True)
            return BayesLinear(fan_in, fan_out, prior=prior, init=chosen, shared=True)

        self.down = layer(features, width)
        mixed = init or Init(3 ** (-places / 2), SIGMA)
        self.mix = (
            BayesConv(width, width, (3,) * places, groups=width, prior=prior, init=mixed, shared=True)
            if places
            else None
        )
        self.up = layer(width, features, starts_at_zero=True)

    def forward(self, main: Tensor, mask: Tensor | None = None, onto: bool = False) -> Tensor:
        """Return what is added.

        mask  [S·B, L], true where a token is no padding; others do not count in root mean squares
        onto  return the output with the addition instead: one kernel less than their sum takes
        """
        limits = torch.finfo(main.dtype)
        size = rms(main, mask).clamp(max=min(MOST, limits.max))
        hidden = F.relu(self.down(main / size.clamp_min(max(LEAST, limits.tiny)).to(main.dtype)))
        if self.mix is not None:
            hidden = F.relu(self.mix(hidden))
        added = self.up(hidden)
        # It is not scaled before it is squared, for it was made of outputs of size 1. Where its squares are more than float32 holds, nothing is added.
        norm, unit = _norm(added, mask)
        factor = (size / torch.rsub(norm, 1.0, alpha=-unit / BOUND)).to(main.dtype)  # q / (1 + rms(u) / c)
        return torch.addcmul(main, added, factor) if onto else added * factor


def rms(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The root mean square of each input, [B, 1, ...], never in half precision; right for values from 1e-8 to 1e25."""
    norm, unit = _norm(x, mask, SMALLER)
    return norm * unit


def _norm(x: Tensor, mask: Tensor | None, smaller: float = 1.0) -> tuple[Tensor, float]:
    """A number for each input, [B, 1, ...], and what to multiply it with to have the root mean square.

    smaller  what values are multiplied with before they are squared
    """
    values = x if x.dtype == torch.float64 else x.float()
    if mask is not None:
        counted = mask[..., None]
        share = counted.float().mean(1, keepdim=True).clamp_min(1 / x.shape[1]).to(values.dtype)
        norm, unit = _norm(torch.where(counted, values, 0.0), None, smaller)
        return norm / share.sqrt(), unit
    flat = values.flatten(1)
    norm = torch.linalg.vector_norm(flat if smaller == 1 else flat * smaller, dim=1)
    return norm.view(-1, *[1] * (x.ndim - 1)), 1 / (smaller * x[0].numel() ** 0.5)
