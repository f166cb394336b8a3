"""Residual and ViM: what the principal directions of the last features leave over, alone and as one more logit.

    residual   |R^T (h - o)|,   o = -W^+ b
    vim        a |R^T (h - o)| - log sum_k exp(z_k),   a = sum_i max_k z_ik / sum_i |R^T (h_i - o)|

R spans the complement of the principal subspace of the training features around o. Wang et al. 2022, arXiv:2203.10807, section 4.1
and equations 6 to 8. pytorch-ood's ViM finds R in single precision and its logits from the last features, which are not those of a
prediction that is averaged over draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.baselines.options import check_count, option
from abnn.baselines.posthoc.base import Features, Head, PostHoc
from abnn.baselines.posthoc.logits import energy
from abnn.errors import InputError, explain


def residual_norm(last: Tensor, origin: Tensor, residual: Tensor) -> Tensor:
    """|R^T (h - o)|, [N]."""
    return ((last - origin) @ residual).norm(dim=1)


def find_origin(head: Head) -> Tensor:
    """o = -W^+ b, [D]: where the logits are nearest to zero."""
    shift = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    return -(torch.linalg.pinv(head.weight.double()) @ shift.double())


def residual_space(last: Tensor, origin: Tensor, dimensions: int) -> Tensor:
    """R, [D, D - dimensions]: the directions in which the features vary least around the origin."""
    centred = (last - origin).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))  # from the smallest variance on
    return vectors[:, : last.shape[1] - dimensions].to(last.dtype)


def usual_dimensions(features: int) -> int:
    """Return the dimension of the principal subspace, as in the paper."""
    return 1000 if features >= 1500 else 512 if features >= 768 else features // 2


@dataclass
class Residual(PostHoc):
    name: ClassVar[str] = "residual"
    needs: ClassVar[tuple[str, ...]] = ("last", "head")
    dimensions: int | None = option(None, check_count, none=True)

    def learn(self, features: Features) -> dict[str, Tensor]:
        last = features.part("last")
        width = last.shape[1]
        dimensions = usual_dimensions(width) if self.dimensions is None else self.dimensions
        if not dimensions < width:
            raise InputError(explain("dimensions", dimensions, f"fewer than the {width} features of this network"))
        origin = find_origin(features.part("head")).to(last)
        return {"origin": origin, "residual": residual_space(last, origin, dimensions)}

    def values(self, features: Features) -> Tensor:
        return residual_norm(features.part("last"), self.state["origin"], self.state["residual"])


@dataclass
class ViM(Residual):
    name: ClassVar[str] = "vim"

    def learn(self, features: Features) -> dict[str, Tensor]:
        state = super().learn(features)
        return {**state, "scale": features.logits.amax(1).sum() / residual_norm(features.part("last"), **state).sum()}

    def values(self, features: Features) -> Tensor:
        return self.state["scale"] * super().values(features) + energy(features.logits)
