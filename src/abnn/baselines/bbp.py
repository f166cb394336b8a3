"""Bayes by backprop: a Gaussian posterior over the weights of all blocks, by the evidence lower bound.

    minimise   -ELBO / N = 1/S sum_s mean_b[ - ln p(y_b | x_b, w_s) ] + temperature / N * KL[q || prior],   w_s ~ q
    predict    p = 1/S sum_s softmax(z_s)
    score      1 - max_k p_k

Blundell, Cornebise, Kavukcuoglu and Wierstra 2015, "Weight Uncertainty in Neural Networks" (arXiv:1505.05424). Each block
of the network is replaced by a residual block with Bayesian convolutions, stem and head stay ordinary: 1,020,682 numbers on
the paper's network. The authors' runs weigh the KL by 1 / 50,000 on every data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from abnn.attached import Attached, attach
from abnn.baselines.base import Method, Run
from abnn.baselines.options import check_count, check_positive, option
from abnn.bayes.priors import Gaussian, Prior, ScaleMixture
from abnn.config import AttachConfig
from abnn.tasks.classification import draw_cross_entropy


def elbo_terms(nll: Tensor, kl: Tensor, size: float, temperature: float = 1.0) -> dict[str, Tensor]:
    """Return the terms of -ELBO / N: the negative log-likelihood per input, averaged over draws and inputs, and the KL's."""
    return {"nll": nll, "weighted_kl": temperature / size * kl}


def bayesian_blocks(make_backbone: Callable[[], nn.Module], example: Tensor, prior: Prior) -> Attached:
    """Return the network with every block replaced by a Bayesian one; the posterior starts where the authors' does."""
    return attach(make_backbone(), example, kind="replace", config=AttachConfig(prior=prior, views=1))


def draw_nll(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy, averaged over the draws that the network holds."""
    logits = run.logits(x, run.network.draw_logits)
    return draw_cross_entropy(logits, nn.functional.one_hot(y, logits.shape[2]).to(logits))


@dataclass(frozen=True, kw_only=True)
class BayesByBackprop(Method):
    """Its prior is N(0, prior_sigma^2), or with prior_sigma2 Blundell's scale mixture
    prior_pi N(0, prior_sigma^2) + (1 - prior_pi) N(0, prior_sigma2^2), whose KL is always sampled."""

    name: ClassVar[str] = "bbp"
    title: ClassVar[str] = "training by the ELBO"
    variants: ClassVar[dict[str, Any]] = {"reference": {}, "authors": {"kl_size": 50_000, "sampled_kl": True}}
    random: ClassVar[bool] = True

    lr: float = 1e-3
    optimizer: str = "adam"
    kaiming: bool = False
    prior_sigma: float = option(0.1, check_positive)
    prior_sigma2: float | None = None
    prior_pi: float = 0.5
    draws: int = option(3, check_count)  # of each step
    temperature: float = option(1.0, check_positive)  # factor of the KL term; 1: the evidence lower bound
    kl_size: int | None = option(None, check_count, none=True)  # the N of the KL term, None for that of the data
    sampled_kl: bool = False  # Monte Carlo KL over the draws instead of the closed form

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.prior  # which checks its numbers

    @property
    def prior(self) -> Prior:
        if self.prior_sigma2 is None:
            return Gaussian(self.prior_sigma)
        return ScaleMixture(self.prior_sigma, self.prior_sigma2, self.prior_pi)

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> Attached:
        return bayesian_blocks(make_backbone, example, self.prior)

    def losses(self, run: Run, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        run.network.resample(self.draws)
        nll = draw_nll(run, x, y)
        return elbo_terms(nll, run.network.kl(self.sampled_kl), self.kl_size or run.size, self.temperature)
