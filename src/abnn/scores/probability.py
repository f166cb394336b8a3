"""Scores of the predicted probabilities alone. With p_s those of draw s, p the prediction, and H(p) = - sum_k p_k ln
p_k / ln K:

max-probability     1 - max_k p_k                      how sure the prediction is
margin              1 - (p_1 - p_2)                    how near the second class is
entropy             H(p)                               total uncertainty, about all classes
expected-entropy    1/S sum_s H(p_s)                   what remains in each draw (aleatoric)
mutual-information  H(p) - 1/S sum_s H(p_s)            disagreement of the draws (epistemic)
variance            sum_k var_s p_sk                   disagreement of the draws, also about numbers
label-entropy       mean over labels of H(yes, no)     of several labels at once
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from abnn.scores.registry import ALL, Formula, score


def max_probability(samples: Tensor) -> Tensor:
    return 1 - samples.mean(0).amax(-1)


def margin(samples: Tensor) -> Tensor:
    best, second = samples.mean(0).topk(2, dim=-1).values.unbind(-1)
    return 1 - (best - second)


def entropy(samples: Tensor) -> Tensor:
    return _normalised_entropy(samples.mean(0))


def expected_entropy(samples: Tensor) -> Tensor:
    return _normalised_entropy(samples).mean(0)


def mutual_information(samples: Tensor) -> Tensor:
    """Return the mutual information, never below zero: entropy is concave, and rounding errors are cut."""
    return (entropy(samples) - expected_entropy(samples)).clamp_min(0)


def variance(samples: Tensor) -> Tensor:
    return samples.var(dim=0, correction=0).sum(-1)


def _normalised_entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1) / math.log(probs.shape[-1])


SAMPLE_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "max-probability": max_probability,
    "margin": margin,
    "entropy": entropy,
    "expected-entropy": expected_entropy,
    "mutual-information": mutual_information,
    "variance": variance,
}
ONE_DRAW_SCORES = ("max-probability", "margin", "entropy")  # scores that need no more than one draw


def _formula(name: str) -> Formula:
    function = SAMPLE_SCORES[name]
    if name in ONE_DRAW_SCORES:
        return lambda prediction: function(prediction.probs[None])
    return lambda prediction: function(prediction.samples)


for _name in SAMPLE_SCORES:
    score(_name, about=ALL if _name == "variance" else ("classes",))(_formula(_name))


@score("label-entropy", about=("labels",))
def _label_entropy(prediction: Any) -> Tensor:
    """Return the mean over labels of the entropy of yes or no, in units of its largest value."""
    probs = prediction.probs
    return -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs)).mean(-1) / math.log(2)
