"""Linear attachments in closed form: how little the data say about a direction of a block's features.

A linear attachment reads the features phi of a block (mean and standard deviation of every channel over positions, standardised,
d of them) and adds w' phi to a logit. With prior N(0, 1) on w and Gaussian noise, its posterior given n inputs has the
covariance S = (I + phi_1 phi_1' + ... )^-1 up to units, and the variance that it adds to the logit is

    v(x) = phi' S phi / d,    S = ((1 - l) C + l I)^-1,    l = d / n kept between 0.05 and 0.9,

with C the covariance of the features over the data. Its mean stays 0, so the network's prediction does. The variance is about 1
where the data are, and for features t phi it is t^2 v: it grows without bound in every direction. It needs one pass over the data and no
draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from abnn.bayes.gaussians import Moments

LEAST, MOST = 0.05, 0.9
TINY = 1e-9
LARGEST = 80.0  # of ln v: float32 ends at 88
SMALLEST = -14.0  # of ln v: what lies below is rounding, of features that are flat on the data


class ClosedForm(nn.Module):
    """The posterior of a linear attachment at each of several places: ln v of features, see the module.

    widths  how many features each place has
    """

    fitted: Tensor

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = list(widths)
        for place, width in enumerate(widths):
            self.register_buffer(f"mean{place}", torch.zeros(width))
            self.register_buffer(f"whitening{place}", torch.zeros(width, width))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """ln v, [B, places]; never in half precision."""
        with torch.autocast(features[0].device.type, enabled=False):
            columns = []
            for place, part in enumerate(features):
                white = (part.float() - getattr(self, f"mean{place}")) @ getattr(self, f"whitening{place}").T
                # In two steps: the square of what is far away is more than float32 holds.
                size = white.abs().amax(1, keepdim=True).clamp_min(1e-18)
                mean = (white / size).square().mean(1)
                columns.append(mean.clamp_min(TINY).log() + 2 * size[:, 0].log())
            return torch.stack(columns, dim=1).nan_to_num(nan=LARGEST).clamp(SMALLEST, LARGEST)

    @torch.no_grad()
    def set(self, moments: Sequence[Moments]) -> None:
        """Take the posterior that these moments give; one for each place."""
        for place, (each, width) in enumerate(zip(moments, self.widths)):
            shrinkage = min(MOST, max(LEAST, width / max(1.0, each.counts.sum().item())))
            means, whitening = each.finish([width], shrinkage)
            getattr(self, f"mean{place}").copy_(means[0])
            getattr(self, f"whitening{place}").copy_(whitening)
        self.fitted.fill_(True)
