"""Scores: one number per input, larger = more uncertain, from the class probabilities of S draws, [S, B, K].

With p_s the prediction of draw s, p = 1/S sum_s p_s, p_(1) and p_(2) its two largest entries and H the entropy divided by
ln K, so that all but the distance and the gated score lie in [0, 1]:

    max-probability     1 - p_(1)                          total uncertainty, as used in the paper
    margin              1 - (p_(1) - p_(2))                total uncertainty, about the two best classes
    entropy             H(p)                               total uncertainty, about all classes
    expected-entropy    1/S sum_s H(p_s)                   what remains in each draw (aleatoric)
    mutual-information  H(p) - 1/S sum_s H(p_s)            disagreement of the draws (epistemic)
    variance            sum_k var_s p_sk                   disagreement of the draws
    distance            see abnn.distance                  how far the input's features lie from the training data
    gated               margin or entropy + how badly the input fits to its class + how far it is outside, see :func:`gated`
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from abnn.model.distance import Gate

DISTANCE_SCORES = ("distance", "gated")
MISFIT_WEIGHT, DISTANCE_WEIGHT, OUTSIDE_WEIGHT, OUTSIDE_POWER = 0.2, 0.2, 2.0, 3
GATED = {
    "inside": "margin",
    "misfit": MISFIT_WEIGHT,
    "distance": DISTANCE_WEIGHT,
    "outside": OUTSIDE_WEIGHT,
    "power": OUTSIDE_POWER,
}
"""The gated score as it is, for records."""
FAR = 10.0  # times the gate's upper end; pictures of any kind, with values as training data has them, reach 3 times it


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
    """Never negative: entropy is concave; what rounding leaves below zero is cut."""
    return (entropy(samples) - expected_entropy(samples)).clamp_min(0)


def variance(samples: Tensor) -> Tensor:
    return samples.var(dim=0, correction=0).sum(-1)


SAMPLE_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "max-probability": max_probability,
    "margin": margin,
    "entropy": entropy,
    "expected-entropy": expected_entropy,
    "mutual-information": mutual_information,
    "variance": variance,
}
SCORES = (*SAMPLE_SCORES, *DISTANCE_SCORES)
ONE_DRAW_SCORES = ("max-probability", "margin", "entropy")  # those that a single draw can give


def gated(margin: Tensor, entropy: Tensor, distance: Tensor, misfit: Tensor, gate: Gate) -> Tensor:
    """(1 - o) margin + o entropy + 0.2 m + 0.2 v + 2 o + far(d), with m and v the misfit and the distance d in units of what
    is usual and o how far d is outside:

        m = clip((misfit - fits) / (misfits - fits)),    v = clip((d - low) / (high - low)),    both to [-1, 1],
        o = max(v, 0)^3.

    Within the range of ID data the question is whether the prediction is wrong, and then another class is nearly as
    probable: the margin knows that better than the entropy, which also counts how the rest is spread. Outside the
    question is how readable an input is at all, which is in all classes.

    ``misfit`` is that to the predicted class: what the features say about the prediction, which finds mistakes that the
    network is sure of. Within the range of ID data the distance d counts no more than that, outside more than
    everything else can, and where an input is outside for certain more distance does not count, so that readability
    decides; until it is so far away that only broken values could be, where far = log10 d / (10 high) begins. One ID
    input in twenty is halfway outside (v above 0.33 to 0.44): the third power leaves these to their margin. What is usual
    comes from held-out ID data, see :class:`abnn.model.distance.Gate`; the constants were chosen on validation data of MNIST
    and SVHN, with the paper's network, MobileNetV3 and ResNet-18.
    """
    reach = _reach(distance, gate)
    out = _outside(reach)
    unusual = MISFIT_WEIGHT * unfit(misfit, gate) + DISTANCE_WEIGHT * reach
    return margin.lerp(entropy, out) + unusual + OUTSIDE_WEIGHT * out + _far(distance, gate)


def unfit(misfit: Tensor, gate: Gate) -> Tensor:
    """How badly inputs fit to a class: 0 as usual, 1 as is rare for good ones or worse, -1 at best."""
    return ((misfit - gate.fits) / max(gate.misfits - gate.fits, 1e-12)).clamp(-1, 1)


def outside(distance: Tensor, gate: Gate) -> Tensor:
    """How far an input is outside the range of ID data: 0 in its middle, 1 where it is outside for certain."""
    return _outside(_reach(distance, gate))


def _reach(distance: Tensor, gate: Gate) -> Tensor:
    return ((distance - gate.low) / max(gate.high - gate.low, 1e-12)).clamp(-1, 1)


def _far(distance: Tensor, gate: Gate) -> Tensor:
    return (distance / (FAR * max(gate.high, 1e-12))).clamp_min(1).log10()


def _outside(reach: Tensor) -> Tensor:
    return reach.clamp_min(0) ** OUTSIDE_POWER


def _normalised_entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1) / math.log(probs.shape[-1])
