"""Five ways to say how far a prediction may be off. All but the ensemble and dropout start from the same network.

The noise of the first four is one number, the likeliest on validation data; ours is calibrated on the same data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.baselines.posthoc.base import library
from abnn.baselines.posthoc.laplace import LIBRARY
from abnn.metrics import gaussian_nll
from abnn.predict import NumberPrediction
from research.uci.data import Split
from research.uci.networks import Stack

PASSES = 100  # of MC dropout
MARGINAL_STEPS = 60
NINE_TENTHS = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Said:
    """About N inputs, standardised: mean, standard deviation, ends of the 90 % interval, score."""

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    score: np.ndarray


Moments = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From inputs to mean and variance, without noise."""


def with_noise(moments: Moments, split: Split) -> Callable[[Tensor], Said]:
    """Add the noise that is the likeliest on validation data; the score is the standard deviation."""
    mean, variance = (part.double().numpy() for part in moments(split.validation[0]))
    y = split.validation[1].double().numpy()
    noises = np.geomspace(1e-8, 4, 400)
    noise = min(noises, key=lambda each: float(gaussian_nll(y, mean, np.sqrt(variance + each)).mean()))

    def say(x: Tensor) -> Said:
        mean, variance = (part.double().numpy() for part in moments(x))
        std = np.sqrt(variance + noise)
        return Said(mean, std, mean - NINE_TENTHS * std, mean + NINE_TENTHS * std, std)

    return say


def plain(network: Stack, split: Split) -> Callable[[Tensor], Said]:
    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = network(x[None])[0]
        return mean, torch.zeros_like(mean)

    return with_noise(moments, split)


def ensemble(networks: Stack, split: Split) -> Callable[[Tensor], Said]:
    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        means = networks(x.expand(len(networks.first), *x.shape))
        return means.mean(0), means.var(0, correction=0)

    return with_noise(moments, split)


def dropout(networks: Stack, rates: list[float], split: Split, seed: int) -> tuple[Callable[[Tensor], Said], float]:
    """MC dropout with the rate that is the best on validation data, and that rate; one network for each."""

    def with_rate(number: int) -> Callable[[Tensor], Said]:
        def moments(x: Tensor) -> tuple[Tensor, Tensor]:
            random, own = torch.Generator().manual_seed(seed), networks.pick([number])
            draws = torch.cat([own(x[None], rates[number], random) for _ in range(PASSES)])
            return draws.mean(0), draws.var(0, correction=0)

        return with_noise(moments, split)

    def loss(say: Callable[[Tensor], Said]) -> float:
        said = say(split.validation[0])
        return float(gaussian_nll(split.validation[1].double().numpy(), said.mean, said.std).mean())

    choices = [with_rate(number) for number in range(len(rates))]
    best = min(range(len(rates)), key=lambda number: loss(choices[number]))
    return choices[best], rates[best]


def laplace(network: nn.Module, split: Split) -> Callable[[Tensor], Said]:
    """laplace-torch over all weights with Kronecker factors; prior by the marginal likelihood, as its authors advise."""
    x, y = split.train
    posterior = library(*LIBRARY).Laplace(network, "regression", subset_of_weights="all", hessian_structure="kron")
    posterior.fit(DataLoader(TensorDataset(x, y[:, None]), 512))
    logs = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adam(logs, 0.1)
    for _ in range(MARGINAL_STEPS):
        optimizer.zero_grad()
        (-posterior.log_marginal_likelihood(logs[0].exp(), logs[1].exp())).backward()
        optimizer.step()

    @torch.no_grad()
    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        parts = [posterior(part, pred_type="glm") for part in x.split(1000)]
        return torch.cat([mean[:, 0] for mean, _ in parts]).detach(), torch.cat([v[:, 0, 0] for _, v in parts]).detach()

    return with_noise(moments, split)


def ours(network: nn.Module, split: Split, seed: int) -> Callable[[Tensor], Said]:
    """Attached, fitted and calibrated with default settings."""
    x, y = split.train
    batch = min(512, max(32, len(x) // 60))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", abnn.errors.AbnnWarning)  # too few validation inputs to promise rejections
        model = abnn.attach(network, x[:1], task="regression", seed=seed)
        abnn.fit(model, DataLoader(TensorDataset(x, y), batch, shuffle=True), seed=seed, progress=False)
        abnn.calibrate(model, DataLoader(TensorDataset(*split.validation), 1000), progress=False)

    def say(x: Tensor) -> Said:
        p = model.predict(x)
        assert isinstance(p, NumberPrediction)
        low, high = p.interval(0.9)
        columns = (p.mean[:, 0], p.std[:, 0], low[:, 0], high[:, 0], p.score)
        return Said(*(column.double().numpy() for column in columns))

    return say
