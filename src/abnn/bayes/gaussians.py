"""Means of classes and one covariance for all of them, accumulated from batches in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = 1e-6
"""The least spread of a feature, as a share of its size and of the largest spread: float32 has no more digits."""
FLAT, UNIT = 1e-5, 1e-2
"""A feature whose spread is below ``FLAT`` times its size is flat: the spread is rounding. Its unit is ``UNIT`` times
its size."""
LARGEST = 1e37
"""Larger and infinite features count as this much, so that their means fit into float32."""

LEAST, MOST = 0.05, 0.9
"""The range of the shrinkage l."""


def shrinkage_of(features: int, inputs: float) -> float:
    """Return l = d / n for d features and n inputs, kept between 0.05 and 0.9: how far a covariance is shrunk."""
    return min(MOST, max(LEAST, features / max(1.0, inputs)))


class Moments:
    """Class means and pooled within-class covariance, accumulated from batches in float64."""

    def __init__(self, classes: int, features: int) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.sums = torch.zeros(classes, features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)
        self.origin: Tensor | None = None

    @property
    def inputs(self) -> int:
        """The number of inputs that were added."""
        return int(self.counts.sum())

    def add(self, features: Tensor, y: Tensor) -> None:
        """Add features, [B, F], of inputs of classes ``y``, [B]."""
        features = limit_size(features.double())
        if self.origin is None:  # sums around a typical value do not lose digits
            self.origin = features.mean(0)
        features = features - self.origin
        self.counts.index_add_(0, y, torch.ones(len(y), dtype=torch.float64))
        self.sums.index_add_(0, y, features)
        self.products.addmm_(features.T, features)

    def join(self, other: Moments) -> None:
        """Add everything that was added to another one."""
        if other.origin is None:
            return
        if self.origin is None:
            self.origin = other.origin
        shift, total = other.origin - self.origin, other.sums.sum(0)
        cross = torch.outer(total, shift)
        self.products += other.products + cross + cross.T + other.counts.sum() * torch.outer(shift, shift)
        self.sums += other.sums + other.counts[:, None] * shift
        self.counts += other.counts

    def together(self) -> Moments:
        """Return the moments of all classes as one class; the products are shared."""
        whole = Moments(1, self.sums.shape[1])
        whole.counts, whole.sums = self.counts.sum(0, keepdim=True), self.sums.sum(0, keepdim=True)
        whole.products, whole.origin = self.products, self.origin
        return whole

    def finish(self, widths: Sequence[int] | None = None, shrinkage: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the class means, and W with W^T W = C^-1. C is the covariance, shrunk towards its diagonal.

        The features of one layer are sums of the same numbers, so the largest of them decide how coarsely all are
        rounded. The size of a feature is therefore its own or, if that is larger, the root mean square of its layer.
        Flat features (see ``FLAT``) count as uncorrelated with all others. So rounding moves no input, but a flat
        feature that changes by more than its unit does.

        widths     number of features of each layer; None: each feature has its own size
        shrinkage  how far C is shrunk, 0 to 1; None: as :func:`oas_shrinkage` says
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
        # A class without inputs must not be near to any input.
        nowhere = (torch.full_like(means, 1e6) * scale).clamp(max=LARGEST)
        means = torch.where(self.counts[:, None] > 0, means, nowhere)
        return means + self.origin, whitening


def limit_size(features: Tensor) -> Tensor:
    """Return the features, limited to +-``LARGEST``; NaN becomes ``LARGEST``."""
    return features.nan_to_num(nan=LARGEST).clamp(-LARGEST, LARGEST)


def cholesky(matrix: Tensor) -> Tensor:
    """Return the lower Cholesky factor of a symmetric matrix with ones on its diagonal.

    Where classes have no spread, their covariance is rounding and need not be positive definite. Then the matrix is
    moved towards the identity until it is.
    """
    share, identity = 0.0, torch.eye(len(matrix)).to(matrix)
    while True:
        lower, failed = torch.linalg.cholesky_ex(torch.lerp(matrix, identity, share) if share else matrix)
        if not failed or share >= 1:
            return lower
        share = min(1.0, max(1e-6, 10 * share))


def oas_shrinkage(correlation: Tensor, count: float) -> float:
    """Return the oracle-approximating shrinkage towards the identity (Chen et al. 2010, arXiv:0907.4698).

    For p features it is

    rho = [(1 - 2/p) tr(S^2) + tr(S)^2] / [(n + 1 - 2/p) (tr(S^2) - tr(S)^2 / p)], at most 1.
    """
    features = correlation.shape[0]
    square, trace = (correlation**2).sum().item(), correlation.trace().item() ** 2
    denominator = (count + 1 - 2 / features) * (square - trace / features)
    return 1.0 if denominator <= 0 else min(1.0, ((1 - 2 / features) * square + trace) / denominator)
