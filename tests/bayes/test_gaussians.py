"""Shrunk covariances against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS

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
    """Joined though gathered around other origins, and without what was removed again."""
    features = torch.randn(60, 5, dtype=torch.float64, generator=generator(0)) + 100
    y = torch.randint(3, (60,), generator=generator(1))
    whole, first, second = (Moments(3, 5) for _ in range(3))
    whole.add(features[:50], y[:50])
    first.add(features[:20], y[:20])
    second.add(features[20:] + 0, y[20:])
    second.remove(features[50:], y[50:])
    first.join(second)
    first.join(Moments(3, 5))  # one that has seen nothing
    assert torch.equal(first.counts, whole.counts)
    for found, expected in zip(first.finish(), whole.finish()):
        torch.testing.assert_close(found, expected)
    empty = Moments(3, 5)
    empty.join(whole)
    assert all(torch.equal(found, expected) for found, expected in zip(empty.finish(), whole.finish()))
