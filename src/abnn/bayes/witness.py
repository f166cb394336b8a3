"""Witnesses: linear attachments that tell ordinary inputs from changed and from destroyed ones, in closed form.

At every place a witness reads the features x, whitened by the closed form and cut to +-8. All places together say, for each of
the kinds k = changed, destroyed,

    z_k = u_k' x + a_k,    u_k = ((1 - l) C + l c I)^-1 (m_k - m_0),    a_k = - u_k' (m_k + m_0) / 2.

m_0, m_1, m_2 are the mean features of ordinary, changed and destroyed inputs, C is their covariance where each kind counts alike,
c the mean of its diagonal, and l = d / n, kept between 0.05 and 0.9, for d features and n inputs. This is the posterior
mean of linear attachments whose targets are the kinds: no steps, no rate, no draws. z_k is zero half-way between ordinary inputs and those of
kind k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from abnn.bayes.gaussians import shrinkage_of

KINDS = ("changed", "destroyed")
CUT = 8.0
FEWEST = 20  # inputs of a kind; with fewer it is not learnt


class Witness(nn.Module):
    """How much an input looks changed and destroyed, by its features at all places, of which the widest has ``width``."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.zeros(places, width, len(KINDS)))
        self.bias = nn.Buffer(torch.zeros(len(KINDS)))

    def forward(self, white: Tensor) -> Tensor:
        """z of both kinds, [B, 2], from whitened features, [places, B, width]; zero for a kind that was not learnt."""
        return kind_sums(white, self.weight.mT.to(white)).T.float() + self.bias

    @torch.no_grad()
    def learn(self, kinds: Sequence[Tensor]) -> None:
        """Take the posterior mean given whitened features of ordinary, changed and destroyed inputs, each [N, places · width]."""
        known = [kind for kind, features in enumerate(kinds) if len(features) >= FEWEST]
        self.weight.zero_()
        self.bias.zero_()
        if 0 not in known or len(known) == 1:
            return
        count, width = sum(len(kinds[kind]) for kind in known), kinds[0].shape[1]
        means = torch.stack([kinds[kind].double().mean(0) for kind in known])
        products = sum(kinds[kind].T @ kinds[kind] / len(kinds[kind]) for kind in known)
        centre = means.mean(0)
        covariance = products.double() / len(known) - torch.outer(centre, centre)  # type: ignore[union-attr]
        shrinkage, scale = shrinkage_of(width, count), covariance.diagonal().mean().clamp_min(1e-12)
        covariance = (1 - shrinkage) * covariance + shrinkage * scale * torch.eye(width, dtype=torch.float64)
        directions = torch.linalg.solve(covariance, (means[1:] - means[0]).T)
        for place, kind in enumerate(known[1:]):
            own = directions[:, place]
            self.weight[:, :, kind - 1] = own.view(self.weight.shape[:2]).to(self.weight)
            self.bias[kind - 1] = -(own @ (means[1 + place] + means[0])) / 2


def cut(white: Tensor) -> Tensor:
    """Whitened features between -8 and 8; what is no number counts as 8."""
    return white.nan_to_num(nan=CUT).clamp(-CUT, CUT)


def kind_sums(white: Tensor, weight: Tensor) -> Tensor:
    """u_k' x of every kind, [kinds, B], from whitened features, [places, B, width], and weights, [places, kinds, width]."""
    return torch.bmm(weight, cut(white).mT).sum(0)
