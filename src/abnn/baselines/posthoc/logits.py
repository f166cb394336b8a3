"""Scores from the logits z alone, with p = softmax(z).

    energy            -T log sum_k exp(z_k / T)                  Liu et al. 2020, arXiv:2010.03759, equation 4; T = 1 there
    max-logit         -max_k z_k                                 Hendrycks et al. 2022, arXiv:1911.11132
    max-logit-pnorm   -max_k (z_k - m) / |z - m|_p,  m = mean z  Cattelan and Silva 2024, arXiv:2305.15508
    entropy           -sum_k p_k ln p_k / ln K                   the score "entropy" of every prediction
    gen               sum over the M largest p_k of p_k^g (1 - p_k)^g     Liu et al. 2023, CVPR, "GEN", equation 4

pytorch-ood has all but the p-norm; these need no library, and GEN keeps its order where the library's, which clips probabilities at
1e-7, does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from abnn.baselines.options import check_count, check_positive, option
from abnn.baselines.posthoc.base import Features, PostHoc, add_score
from abnn.scores import entropy as sample_entropy


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """-T log sum_k exp(z_k / T), [N]."""
    return -temperature * (logits / temperature).logsumexp(1)


def max_logit(logits: Tensor) -> Tensor:
    """-max_k z_k, [N]."""
    return -logits.amax(1)


def max_logit_pnorm(logits: Tensor, power: float = 5.0) -> Tensor:
    """-max_k (z_k - m) / |z - m|_p, [N]; 0 where all logits are equal."""
    centred = logits - logits.mean(1, keepdim=True)
    return -centred.amax(1) / centred.norm(p=power, dim=1).clamp_min(1e-12)


def entropy(logits: Tensor) -> Tensor:
    """-sum_k p_k ln p_k / ln K, [N]."""
    return sample_entropy(logits.softmax(1)[None])


def gen(logits: Tensor, gamma: float = 0.1, largest: int = 100) -> Tensor:
    """sum over the largest probabilities of p^g (1 - p)^g, [N]."""
    log_p = logits.log_softmax(1)
    top = log_p.topk(min(largest, logits.shape[1]), dim=1)
    rest = (-log_p.exp()).log1p()  # exact but for the largest, where p may round to 1: that is summed from the others
    others = log_p.scatter(1, log_p.argmax(1, keepdim=True), -float("inf")).logsumexp(1)
    rest = rest.scatter(1, log_p.argmax(1, keepdim=True), others[:, None])
    return (gamma * (top.values + rest.gather(1, top.indices))).exp().sum(1)


@dataclass
class LogitScore(PostHoc):
    """A formula of the logits and the settings."""

    learns: ClassVar[bool] = False
    formula: ClassVar[Callable[..., Tensor]]

    def values(self, features: Features) -> Tensor:
        return type(self).formula(features.logits, **self.settings)


add_score(LogitScore, "energy", {"temperature": option(1.0, check_positive)}, formula=staticmethod(energy))
add_score(LogitScore, "max-logit", formula=staticmethod(max_logit))
add_score(LogitScore, "max-logit-pnorm", {"power": option(5.0, check_positive)}, formula=staticmethod(max_logit_pnorm))
add_score(LogitScore, "entropy", formula=staticmethod(entropy))
_GEN = {"gamma": option(0.1, check_positive), "largest": option(100, check_count)}
add_score(LogitScore, "gen", _GEN, formula=staticmethod(gen))
