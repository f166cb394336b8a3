"""The witness: linear attachments that tell ordinary inputs from changed and from destroyed ones, in closed form.

At every place a witness reads the features x, whitened by the closed form and cut to +-8. It adds up all places. For
each kind k = changed, destroyed it returns

    z_k = u_k' x + a_k,    u_k = ((1 - l) C + l c I)^-1 (m_k - m_0),    a_k = - u_k' (m_k + m_0) / 2.

m_0, m_1, m_2 are the mean features of ordinary, changed and destroyed inputs. C is their covariance, in which each kind
counts alike, and c the mean of its diagonal. l = d / n, kept between 0.05 and 0.9, for d features and n inputs.

This is the posterior mean of linear attachments whose targets are the kinds: no steps, no learning rate, no draws. z_k
is zero half-way between ordinary inputs and those of kind k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from abnn.bayes.gaussians import shrinkage_of

KINDS = ("changed", "destroyed")
CUT = 8.0
FEWEST = 20  # inputs of a kind; a kind with fewer is not learnt


class Witness(nn.Module):
    """The weights u_k and biases a_k of both kinds, for all places; ``width`` is that of the widest.

    :class:`abnn.bayes.closed_form.ClosedForm` computes z_k from them. A kind that was not learnt has zeros.
    """

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.zeros(places, width, len(KINDS)))
        self.bias = nn.Buffer(torch.zeros(len(KINDS)))

    @torch.no_grad()
    def learn(self, kinds: Sequence[Tensor]) -> None:
        """Set the posterior mean, from whitened features of ordinary, changed and destroyed inputs.

        kinds  one tensor for each, [N, places · width]
        """
        usable = [kind for kind, features in enumerate(kinds) if len(features) >= FEWEST]
        self.weight.zero_()
        self.bias.zero_()
        if 0 not in usable or len(usable) == 1:
            return
        count, width = sum(len(kinds[kind]) for kind in usable), kinds[0].shape[1]
        means = torch.stack([kinds[kind].double().mean(0) for kind in usable])
        products = sum(kinds[kind].T @ kinds[kind] / len(kinds[kind]) for kind in usable)
        centre = means.mean(0)
        covariance = products.double() / len(usable) - torch.outer(centre, centre)  # type: ignore[union-attr]
        shrinkage, scale = shrinkage_of(width, count), covariance.diagonal().mean().clamp_min(1e-12)
        covariance = (1 - shrinkage) * covariance + shrinkage * scale * torch.eye(width, dtype=torch.float64)
        directions = torch.linalg.solve(covariance, (means[1:] - means[0]).T)
        for column, kind in enumerate(usable[1:]):
            direction = directions[:, column]
            self.weight[:, :, kind - 1] = direction.view(self.weight.shape[:2]).to(self.weight)
            self.bias[kind - 1] = -(direction @ (means[1 + column] + means[0])) / 2


def cut(white: Tensor) -> Tensor:
    """Return whitened features, limited to the range from -8 to 8; NaN becomes 8."""
    return white.nan_to_num(nan=CUT).clamp(-CUT, CUT)


def kind_sums(white: Tensor, weight: Tensor) -> Tensor:
    """Return u_k' x of every kind, [kinds, B].

    white   whitened features, [places, B, width]
    weight  [places, kinds, width]
    """
    return torch.bmm(weight, cut(white).mT).sum(0)
