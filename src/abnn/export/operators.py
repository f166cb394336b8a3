"""Operators of torch whose usual translation to ONNX loses digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18 as op


def expm1(x: Any) -> Any:
    """e^x - 1 = 2 t / (1 - t) with t = tanh(x / 2), where x is small: the difference itself would leave nothing of small x."""
    one = op.CastLike(op.Constant(value_float=1.0), x)
    two = op.CastLike(op.Constant(value_float=2.0), x)
    t = op.Tanh(op.Div(x, two))
    small = op.Div(op.Mul(two, t), op.Sub(one, t))
    return op.Where(op.Less(op.Abs(x), one), small, op.Sub(op.Exp(x), one))


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return what torch.onnx.export takes as custom_translation_table."""
    return {torch.ops.aten.expm1.default: expm1}
