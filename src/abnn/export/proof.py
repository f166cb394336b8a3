"""Whether what was exported says what the model says: an export is proven equal, or it is not written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import AbnnError
from abnn.model.inputs import TIED, Batch, Inputs, main_input
from abnn.predict.prediction import NumberPrediction, Prediction

CLOSE = 1e-3
"""Of the spread of scores, and of scores beyond it: ten times what rounding makes of the scores of a network that knows little."""

COMPARED = "of those that they were compared on; nothing was written."


class ExportError(AbnnError, RuntimeError):
    """A model cannot be exported, or what was exported does not say the same."""


def trial_inputs(model: Any) -> Batch:
    """Return the model's example as it is and changed: far away, constant, noisy; of tokens in another order."""
    if not isinstance(model.example, Inputs):
        return _changed(model.example)
    return Inputs({name: _changed(each, name in TIED) for name, each in model.example.values.items()})


def longer(x: Batch) -> Batch | None:
    """Return sentences of another length; None for inputs that are no numbers of words."""
    first = main_input(x)
    if first.is_floating_point() or first.ndim != 2:
        return None
    values = x.values if isinstance(x, Inputs) else {"": x}
    doubled = {name: torch.cat([each, each], 1)[:, :-1] if each.ndim == 2 else each for name, each in values.items()}
    return Inputs(doubled) if isinstance(x, Inputs) else doubled[""]


def _changed(example: Tensor, tied: bool = False) -> Tensor:
    if tied:
        return torch.cat([example] * 10)
    if not example.is_floating_point():
        return torch.cat([example.roll(step, dims=-1) if example.ndim > 1 else example for step in range(10)])
    noise = torch.randn(6, *example.shape[1:], generator=torch.Generator().manual_seed(0)).to(example)
    size = example.abs().mean().clamp_min(1e-3)
    scales = torch.logspace(-3, 2, 6).view(-1, *[1] * (example.ndim - 1)).to(example)
    return torch.cat([example, 0 * example, -example, 10 * example, example + size * scales * noise])


def compare(prediction: Prediction, values: dict[str, np.ndarray], spread: float | None) -> None:
    """Raise an error where what was exported says something else than the model, beyond rounding."""
    score, own = prediction.score.double().numpy(), values["score"].astype(np.float64)
    unit = np.maximum(1.0 if spread is None else spread, np.abs(score))
    if prediction.levels is not None:  # where torch has NaN and an infinite score, onnxruntime may have a large one
        lost = np.isinf(score) & (own > prediction.levels[:, 1].double().numpy())
        score, own = np.where(lost, np.inf, score), np.where(lost, np.inf, own)
    with np.errstate(invalid="ignore"):
        off = np.where(score == own, 0.0, np.abs(score - own) / unit)
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    if not off[worst] <= CLOSE:
        actual = f"a score of {own[worst]:.7g} where the model gives {score[worst]:.7g}, for input {worst}"
        raise ExportError(f"the exported model gives {actual} {COMPARED}")
    other = np.zeros(len(score), bool)
    number = np.isfinite(score)  # where the network overflows, both reject, and what it says means nothing
    if prediction.distribution == "classes":
        top = prediction.probs.topk(2, dim=-1).values.numpy()
        other = (prediction.label.numpy() != values["label"]) & (top[:, 0] - top[:, 1] > CLOSE) & number
    if "probs" in values:
        other |= (np.abs(prediction.probs.numpy() - values["probs"]) > CLOSE).any(1) & number
    elif isinstance(prediction, NumberPrediction):
        mean = prediction.mean.numpy()
        size = np.maximum(np.abs(mean), np.abs(mean[number]).mean() if number.any() else 1.0)
        other |= (np.abs(mean - values["mean"]) > CLOSE * size).any(1) & number
    if prediction.levels is not None:
        levels = prediction.levels.double().numpy()
        clear = (np.abs(score[:, None] - levels) > CLOSE * unit[:, None]).all(1)
        verdicts = 2 - (score[:, None] <= levels).sum(1)
        other |= clear & (verdicts != values["verdict"])
    if other.any():
        rows = np.flatnonzero(other)[:5].tolist()
        raise ExportError(f"predictions or verdicts differ for inputs {rows} {COMPARED}")
