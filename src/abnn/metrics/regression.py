"""Are predicted numbers near, and are their widths true? For a Gaussian N(m, s^2) for each target y, with z = (y - m) / s."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Floats, Result, as_scores


@dataclass(frozen=True)
class Regression(Result):
    """How good Gaussian predictions are. CRPS: Gneiting and Raftery 2007; in units of y, |y - m| for s = 0."""

    rmse: float  # sqrt of the mean of (y - m)^2
    nll: float  # mean of z^2 / 2 + ln s + ln(2 pi) / 2, in nats
    crps: float  # mean of s [z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)]
    coverage: float  # the share of targets in the interval
    width: float  # the mean width of the interval


def regression(y: ArrayLike, mean: ArrayLike, std: ArrayLike, low: ArrayLike, high: ArrayLike) -> Regression:
    """All metrics of Gaussian predictions of one number for each input, and of intervals around them."""
    target = as_scores(y, "y")
    names = {"mean": mean, "std": std, "low": low, "high": high}
    m, s, lower, upper = (as_scores(value, name, len(target), "y") for name, value in names.items())
    if not (s > 0).all():
        raise InputError(explain("std", f"{float(s.min()):.3g}", "numbers above 0"))
    if (lower > upper).any():
        raise InputError(explain("low, high", "a lower end above the upper one", "low <= high"))
    inside = (lower <= target) & (target <= upper)
    return Regression(
        rmse=float(np.sqrt(np.mean((target - m) ** 2))),
        nll=float(np.mean(gaussian_nll(target, m, s))),
        crps=float(np.mean(gaussian_crps(target, m, s))),
        coverage=float(np.mean(inside)),
        width=float(np.mean(upper - lower)),
    )


def gaussian_nll(y: Floats, mean: Floats, std: Floats) -> Floats:
    """- ln N(y; m, s^2) of each input."""
    return ((y - mean) / std) ** 2 / 2 + np.log(std) + math.log(2 * math.pi) / 2


def gaussian_crps(y: Floats, mean: Floats, std: Floats) -> Floats:
    """The continuous ranked probability score of each input."""
    from scipy.special import ndtr

    z = (y - mean) / std
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
