"""How unfamiliar the direction of a network's last features is: a posterior variance that ignores their length.

f is what goes into the last linear layer, and u = f / |f|, condensed as at a place where it has many numbers. Then

    v = (u - m)' S (u - m) / d,    S = ((1 - l) C + l I)^-1,

as at the places of :mod:`abnn.bayes.closed_form`. m and C are mean and covariance of u over the data, d is the number
of its components, l = d / n kept between 0.05 and 0.9.

Why without the length: lengths differ more between ordinary inputs than between ordinary and far ones, and drown what
directions say (Mueller and Hein 2025, arXiv:2505.18032, for distances to classes).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from abnn.bayes.closed_form import LARGEST, SMALLEST
from abnn.bayes.gaussians import Moments, shrinkage_of


class Direction(nn.Module):
    """Returns ln v, [B], of directions, [B, d]; the module has the formula."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(width))
        self.whitening = nn.Buffer(torch.zeros(width, width))

    def forward(self, directions: Tensor) -> Tensor:
        white = torch.nn.functional.linear(directions - self.mean, self.whitening)
        logarithm = 2 * torch.linalg.vector_norm(white, dim=1).log() - math.log(len(self.mean))
        return logarithm.nan_to_num(nan=LARGEST).clamp(SMALLEST, LARGEST)

    def gatherer(self) -> Moments:
        """Return an accumulator: add the directions of the data to it."""
        return Moments(1, len(self.mean))

    @torch.no_grad()
    def set(self, gatherer: Moments) -> None:
        """Set the posterior that follows from what was added to the :meth:`gatherer`."""
        width = len(self.mean)
        means, whitening = gatherer.finish([width], shrinkage_of(width, gatherer.inputs))
        self.mean.copy_(means[0])
        self.whitening.copy_(whitening)
