"""Shrunk covariances against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from torch import Tensor

from abnn.bayes.gaussians import Moments, oas_shrinkage
from tests.conftest import generator


def iterated_shrinkage(covariance: np.ndarray, count: int) -> float:
    """The limit that defines oracle-approximating shrinkage: Chen et al. 2010, equations 17 and 18, iterated."""
    features, rho = len(covariance), 0.5
    for _ in range(20_000):
        shrunk = (1 - rho) * covariance + rho * np.trace(covariance) / features * np.eye(features)
        product, square = np.trace(shrunk @ covariance), np.trace(shrunk) ** 2
        above = (1 - 2 / features) * product + square
        rho, before = above / ((count + 1 - 2 / features) * product + (1 - count / features) * square), rho
        if abs(rho - before) < 1e-15:
            break
    return rho


@pytest.mark.parametrize(("count", "features"), [(30, 10), (10, 30), (500, 5)])
def test_shrinkage_is_the_limit_of_its_iteration(count: int, features: int) -> None:
    x = np.random.default_rng(0).normal(size=(count, features)) @ np.random.default_rng(1).normal(size=(features,) * 2)
    covariance = x.T @ x / count
    rho = oas_shrinkage(torch.from_numpy(covariance), count)
    assert rho == pytest.approx(iterated_shrinkage(covariance, count), rel=1e-6)
    # scikit-learn drops the terms in 2 / features: close, and closer the more features there are.
    assert rho == pytest.approx(OAS(assume_centered=True).fit(x).shrinkage_, rel=2 / features)


def test_shrinkage_of_the_identity_is_complete() -> None:
    assert oas_shrinkage(torch.eye(4, dtype=torch.float64), 100) == 1.0


def test_moments_of_parts_are_those_of_all() -> None:
    """Joined though gathered around other origins."""
    features = torch.randn(50, 5, dtype=torch.float64, generator=generator(0)) + 100
    y = torch.randint(3, (50,), generator=generator(1))
    whole, first, second = (Moments(3, 5) for _ in range(3))
    whole.add(features, y)
    first.add(features[:20], y[:20])
    second.add(features[20:], y[20:])
    first.join(second)
    first.join(Moments(3, 5))  # one that has seen nothing
    assert torch.equal(first.counts, whole.counts)
    for found, expected in zip(first.finish(), whole.finish()):
        torch.testing.assert_close(found, expected)
    empty = Moments(3, 5)
    empty.join(whole)
    assert all(torch.equal(found, expected) for found, expected in zip(empty.finish(), whole.finish()))


def whitened(features: Tensor, x: Tensor, widths: list[int] | None = None) -> Tensor:
    """How far inputs lie from the mean of features of one class, in each whitened direction."""
    moments = Moments(1, features.shape[1])
    moments.add(features, torch.zeros(len(features), dtype=torch.long))
    means, whitening = moments.finish(widths)
    return (x - means) @ whitening.T


@pytest.mark.parametrize("spread", [0.0, 1e-9, 5e-6])
def test_rounding_of_flat_features_moves_nothing(spread: float) -> None:
    """A feature whose spread is below 1e-5 of its size: moved by 1e-6 of it, less than a thousandth; doubled, far away."""
    g = torch.Generator().manual_seed(0)
    features = torch.randn(500, 4, generator=g, dtype=torch.float64)
    features[:, 2] = 3 + 3 * spread * features[:, 2]
    mean = features.mean(0)
    moved, doubled = mean.clone(), mean.clone()
    moved[2] *= 1 + 1e-6
    doubled[2] *= 2
    near, far = (whitened(features, each[None]).norm().item() for each in (moved, doubled))
    assert near < 1e-3 and far > 50
    without = [0, 1, 3]
    found, expected = whitened(features, features)[:, without], whitened(features[:, without], features[:, without])
    assert found.norm(dim=1).numpy() == pytest.approx(expected.norm(dim=1).numpy(), rel=0.05)


def test_a_feature_is_rounded_as_finely_as_its_layer_is_large() -> None:
    """The spread of a constant picture's values is rounding, of the size of the values."""
    features = torch.tensor([[0.7, 1e-8, 1e-8]], dtype=torch.float64).expand(50, 3)
    other = features[:1] * torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
    assert whitened(features, other, [2, 1])[0, :2].abs().max() < 1e-4
    assert whitened(features, other).abs().max() > 1


def test_features_with_spread_are_whitened_as_before() -> None:
    g = torch.Generator().manual_seed(1)
    features = torch.randn(400, 3, generator=g, dtype=torch.float64) * torch.tensor([1.0, 2e-5, 10.0]) + 1
    y = torch.zeros(400, dtype=torch.long)
    moments = Moments(1, 3)
    moments.add(features, y)
    _, whitening = moments.finish()
    correlation = torch.corrcoef(features.T)
    shrinkage = oas_shrinkage(correlation, 400)
    scale = features.std(0, correction=0)
    shrunk = (1 - shrinkage) * correlation + (shrinkage + 1e-6) * torch.eye(3)
    expected = torch.linalg.inv(shrunk * scale[:, None] * scale)
    assert torch.allclose(whitening.T @ whitening, expected, rtol=1e-6)
