"""Outlier exposure: a plain network that is taught to be undecided on outliers.

    reference   minimise  CE(x, y) + 0.5 * mean_b[ logsumexp(z(x'_b)) - mean_k z_k(x'_b) ]       x' outliers
    authors     minimise  CE(x, y) + 1.0 * mean over b, k of BCE(sigmoid(z_k(x'_b)), 1/K)
    score       1 - max_k p(k | x)

The reference's second term is the cross-entropy to the uniform distribution. Hendrycks, Mazeika and Dietterich 2019, "Deep
Anomaly Detection with Outlier Exposure" (arXiv:1812.04606), with real outliers; here they are made from the data unless
others are given. The authors' term has its minimum, 0.3251 for ten classes, where every logit is -ln(K - 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.baselines.base import AUTHORS_NOISE, Method, Run
from abnn.baselines.options import check_positive, one_of, option


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """- 1/K sum_k ln p_k = logsumexp(z) - mean_k z_k, averaged over the batch."""
    return (logits.logsumexp(1) - logits.mean(1)).mean()


def uniform_bce(logits: Tensor) -> Tensor:
    """K sigmoids against 1/K, averaged over batch and classes."""
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, 1 / logits.shape[1]))


UNIFORM_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"cross-entropy": uniform_cross_entropy, "bce": uniform_bce}


@dataclass(frozen=True, kw_only=True)
class OutlierExposure(Method):
    """weight and loss of the outlier term; outliers as :func:`abnn.outliers.make_outliers` takes them, or "full"."""

    name: ClassVar[str] = "oe"
    title: ClassVar[str] = "training with outliers"
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "reference": {},
        "authors": {"weight": 1.0, "loss": "bce", "outliers": AUTHORS_NOISE},
    }
    uses_outliers: ClassVar[str] = "must"

    weight: float = option(0.5, check_positive)
    loss: str = option("cross-entropy", one_of(UNIFORM_LOSSES))
    outliers: Any = "full"

    def losses(self, run: Run, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        outlier_term = UNIFORM_LOSSES[self.loss](run.outlier_logits(run.make_outliers(x, y, generator).x))
        return {"cross_entropy": F.cross_entropy(run.logits(x), y), "outliers": self.weight * outlier_term}
