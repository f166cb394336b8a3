"""Metrics of predicted numbers, against scipy and integrals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from abnn.errors import InputError
from abnn.metrics import gaussian_crps, gaussian_nll, regression


def test_likelihood_and_crps_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(0)
    y, mean, std = rng.normal(size=5), rng.normal(size=5), rng.uniform(0.2, 3, size=5)
    np.testing.assert_allclose(gaussian_nll(y, mean, std), -stats.norm.logpdf(y, mean, std))
    for value, target, m, s in zip(gaussian_crps(y, mean, std), y, mean, std):
        below = integrate.quad(lambda t: stats.norm.cdf(t, m, s) ** 2, m - 12 * s, target)[0]  # noqa: B023
        above = integrate.quad(lambda t: stats.norm.sf(t, m, s) ** 2, target, m + 12 * s)[0]  # noqa: B023
        assert value == pytest.approx(below + above, rel=1e-6)


def test_all_numbers_of_a_small_example() -> None:
    y, mean = [0.0, 1.0, 2.0, 4.0], [0.0, 0.0, 2.0, 2.0]
    result = regression(y, mean, [1.0] * 4, [-1.0, -1.0, 1.0, 1.0], [1.0, 1.0, 3.0, 3.0])
    assert result.rmse == pytest.approx(np.sqrt(5 / 4)) and result.coverage == 0.75 and result.width == 2
    assert result.nll == pytest.approx(5 / 8 + np.log(2 * np.pi) / 2)
    sharp = regression(y, mean, [1e-9] * 4, mean, mean)
    assert sharp.crps == pytest.approx(np.mean(np.abs(np.subtract(y, mean))), abs=1e-8)
    assert set(result.to_dict()) == {"rmse", "nll", "crps", "coverage", "width"}


def test_the_likelihood_is_best_where_the_width_is_true() -> None:
    y = np.random.default_rng(1).normal(scale=2, size=20_000)
    zeros = np.zeros_like(y)
    for metric in ("nll", "crps"):
        values = [getattr(regression(y, zeros, zeros + s, zeros, zeros), metric) for s in (1.0, 1.6, 2.0, 2.5, 4.0)]
        assert np.argmin(values) == 2


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match="std: got 0"):
        regression([1.0], [1.0], [0.0], [0.0], [1.0])
    with pytest.raises(InputError, match="low, high: got a lower end above"):
        regression([1.0], [1.0], [1.0], [2.0], [1.0])
    with pytest.raises(InputError, match="mean"):
        regression([1.0, 2.0], [1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0])
