"""VBOE: variational Bayes with outlier exposure.

    reference   a Gaussian posterior over the last layer alone:
                minimise  1/S sum_s CE(z_s(x), y) + temper / N * KL[q || N(0, 1/precision)] + 0.5 * 1/S sum_s U(z_s(x'))
                with U the cross-entropy to uniform, temper 0.1, precision = 2 * 5e-4 N, N training inputs, 5 draws
    authors     the Bayes-by-backprop network; 3 draws and KL / 50,000 on ID data, 1.0 * BCE to 1/K with one draw on outliers
    predict     p = 1/S sum_s softmax(z_s);   score 1 - max_k p_k

Kristiadi, Hein and Hennig 2022, "Being a Bit Frequentist Improves Bayesian Neural Networks" (arXiv:2106.10065).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.baselines.base import AUTHORS_NOISE, Method, Run
from abnn.baselines.bbp import bayesian_blocks, draw_nll, elbo_terms
from abnn.baselines.mc_dropout import split_head
from abnn.baselines.oe import UNIFORM_LOSSES
from abnn.baselines.options import check_count, check_positive, one_of, option
from abnn.bayes.layers import BayesLinear, Init
from abnn.bayes.priors import Gaussian, gaussian_kl
from abnn.train.randomness import seeded


def prior_sigma(size: int, decay: float) -> float:
    """The prior's width: its precision is the weight decay times the number of inputs, doubled for the outliers."""
    return (2 * decay * size) ** -0.5


class BayesianHead(nn.Module):
    """Features and a Bayesian last layer, whose mean starts at the given layer."""

    def __init__(self, trunk: nn.Module, head: nn.Linear, sigma: float) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = BayesLinear(head.in_features, head.out_features, init=Init(sigma=sigma))
        with torch.no_grad():
            self.head.weight_mean.copy_(head.weight)
            if head.bias is not None and self.head.bias_mean is not None:
                self.head.bias_mean.copy_(head.bias)

    def resample(self, draws: int) -> None:
        self.head.resample(draws)

    def draw_logits(self, x: Tensor) -> Tensor:
        """[S, B, K] for the held draws."""
        return self.head(self.trunk(x), folded=False).unflatten(0, (self.head.draws, len(x)))

    def kl(self, sigma: float) -> Tensor:
        """KL[q || N(0, sigma^2)] in closed form."""
        return torch.stack([gaussian_kl(mean, F.softplus(rho), sigma) for mean, rho, _ in self.head.parts]).sum()


@dataclass(frozen=True, kw_only=True)
class VBOE(Method):
    name: ClassVar[str] = "vboe"
    title: ClassVar[str] = "training by the ELBO with outliers"
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "reference": {},
        "authors": {"layers": "blocks", "optimizer": "adam", "schedule": "steps", "kaiming": False, "kl_size": 50_000}
        | {"draws": 3, "outlier_draws": 1, "temper": 1.0, "weight": 1.0, "loss": "bce", "outliers": AUTHORS_NOISE},
    }
    random: ClassVar[bool] = True
    uses_outliers: ClassVar[str] = "must"

    lr: float = 1e-3
    optimizer: str = "adam-l2"
    schedule: str = "cosine"
    layers: str = option("last", one_of(("last", "blocks")))
    draws: int = option(5, check_count)  # of each step
    outlier_draws: int = option(5, check_count)  # of each outlier term
    temper: float = option(0.1, check_positive)
    decay: float = option(5e-4, check_positive)  # gives the prior of "last"
    prior_sigma: float = option(0.1, check_positive)  # of the prior of "blocks"
    kl_size: int | None = option(None, check_count, none=True)  # the N of the KL term, None for that of the data
    weight: float = option(0.5, check_positive)  # of the outlier term
    loss: str = option("cross-entropy", one_of(UNIFORM_LOSSES))  # of outliers
    outliers: Any = "full"

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> nn.Module:
        if self.layers == "blocks":
            return bayesian_blocks(make_backbone, example, Gaussian(self.prior_sigma))
        return BayesianHead(*split_head(make_backbone(), example), sigma=0.05)

    def losses(self, run: Run, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        network = run.network
        network.resample(self.draws)
        nll = draw_nll(run, x, y)
        # The authors' KL is that of the same draws as the likelihood; the reference's is exact.
        blocks = self.layers == "blocks"
        kl = network.kl(sampled=True) if blocks else network.kl(prior_sigma(run.size, self.decay))
        outliers = run.make_outliers(x, y, generator).x
        if self.outlier_draws != self.draws:  # else the draws at hand serve both terms
            network.resample(self.outlier_draws)
        outlier_term = UNIFORM_LOSSES[self.loss](run.outlier_logits(outliers, network.draw_logits).flatten(0, 1))
        terms = elbo_terms(nll, kl, self.kl_size or run.size, self.temper)
        return {**terms, "outliers": self.weight * outlier_term}

    def draw_logits(self, network: BayesianHead, x: Tensor, draws: int, seed: int) -> Tensor:
        network.head.resample_seeded([seeded("head", seed, number) for number in range(draws)])
        return network.draw_logits(x)
