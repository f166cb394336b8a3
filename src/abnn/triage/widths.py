"""Learn widths that come true from held-out data; the formula is that of :mod:`abnn.triage.intervals`.

Offset, slope and weights are the most probable ones given the held-out errors, beforehand slope ~ N(0.7, 1/8) and weights ~ N(0, 1/8).
The errors that intervals are made of come from five parts of the data, each with the widths that the other four give: a few
numbers are learnt from the same data, and in-sample errors would be too small.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.predict.prediction import LabelPrediction, NumberPrediction, Prediction
from abnn.tasks.spread import log_variance as most_probable
from abnn.triage.intervals import CUT, LOGS, Intervals, Width
from abnn.triage.temperature import choose_temperature, two_sided

RIDGE, SLOPE = 8.0, 0.7
PARTS, FEWEST = 5, 20
MOST = 1000
RIGHT = NormalDist().inv_cdf(0.95)
"""So many standard deviations off, a number counts as wrong."""


def learn_statement(prediction: Prediction, targets: Tensor) -> tuple[dict[str, Any], np.ndarray]:
    """Return fields of a Triage from held-out predictions of numbers or labels and their targets; and which predictions are right."""
    if isinstance(prediction, NumberPrediction):
        right = ((targets - prediction.mean).abs() <= RIGHT * prediction.std).all(1)
        return {"intervals": learn_intervals(prediction, targets)}, right.numpy()
    assert isinstance(prediction, LabelPrediction)
    logs = two_sided(prediction.probs).flatten(0, 1).log().numpy()
    right = (prediction.labels == (targets > 0.5)).all(1)
    return {"temperature": choose_temperature(logs, targets.long().flatten().numpy())}, right.numpy()


def learn_intervals(prediction: NumberPrediction, targets: Tensor) -> Intervals:
    """Return what held-out inputs and their targets [B, D] say about widths."""
    logs, distances = prediction.log_variance().cpu(), prediction.distances().cpu()
    errors = (targets.cpu() - prediction.mean.cpu()).abs()
    return Intervals(tuple(_width(*columns, distances) for columns in zip(logs.unbind(1), errors.unbind(1))))


def _width(logs: Tensor, errors: Tensor, distances: Tensor) -> Width:
    usual = logs.median()
    unit = logs.std(correction=0).clamp_min(1e-3) if len(logs) > 1 else torch.tensor(1.0)
    beyond = ((logs - usual) / unit).clamp(-LOGS, LOGS) * unit
    features = torch.cat([beyond[:, None], distances.clamp(-CUT, CUT)], dim=1)
    squares = (errors / (logs / 2).exp() * (beyond / 2).exp()).square()  # of errors in units of the usual deviation
    prior = torch.zeros(features.shape[1])
    prior[0] = SLOPE

    def learn(rows: Tensor) -> Tensor:
        if len(rows) < FEWEST:  # one number alone
            scale = (squares[rows] * (-features[rows] @ prior).exp()).mean().clamp_min(1e-12)
            return torch.cat([prior, scale.log()[None]])
        return most_probable(features[rows], squares[rows], RIDGE, prior)

    def ratios(rows: Tensor, learnt: Tensor) -> Tensor:
        return (squares[rows] * (-(features[rows] @ learnt[:-1] + learnt[-1])).exp()).sqrt()

    every = torch.arange(len(logs))
    parts = [every[every % PARTS == part] for part in range(min(PARTS, len(logs)))]
    apart = [ratios(part, learn(every[~torch.isin(every, part)])) for part in parts if len(logs) > PARTS]
    whole = learn(every)
    found = torch.cat(apart) if apart else ratios(every, whole)
    slope, *weights, offset = (float(f"{value:.7g}") for value in whole.tolist())
    return Width(offset, slope, float(usual), float(unit), tuple(weights), _kept(found.double().numpy()), len(logs))


def _kept(errors: np.ndarray) -> tuple[float, ...]:
    """Sorted errors, or 1,000 conformal quantiles of many."""
    ordered = np.sort(errors)
    if len(ordered) > MOST:
        places = np.ceil((len(ordered) + 1) * np.arange(1, MOST + 1) / MOST).astype(int) - 1
        ordered = ordered[places.clip(0, len(ordered) - 1)]
    return tuple(float(f"{value:.7g}") for value in ordered)
