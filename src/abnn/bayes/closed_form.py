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
    log_widths: Tensor

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = list(widths)
        for place, width in enumerate(widths):
            self.register_buffer(f"mean{place}", torch.zeros(width))
            self.register_buffer(f"whitening{place}", torch.zeros(width, width))
        self.register_buffer("log_widths", torch.tensor(self.widths).float().log(), persistent=False)
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """ln v, [B, places]; never in half precision."""
        with torch.autocast(features[0].device.type, enabled=False):
            # In float64, where there is one: the square of what is far away is more than float32 holds.
            wide = torch.float32 if features[0].device.type == "mps" else torch.float64
            sizes = []
            for place, part in enumerate(features):
                white = (part.float() - getattr(self, f"mean{place}")) @ getattr(self, f"whitening{place}").T
                sizes.append(torch.linalg.vector_norm(white, dim=1, dtype=wide))
            logs = 2 * torch.stack(sizes, dim=1).clamp_min(TINY).log() - self.log_widths
            return logs.float().nan_to_num(nan=LARGEST).clamp(SMALLEST, LARGEST)

    @torch.no_grad()
    def set(self, moments: Sequence[Moments]) -> None:
        """Take the posterior that these moments give; one for each place."""
        for place, (each, width) in enumerate(zip(moments, self.widths)):
            shrinkage = min(MOST, max(LEAST, width / max(1.0, each.counts.sum().item())))
            means, whitening = each.finish([width], shrinkage)
            getattr(self, f"mean{place}").copy_(means[0])
            getattr(self, f"whitening{place}").copy_(whitening)
        self.fitted.fill_(True)
