"""Gaussians of all classes with one covariance, from batches that pass by once, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

RESERVOIR = 10_000
"""How many inputs are kept as they are."""


class Moments:
    """Class means and pooled within-class covariance from streamed batches, in float64."""

    def __init__(self, classes: int, features: int) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.sums = torch.zeros(classes, features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)
        self.some: list[tuple[Tensor, Tensor]] = []
        self.origin: Tensor | None = None

    def add(self, features: Tensor, y: Tensor) -> None:
        if self.origin is None:  # sums around a typical value lose no digits
            self.origin = features.mean(0)
        if sum(len(each) for each, _ in self.some) < RESERVOIR:
            self.some.append((features, y))
        features = features - self.origin
        self.counts.index_add_(0, y, torch.ones(len(y), dtype=torch.float64))
        self.sums.index_add_(0, y, features)
        self.products.addmm_(features.T, features)

    def finish(self) -> tuple[Tensor, Tensor]:
        """Class means, and W with W^T W = C^-1, where C is shrunk towards its diagonal."""
        assert self.origin is not None
        means = self.sums / self.counts.clamp_min(1)[:, None]
        count = self.counts.sum().item()
        covariance = (self.products - (means * self.counts[:, None]).T @ means) / max(1.0, count)
        scale = covariance.diagonal().clamp_min(0).sqrt()
        scale = scale.clamp_min(1e-6 * scale.max().clamp_min(1e-12))
        correlation = covariance / scale[:, None] / scale[None, :]
        shrinkage = oas_shrinkage(correlation, count)
        identity = torch.eye(len(scale), dtype=torch.float64)
        correlation = (1 - shrinkage) * correlation + (shrinkage + 1e-6) * identity
        lower = torch.linalg.cholesky(correlation)
        whitening = torch.linalg.solve_triangular(lower, torch.diag(1 / scale), upper=False)
        # Classes that never occurred must not attract anything.
        means = torch.where(self.counts[:, None] > 0, means, torch.full_like(means, 1e6) * scale)
        return means + self.origin, whitening


def oas_shrinkage(correlation: Tensor, count: float) -> float:
    """Oracle-approximating shrinkage towards the identity (Chen et al. 2010, arXiv:0907.4698), for p features:

    rho = [(1 - 2/p) tr(S^2) + tr(S)^2] / [(n + 1 - 2/p) (tr(S^2) - tr(S)^2 / p)], at most 1.
    """
    features = correlation.shape[0]
    square, trace = (correlation**2).sum().item(), correlation.trace().item() ** 2
    below = (count + 1 - 2 / features) * (square - trace / features)
    return 1.0 if below <= 0 else min(1.0, ((1 - 2 / features) * square + trace) / below)
