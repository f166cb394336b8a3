"""Shrunk covariances against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS

from abnn.gaussians import oas_shrinkage


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
