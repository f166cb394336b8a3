"""Gaussians of all classes with one covariance, from batches that pass by once, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = 1e-6
"""The least spread of a feature, as a share of its size and of the largest spread: float32 has no more digits than that."""
FLAT, UNIT = 1e-5, 1e-2
"""A feature whose spread is below ``FLAT`` of its size is flat: its spread is rounding. Its unit is ``UNIT`` of its size."""
LARGEST = 1e37
"""Features beyond it, and infinite ones, count as this much; their means fit into float32."""


LEAST, MOST = 0.05, 0.9


def shrinkage_of(features: int, inputs: float) -> float:
    """l = d / n for d features and n inputs, kept between 0.05 and 0.9: how far a covariance is shrunk."""
    return min(MOST, max(LEAST, features / max(1.0, inputs)))


class Moments:
    """Class means and pooled within-class covariance from streamed batches, in float64."""

    def __init__(self, classes: int, features: int) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.sums = torch.zeros(classes, features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)
        self.origin: Tensor | None = None

    @property
    def inputs(self) -> int:
        """How many were added."""
        return int(self.counts.sum())

    def add(self, features: Tensor, y: Tensor) -> None:
        features = bounded(features.double())
        if self.origin is None:  # sums around a typical value lose no digits
            self.origin = features.mean(0)
        features = features - self.origin
        self.counts.index_add_(0, y, torch.ones(len(y), dtype=torch.float64))
        self.sums.index_add_(0, y, features)
        self.products.addmm_(features.T, features)

    def join(self, other: Moments) -> None:
        """As if all that was added to the other one had been added here."""
        if other.origin is None:
            return
        if self.origin is None:
            self.origin = other.origin
        shift, total = other.origin - self.origin, other.sums.sum(0)
        across = torch.outer(total, shift)
        self.products += other.products + across + across.T + other.counts.sum() * torch.outer(shift, shift)
        self.sums += other.sums + other.counts[:, None] * shift
        self.counts += other.counts

    def together(self) -> Moments:
        """Those of all classes as one."""
        whole = Moments(1, self.sums.shape[1])
        whole.counts, whole.sums = self.counts.sum(0, keepdim=True), self.sums.sum(0, keepdim=True)
        whole.products, whole.origin = self.products, self.origin
        return whole

    def finish(self, widths: Sequence[int] | None = None, shrinkage: float | None = None) -> tuple[Tensor, Tensor]:
        """Class means, and W with W^T W = C^-1, where C is shrunk towards its diagonal, as far as it takes to invert it.

        Features of one layer are sums of the same numbers, so each is rounded as finely as the layer is large: the size of a
        feature is its own or, if that is more, the root mean square of its layer. ``widths`` says how many features each
        layer has; None: each feature has its own size. Flat features (see ``FLAT``) are uncorrelated with all others. So
        rounding moves no input, and a flat feature that changes by more than its unit still does. ``shrinkage``: how far; None:
        see :func:`oas_shrinkage`.
        """
        assert self.origin is not None
        means = self.sums / self.counts.clamp_min(1)[:, None]
        count = self.counts.sum().item()
        covariance = (self.products - (means * self.counts[:, None]).T @ means) / max(1.0, count)
        spread = covariance.diagonal().clamp_min(0).sqrt()
        size = self.origin.abs() + (self.products.diagonal() / max(1.0, count)).clamp_min(0).sqrt()
        scale = spread.clamp_min(FLOOR * spread.max().clamp_min(1e-12)).maximum(FLOOR * size)
        if widths is not None:
            layers = [each.square().mean().sqrt().expand(len(each)) for each in size.split(list(widths))]
            size = size.maximum(torch.cat(layers))
        flat = spread < FLAT * size
        scale = torch.where(flat, UNIT * size, scale)
        correlation = covariance / scale[:, None] / scale[None, :]
        correlation[flat, :] = correlation[:, flat] = 0
        correlation[flat, flat] = 1
        shrinkage = oas_shrinkage(correlation, count) if shrinkage is None else shrinkage
        identity = torch.eye(len(scale), dtype=torch.float64)
        lower = cholesky((1 - shrinkage) * correlation + (shrinkage + 1e-6) * identity)
        whitening = torch.linalg.solve_triangular(lower, torch.diag(1 / scale), upper=False)
        # Classes that never occurred must not attract anything.
        nowhere = (torch.full_like(means, 1e6) * scale).clamp(max=LARGEST)
        means = torch.where(self.counts[:, None] > 0, means, nowhere)
        return means + self.origin, whitening


def bounded(features: Tensor) -> Tensor:
    """As they are, but no larger than ``LARGEST``; what is not a number counts as that."""
    return features.nan_to_num(nan=LARGEST).clamp(-LARGEST, LARGEST)


def cholesky(matrix: Tensor) -> Tensor:
    """The lower factor of a symmetric matrix with ones on its diagonal, moved towards the identity until there is one.

    Where classes have no spread, what is left of their covariance is rounding, and need not be positive definite.
    """
    share, identity = 0.0, torch.eye(len(matrix)).to(matrix)
    while True:
        lower, failed = torch.linalg.cholesky_ex(torch.lerp(matrix, identity, share) if share else matrix)
        if not failed or share >= 1:
            return lower
        share = min(1.0, max(1e-6, 10 * share))


def oas_shrinkage(correlation: Tensor, count: float) -> float:
    """Oracle-approximating shrinkage towards the identity (Chen et al. 2010, arXiv:0907.4698), for p features:

    rho = [(1 - 2/p) tr(S^2) + tr(S)^2] / [(n + 1 - 2/p) (tr(S^2) - tr(S)^2 / p)], at most 1.
    """
    features = correlation.shape[0]
    square, trace = (correlation**2).sum().item(), correlation.trace().item() ** 2
    below = (count + 1 - 2 / features) * (square - trace / features)
    return 1.0 if below <= 0 else min(1.0, ((1 - 2 / features) * square + trace) / below)
