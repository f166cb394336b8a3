"""Probabilities that come true: all are raised to one power, chosen on held-out data; see also :func:`no_surer`.

Attachments learn from outliers to be cautious, and are too cautious about ordinary data. With p the averaged prediction,

    q_k = p_k^(1/T) / sum_j p_j^(1/T),    T minimises  - sum_i ln q_y(i) + 1/2 (ln T)^2,

temperature scaling (Guo et al. 2017, arXiv:1706.04599) of the averaged prediction, with ln T ~ N(0, 1) beforehand: without
that T would be 0 where all held-out predictions are right. The order of classes stays, up to rounding below the first, and
scores and verdicts do not depend on T.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from abnn.predict import Prediction

SHARPEST, FLATTEST = 0.05, 20.0
MOST = 10_000  # inputs; one number does not get better by more
PLACES = 25
LEAST = -149 * math.log(2)  # ln of the smallest number in float32; what is below has become 0


def rescale(probs: Tensor, temperature: float) -> Tensor:
    """q of p, in the last dimension; classes without any probability keep none, and the first largest stays the first."""
    if temperature == 1:
        return probs
    return _with_label_of(probs, (probs.log() / temperature).softmax(-1))


def no_surer(stated: Tensor, network: Tensor) -> Tensor:
    """Return ``stated`` blended with 1/K as far as it takes for its largest probability not to exceed that of ``network``, [B, K].

    The most probable class stays; for that it may exceed by one step of rounding.
    """
    uniform = 1 / stated.shape[-1]
    own, most = stated.amax(-1, keepdim=True), network.amax(-1, keepdim=True)
    share = ((own - most) / (own - uniform).clamp_min(1e-12)).clamp(0, 1)
    return _with_label_of(stated, torch.lerp(stated, torch.full_like(stated, uniform), share))


def _with_label_of(probs: Tensor, changed: Tensor) -> Tensor:
    """Return ``changed`` with the label of ``probs``: rounding can make two classes equal, and an earlier one would be the label."""
    label = probs.argmax(-1, keepdim=True)
    lifted = changed.amax(-1, keepdim=True) * (1 + torch.finfo(changed.dtype).eps)
    largest = torch.where(changed.argmax(-1, keepdim=True) == label, changed.gather(-1, label), lifted)
    return changed.scatter(-1, label, largest)


def choose_temperature(log_probs: np.ndarray, labels: np.ndarray) -> float:
    """T from ln p [N, K] and labels [N]: the best of a few places, then by halving on the slope of the loss around it.

    Places are -ln T. With few inputs that are undecided the loss has more than one valley, so that halving alone may end
    in the wrong one.
    """
    rows = np.linspace(0, len(labels) - 1, min(len(labels), MOST)).round().astype(int)
    values, labels = np.maximum(log_probs[rows].astype(np.float64), LEAST), labels[rows]
    values -= values.max(1, keepdims=True)
    own = values[np.arange(len(values)), labels].sum()

    def loss(place: float) -> float:
        power = math.exp(place)
        return np.log(np.exp(power * values).sum(1)).sum() - power * own + place**2 / 2

    def slope(place: float) -> float:
        power = math.exp(place)
        weights = np.exp(power * values)
        return power * (((weights * values).sum(1) / weights.sum(1)).sum() - own) + place

    places = np.linspace(-math.log(FLATTEST), -math.log(SHARPEST), PLACES).tolist()
    best = min(range(PLACES), key=lambda number: loss(places[number]))
    low, high = places[max(best - 1, 0)], places[min(best + 1, PLACES - 1)]
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return float(f"{math.exp(-(low + high) / 2):.6g}")


def state_labels(prediction: Prediction, accepted: Tensor, temperature: float) -> Tensor:
    """Return the probabilities of several labels, made to come true, [B, L]; never surer than the network's own where not accepted."""
    stated = rescale(two_sided(prediction.probs), temperature)
    careful = no_surer(stated, two_sided(prediction.plain))
    return torch.where(accepted[:, None], stated[..., 1], careful[..., 1])


def two_sided(probs: Tensor) -> Tensor:
    """(1 - p, p) in a last dimension."""
    return torch.stack([1 - probs, probs], dim=-1)
