"""Priors of Bayesian weights, and the KL divergence of a posterior from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from abnn.errors import InputError, explain


@dataclass(frozen=True)
class Gaussian:
    """Prior N(0, sigma^2) on every weight."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise InputError(explain("sigma", self.sigma, "a positive number", "Give the prior a positive width."))

    def log_prob(self, weight: Tensor) -> Tensor:
        """Return log N(w; 0, sigma^2), elementwise."""
        return -0.5 / self.sigma**2 * weight**2 - (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))


@dataclass(frozen=True)
class ScaleMixture:
    """Prior pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2) on every weight (Blundell et al. 2015, eq. 7)."""

    sigma1: float = 1.0
    sigma2: float = 0.1
    pi: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.sigma1 < math.inf and 0 < self.sigma2 < math.inf):
            actual = (self.sigma1, self.sigma2)
            raise InputError(explain("sigma1, sigma2", actual, "positive numbers", "Give both components a width."))
        if not 0 < self.pi < 1:
            fix = "Use Gaussian(sigma) for a single one."
            raise InputError(explain("pi", self.pi, "a number between 0 and 1", fix))

    def log_prob(self, weight: Tensor) -> Tensor:
        """Return the log density, elementwise."""
        wide = Gaussian(self.sigma1).log_prob(weight) + math.log(self.pi)
        narrow = Gaussian(self.sigma2).log_prob(weight) + math.log(1 - self.pi)
        return torch.logaddexp(wide, narrow)


Prior = Gaussian | ScaleMixture


def gaussian_kl(mean: Tensor, sigma: Tensor, prior_sigma: float) -> Tensor:
    """Return KL[N(m, s^2) || N(0, sp^2)] = ln(sp/s) + (s^2 + m^2) / (2 sp^2) - 1/2, summed over all weights."""
    variance = prior_sigma**2
    return (math.log(prior_sigma) - sigma.log() + (sigma**2 + mean**2) / (2 * variance) - 0.5).sum()


def sampled_kl(mean: Tensor, sigma: Tensor, noise: Tensor, prior: Prior) -> Tensor:
    """Return 1/S sum_s [log q(w_s) - log p(w_s)], with w_s = mean + sigma * noise_s, summed over all weights.

    noise  [S, ...]
    """
    log_q = -0.5 * noise**2 - sigma.log() - 0.5 * math.log(2 * math.pi)
    return (log_q - prior.log_prob(torch.addcmul(mean, sigma, noise))).sum() / noise.shape[0]
