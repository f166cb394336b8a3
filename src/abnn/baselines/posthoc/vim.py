"""ViM: what the principal directions of the last features leave over, as one more logit.

    s(x) = a |R^T (h - o)| - log sum_k exp(z_k),   o = -W^+ b,   a = sum_i max_k z_ik / sum_i |R^T (h_i - o)|

R spans the complement of the principal subspace of the training features around o. Wang et al. 2022, "ViM: Out-Of-Distribution
with Virtual-logit Matching", arXiv:2203.10807, equations 6 to 8. Dimension of the principal subspace as there: 1000 of
1500 features or more, 512 of 768 or more, else half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.baselines.base import check_count
from abnn.baselines.posthoc.base import Features, PostHoc, part
from abnn.baselines.posthoc.energy import energy
from abnn.errors import InputError, explain


def virtual_logit(last: Tensor, origin: Tensor, residual: Tensor) -> Tensor:
    """|R^T (h - o)|, [N]; a times this is the virtual logit."""
    return ((last - origin) @ residual).norm(dim=1)


def residual_space(last: Tensor, origin: Tensor, dimensions: int) -> Tensor:
    """R, [D, D - dimensions]: the directions in which the features vary least around the origin."""
    centred = (last - origin).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))  # from the smallest variance on
    return vectors[:, : last.shape[1] - dimensions].to(last.dtype)


def usual_dimensions(features: int) -> int:
    return 1000 if features >= 1500 else 512 if features >= 768 else features // 2


@dataclass
class ViM(PostHoc):
    name: ClassVar[str] = "vim"
    needs: ClassVar[tuple[str, ...]] = ("last", "head")
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.dimensions is not None:
            check_count("dimensions", self.dimensions)

    def learn(self, features: Features) -> dict[str, Tensor]:
        last, head = part(features.last), features.head
        assert head is not None
        width = last.shape[1]
        dimensions = usual_dimensions(width) if self.dimensions is None else self.dimensions
        if not dimensions < width:
            raise InputError(explain("dimensions", dimensions, f"fewer than the {width} features of this network"))
        weight, shift = head.weight.double().to(last.device), head.shift.double().to(last.device)
        origin = -(torch.linalg.pinv(weight) @ shift).to(last.dtype)
        residual = residual_space(last, origin, dimensions)
        scale = features.logits.amax(1).sum() / virtual_logit(last, origin, residual).sum()
        return {"origin": origin, "residual": residual, "scale": scale}

    def values(self, features: Features) -> Tensor:
        residual = virtual_logit(part(features.last), self.state["origin"], self.state["residual"])
        return self.state["scale"] * residual + energy(features.logits)
