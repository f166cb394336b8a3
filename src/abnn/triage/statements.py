"""Statements that come true, learnt from held-out data: probabilities of classes and labels, and widths of numbers.

Attachments learn caution from outliers, and are too cautious about ordinary data. With p the averaged prediction,

    q_k = p_k^(1/T) / sum_j p_j^(1/T),    T minimises  - sum_i ln q_y(i) + 1/2 (ln T)^2,

which is temperature scaling (Guo et al. 2017, arXiv:1706.04599) of the averaged prediction, with the prior ln T ~ N(0,
1). Without the prior T would be 0 where all held-out predictions are right. The order of classes stays, up to rounding
below the first. Scores and verdicts do not depend on T; see also :func:`no_surer`.

One T for all classes gives a rare class too much: what flattens a sure network also raises the small probabilities of a
class that hardly occurs. So each rare class k, see :func:`rare_classes`, has an offset b_k with the prior N(0, 1),
learnt with T:

    q_k = p_k^(1/T) exp(b_k) / sum_j p_j^(1/T) exp(b_j),    b_k = 0 of all other classes.

The label stays: where an offset would lift a class above it, both become equal.

The formula of widths is in :mod:`abnn.triage.intervals`. Offset, slope and weights are the most probable ones given the
held-out errors, with the priors slope ~ N(0.7, 1/8) and weights ~ N(0, 1/8). The errors of intervals come from five
parts of the data, each with the widths that follow from the other four: a few numbers are learnt from the same data,
and in-sample errors would be too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.predict.prediction import LabelPrediction, NumberPrediction, Prediction
from abnn.tasks.spread import log_variance as most_probable
from abnn.triage.intervals import CUT, LOGS, Intervals, Width

SHARPEST, FLATTEST = 0.05, 20.0  # the smallest and the largest T
MOST = 10_000  # inputs that T is learnt from; with more, one number gets no better
PLACES = 25  # values of T to begin with
MOST_ERRORS = 1000  # that a width stores
RIDGE, SLOPE = 8.0, 0.7  # of the priors: precision, and mean of the slope
PARTS = 5  # of the data, for errors that are not in-sample
FEWEST = 20  # inputs from which slope and weights are learnt
RARE, EXPECTED = 0.1, 20
"""A class is rare below this part of an even share, if an even share has at least this many inputs."""
RIGHT = NormalDist().inv_cdf(0.95)  # a number that is off by more standard deviations counts as wrong
LEAST = -149 * math.log(2)  # ln of the smallest number in float32; smaller ones have become 0


def rescale(probs: Tensor, temperature: float, offsets: Sequence[float] = ()) -> Tensor:
    """Return q from p, in the last dimension. A class with probability 0 keeps it, and the label stays.

    offsets  b of each class; (): none
    """
    if temperature == 1 and not offsets:
        return probs
    logs = probs.log() / temperature
    if not offsets:
        return _with_label_of(probs, logs.softmax(-1))
    shifted = (logs + logs.new_tensor(offsets)).softmax(-1)
    label, most = probs.argmax(-1, keepdim=True), shifted.amax(-1, keepdim=True)
    even = shifted.scatter(-1, label, most) / (1 + most - shifted.gather(-1, label))
    return _with_label_of(probs, even)


def no_surer(stated: Tensor, network: Tensor) -> Tensor:
    """Return ``stated`` mixed with 1/K until its largest probability is at most that of ``network``, [B, K].

    The most probable class stays. For that, its probability may be larger by one step of rounding.
    """
    uniform = 1 / stated.shape[-1]
    own, most = stated.amax(-1, keepdim=True), network.amax(-1, keepdim=True)
    share = ((own - most) / (own - uniform).clamp_min(1e-12)).clamp(0, 1)
    return _with_label_of(stated, torch.lerp(stated, torch.full_like(stated, uniform), share))


def _with_label_of(probs: Tensor, stated: Tensor) -> Tensor:
    """Return ``stated`` with the label of ``probs``.

    Rounding can make two classes equal; without this, the one that comes first would become the label.
    """
    label = probs.argmax(-1, keepdim=True)
    above = stated.amax(-1, keepdim=True) * (1 + torch.finfo(stated.dtype).eps)
    largest = torch.where(stated.argmax(-1, keepdim=True) == label, stated.gather(-1, label), above)
    return stated.scatter(-1, label, largest)


def choose_temperature(log_probs: np.ndarray, labels: np.ndarray) -> float:
    """Return T from ln p, [N, K], and labels, [N].

    The search takes the best of a few places -ln T, and halves around it by the slope of the loss. With few inputs that
    are undecided the loss has more than one valley, so halving alone may end in the wrong one.
    """
    values, labels = _some_inputs(log_probs, labels)
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


def _some_inputs(log_probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most ``MOST`` rows of both, evenly spaced; logarithms in float64, finite."""
    rows = np.linspace(0, len(labels) - 1, min(len(labels), MOST)).round().astype(int)
    return np.maximum(log_probs[rows].astype(np.float64), LEAST), labels[rows]


def rare_classes(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the numbers of the classes that are rare among the labels, see ``RARE``."""
    even = len(labels) / classes
    if even < EXPECTED:
        return np.array([], int)
    return np.flatnonzero(np.bincount(labels, minlength=classes) < RARE * even)


def choose_scaling(log_probs: np.ndarray, labels: np.ndarray) -> tuple[float, tuple[float, ...]]:
    """Return T and the offsets of all classes from ln p, [N, K], and labels, [N]; no offsets where no class is rare."""
    temperature, classes = choose_temperature(log_probs, labels), log_probs.shape[1]
    rare = torch.from_numpy(rare_classes(labels, classes))
    if not len(rare):
        return temperature, ()
    values, targets = map(torch.from_numpy, _some_inputs(log_probs, labels.astype(np.int64)))
    place = torch.tensor(-math.log(temperature), dtype=torch.float64)
    with torch.inference_mode(False), torch.enable_grad():
        learnt = torch.cat([place[None], torch.zeros(len(rare), dtype=torch.float64)]).requires_grad_()
        optimizer = torch.optim.LBFGS([learnt], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            offsets = torch.zeros(classes, dtype=torch.float64).scatter(0, rare, learnt[1:])
            power = learnt[0].clamp(-math.log(FLATTEST), -math.log(SHARPEST)).exp()
            value = F.cross_entropy(power * values + offsets, targets, reduction="sum") + learnt.square().sum() / 2
            value.backward()
            return value

        optimizer.step(loss)
    best = learnt.detach()
    offsets = torch.zeros(classes, dtype=torch.float64).scatter(0, rare, best[1:])
    temperature = min(max(math.exp(-best[0]), SHARPEST), FLATTEST)
    return float(f"{temperature:.6g}"), tuple(float(f"{value:.6g}") for value in offsets.tolist())


def state_labels(prediction: Prediction, accepted: Tensor, temperature: float) -> Tensor:
    """Return the probabilities of several labels, made to come true, [B, L].

    Of inputs that are not accepted, they are never surer than the network's own.
    """
    stated = rescale(two_sided(prediction.probs), temperature)
    careful = no_surer(stated, two_sided(prediction.plain))
    return torch.where(accepted[:, None], stated[..., 1], careful[..., 1])


def two_sided(probs: Tensor) -> Tensor:
    """Return (1 - p, p) in a new last dimension."""
    return torch.stack([1 - probs, probs], dim=-1)


def learn_statement(prediction: Prediction, targets: Tensor) -> tuple[dict[str, Any], np.ndarray]:
    """Return fields of a Triage from held-out predictions of numbers or labels, and which predictions are right.

    targets  those of the predictions
    """
    if isinstance(prediction, NumberPrediction):
        right = ((targets - prediction.mean).abs() <= RIGHT * prediction.std).all(1)
        logs, distances = prediction.log_variance().cpu(), prediction.distances().cpu()
        errors = (targets.cpu() - prediction.mean.cpu()).abs()
        widths = [_width(*columns, distances) for columns in zip(logs.unbind(1), errors.unbind(1))]
        return {"intervals": Intervals(tuple(widths))}, right.numpy()
    assert isinstance(prediction, LabelPrediction)
    log_probs = two_sided(prediction.probs).flatten(0, 1).log().numpy()
    right = (prediction.labels == (targets > 0.5)).all(1)
    return {"temperature": choose_temperature(log_probs, targets.long().flatten().numpy())}, right.numpy()


def _width(logs: Tensor, errors: Tensor, distances: Tensor) -> Width:
    """Return the width of one number from ln of its variances, its errors and the distances of its inputs."""
    usual = logs.median()
    unit = logs.std(correction=0).clamp_min(1e-3) if len(logs) > 1 else torch.tensor(1.0)
    beyond = ((logs - usual) / unit).clamp(-LOGS, LOGS) * unit
    features = torch.cat([beyond[:, None], distances.clamp(-CUT, CUT)], dim=1)
    squares = (errors / (logs / 2).exp() * (beyond / 2).exp()).square()  # of errors in units of the usual deviation
    prior = torch.zeros(features.shape[1])
    prior[0] = SLOPE

    def learn(rows: Tensor) -> Tensor:
        if len(rows) < FEWEST:  # only the offset
            scale = (squares[rows] * (-features[rows] @ prior).exp()).mean().clamp_min(1e-12)
            return torch.cat([prior, scale.log()[None]])
        return most_probable(features[rows], squares[rows], RIDGE, prior)

    def ratios(rows: Tensor, learnt: Tensor) -> Tensor:
        return (squares[rows] * (-(features[rows] @ learnt[:-1] + learnt[-1])).exp()).sqrt()

    every = torch.arange(len(logs))
    parts = [every[every % PARTS == part] for part in range(min(PARTS, len(logs)))]
    out_of_sample = [ratios(part, learn(every[~torch.isin(every, part)])) for part in parts if len(logs) > PARTS]
    whole = learn(every)
    scaled_errors = (torch.cat(out_of_sample) if out_of_sample else ratios(every, whole)).double().numpy()
    slope, *weights, offset = (float(f"{value:.7g}") for value in whole.tolist())
    return Width(offset, slope, float(usual), float(unit), tuple(weights), _summary(scaled_errors), len(logs))


def _summary(errors: np.ndarray) -> tuple[float, ...]:
    """Return the sorted errors; of many, 1,000 conformal quantiles."""
    ordered = np.sort(errors)
    if len(ordered) > MOST_ERRORS:
        places = np.ceil((len(ordered) + 1) * np.arange(1, MOST_ERRORS + 1) / MOST_ERRORS).astype(int) - 1
        ordered = ordered[places.clip(0, len(ordered) - 1)]
    return tuple(float(f"{value:.7g}") for value in ordered)
