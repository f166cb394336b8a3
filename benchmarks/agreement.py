"""Whether what is timed gives the same results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import work
from torch import Tensor

from abnn.attached import Attached
from abnn.bayes import noise as draws


def disagreement(p: Tensor, q: Tensor) -> float:
    """max over draws and inputs of 1/2 sum_k |p_k - q_k|, the total variation between two predictions; 1 where one is NaN."""
    return float(0.5 * (p.float() - q.float()).abs().sum(-1).nan_to_num(2.0).max())


def check(p: Tensor, q: Tensor, most: float = 1e-4) -> dict[str, Any]:
    """How far two predictions lie apart, and how far rounding may put them apart."""
    value = disagreement(p, q)
    return {"value": value, "most": most, "agrees": value <= most}


def check_folding(model: Attached, x: Tensor, draws: int, most: float = 1e-4) -> dict[str, Any]:
    """Every draw of a prediction against a pass of its own; asked again and again, for later calls may replay earlier.

    ``spread`` is how far the first two draws lie apart: a mix-up of draws would show as a difference of that size.
    """
    for _ in range(4):
        samples = model.predict(x, draws=draws).samples
    spread = disagreement(samples[0], samples[1])
    return {**check(samples, work.one_by_one(model, x, draws)(), most), "spread": spread}


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Without TF32, whose rounding is as large as what some draws change."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def without_noise(model: Attached, x: Tensor) -> Tensor:
    """The prediction of the mean weights."""
    with torch.inference_mode(), draws.without_noise(model.layers):
        return model.draw_logits(x)[0].float().softmax(1)
