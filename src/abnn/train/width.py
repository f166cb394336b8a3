"""Width by search: the widest posterior of bounded attachments that the data allow.

All weights of a layer get the same sigma: ``width`` times the root mean square of their means. ``width`` is the largest
one with which draws predict held-out data nearly as well as mean weights do: the mean log-loss grows by at most
``tolerance``. Draws then disagree because the data allow it, not because sigma was set (training-free Bayesianisation
of adapters, Shi et al. 2024, arXiv:2412.05723). Predictions use draws on request: ``model.predict(x, draws=10)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.layers import MeanField, inverse_softplus
from abnn.errors import InputError, explain
from abnn.model.network import AttachedNetwork
from abnn.predict import predict
from abnn.train.batches import check_batch
from abnn.train.loss import check_model

NARROWEST, WIDEST, HALVINGS = 1e-3, 10.0, 10
DRAWS = 4


@torch.no_grad()
def widen(model: AttachedNetwork, loader: Iterable[Any], tolerance: float = 0.01) -> float:
    """Set the widest posterior that held-out data allow, and return its width, in units of a layer's weights.

    Thresholds of predictions with draws are removed, because they were chosen with other draws.

    loader     yields held-out (x, y) every time it is iterated
    tolerance  by how much the mean log-loss, in nats, may grow
    """
    check_model(model)
    if model.spec.kind != "bounded":
        raise InputError(
            explain("model", f"attachments of kind {model.spec.kind!r}", "bounded ones, which learn no width")
        )
    if model.task.distribution != "classes":
        raise InputError(explain("model", f"one for {model.task.name}", "one for classification"))
    batches = [check_batch(model, batch) for batch in loader]
    if not batches:
        raise InputError(explain("loader", "a loader without batches", "held-out (x, y) batches"))
    limit = _log_loss(model, batches, 0) + tolerance
    low, high = math.log(NARROWEST), math.log(WIDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        _set_width(model.layers, math.exp(middle))
        low, high = (middle, high) if _log_loss(model, batches, DRAWS) <= limit else (low, middle)
    _set_width(model.layers, math.exp(low))
    model.resample(0 if model.mean_weights else model.draws, seed=model.seed)
    if model.triage is not None and model.triage.draws:
        model.triage = None
    return math.exp(low)


def _set_width(layers: list[MeanField], width: float) -> None:
    for layer in layers:
        for mean, rho, _ in layer.parts:
            rho.fill_(inverse_softplus(max(1e-8, width * float(mean.square().mean().sqrt()))))


def _log_loss(model: AttachedNetwork, batches: list[tuple[Any, Tensor]], draws: int) -> float:
    """Return the mean of -ln p(y), with p the mean prediction of the draws, without the plain network."""
    total, count = 0.0, 0
    for x, y in batches:
        probs = predict(model, x, draws=draws, score="entropy", replay=False).samples[1:].mean(0)
        total -= float(probs.gather(1, y.to(probs.device)[:, None]).clamp_min(1e-12).log().sum())
        count += len(y)
    return total / count
