"""AdaSCALE-A: the last features scaled up by how stable they are under a small change of the input, then the energy.

    x' = x + e sign(g) on the share o of the input's numbers with the smallest |g|,   g = grad_x max_k z_k(x)
    q  = sum of relu(h') over the k1 largest h + w * sum of |h' - h| over the k2 largest h,   h' the features of x'
    p  = low + (1 - F(q)) (high - low),   F(q) the share of training inputs with a q that is not larger
    s(x) = E(W (h exp(sum r / sum of the largest 1 - p of r)) + b),   r = relu(h)

Regmi 2025, arXiv:2503.08023, with the settings of OpenOOD 1.5; at least one feature and one number of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.baselines.options import check_not_negative, check_positive, check_share, option
from abnn.baselines.posthoc.base import Features, PostHoc
from abnn.baselines.posthoc.logits import energy


def perturb(logits: Callable[[Tensor], Tensor], x: Tensor, share: float, step: float) -> Tensor:
    """x + e sign(g) where |g| is smallest, see above; works inside no_grad and inference_mode too."""
    with torch.inference_mode(False), torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(logits(x).amax(1).sum(), x)
    sizes = gradient.abs().flatten(1)
    smallest = sizes.topk(max(1, int(share * sizes.shape[1])), dim=1, largest=False).indices
    mask = torch.zeros_like(sizes).scatter(1, smallest, 1.0).view_as(x)
    return x.detach() + step * gradient.sign() * mask


def stability(last: Tensor, moved: Tensor, k1: int, k2: int, weight: float) -> Tensor:
    """q from the features h and h', [N]."""
    kept = moved.relu().gather(1, last.topk(k1, dim=1).indices).sum(1)
    return kept + weight * (moved - last).abs().gather(1, last.topk(k2, dim=1).indices).sum(1)


def scale(last: Tensor, shares: Tensor) -> Tensor:
    """h exp(sum r / sum of the largest 1 - p of r), with a share p of its own for each row."""
    rows = last.relu()
    kept = rows.shape[1] - (rows.shape[1] * shares).round().long()
    places = torch.arange(rows.shape[1], device=rows.device)
    largest = (rows.sort(dim=1, descending=True).values * (places < kept[:, None])).sum(1)
    ratio = torch.where(largest > 0, rows.sum(1) / largest, torch.zeros_like(largest))
    return last * ratio.exp()[:, None]


@dataclass
class AdaSCALE(PostHoc):
    name: ClassVar[str] = "adascale"
    needs: ClassVar[tuple[str, ...]] = ("last", "head", "network")
    takes_notes: ClassVar[bool] = True
    low: float = option(0.75, check_share)
    high: float = option(0.85, check_share)
    kept: float = option(0.05, check_share)
    moved: float = option(0.01, check_share)
    weight: float = option(10.0, check_not_negative)
    share: float = option(0.05, check_share)
    step: float = option(0.5, check_positive)

    def note(self, features: Features) -> Tensor:
        """q of every input."""
        (x, network), last = features.differentiable(self.name), features.part("last")
        with torch.no_grad():
            moved = network(perturb(lambda x: network(x)[1], x, self.share, self.step))[0]
        k1, k2 = (max(1, int(share * last.shape[1])) for share in (self.kept, self.moved))
        return stability(last, moved, k1, k2, self.weight)

    def learn(self, features: Features) -> dict[str, Tensor]:
        notes = features.notes[self.name] if self.name in features.notes else self.note(features)
        return {"stabilities": notes.sort().values}

    def values(self, features: Features) -> Tensor:
        stabilities = self.state["stabilities"]
        rank = torch.searchsorted(stabilities, self.note(features), right=True) / len(stabilities)
        shares = self.low + (1 - rank) * (self.high - self.low)
        return energy(features.part("head")(scale(features.part("last"), shares)))
