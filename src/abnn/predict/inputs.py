"""Whether a batch is one that a model can take, or an error that says how it differs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain


class Expects(Protocol):
    """What a model says about its inputs."""

    input_shape: tuple[int, ...]
    input_dtype: torch.dtype


def check_inputs(model: Expects, x: Any, values: bool = True) -> Tensor:
    """Return a batch as a tensor, or raise an error that says how it differs from what the model was attached with.

    Without ``values``, only type and shape are looked at.
    """
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(np.ascontiguousarray(x))  # torch knows no negative strides
    if not isinstance(x, Tensor):
        raise InputError(explain("x", type(x).__name__, "a tensor or array with one batch of inputs, or a loader"))
    shape, expected = tuple(x.shape), model.input_shape
    accepted = f"shape (batch, {', '.join(map(str, expected))})"
    if x.ndim != len(expected) + 1:
        fix = "Add a batch dimension with x[None]." if shape == expected else "Check the rank."
        raise InputError(explain("x", f"shape {shape}", accepted, fix))
    if len(expected) > 0 and not _compatible(shape[1:], expected, model.input_dtype):
        raise InputError(explain("x", f"shape {shape}", accepted, "Check channels and the order of dimensions."))
    if len(x) == 0:
        raise InputError(explain("x", "an empty batch", "at least one input"))
    if x.is_floating_point() != model.input_dtype.is_floating_point:
        raise InputError(
            explain("x", f"dtype {x.dtype}", f"dtype {model.input_dtype}", "Scale and convert it as in training.")
        )
    if values:
        check_values(x)
    if x.dtype != model.input_dtype and not x.is_floating_point() and model.input_dtype != torch.bool:
        limits = torch.iinfo(model.input_dtype)
        if not limits.min <= int(x.min()) <= int(x.max()) <= limits.max:
            numbers = f"numbers from {int(x.min())} to {int(x.max())}"
            raise InputError(explain("x", numbers, f"what {model.input_dtype} can hold", "Convert it as in training."))
    return x.to(model.input_dtype)


def check_values(x: Tensor) -> None:
    """Raise an error for NaN and infinite values."""
    if x.is_floating_point() and not torch.isfinite(x).all():
        bad = (~torch.isfinite(x.flatten(1))).any(1).nonzero().flatten().tolist()
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise InputError(explain("x", f"NaN or infinite values in rows {rows}", "finite values", "Clean the input."))


class LateCheck:
    """A look at the values of a batch on CUDA that starts before the passes and is read once these have been started.

    The host then waits for the look alone, and is ready for the next batch while the device still computes this one.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        with torch.cuda.device(x.device), torch.no_grad():
            least_and_most = torch.stack(torch.aminmax(x))  # both are NaN if any value is
            self.range = torch.empty(2, dtype=x.dtype, device="cpu", pin_memory=True)
            self.range.copy_(least_and_most, non_blocking=True)
            self.done = torch.cuda.current_stream().record_event()

    def check(self) -> None:
        self.done.synchronize()
        if not torch.isfinite(self.range).all():
            check_values(self.x)


def _compatible(shape: tuple[int, ...], expected: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Rows of a table must match, and token numbers may be of any length. Images may have another size than the example, but
    not other channels. Of two dimensions one is that of channels or features, which the network knows best, and the other may
    have another length."""
    if len(expected) == 1:
        return shape == expected or not dtype.is_floating_point
    if len(expected) == 2:
        return shape[0] == expected[0] or shape[1] == expected[1]
    return shape[0] == expected[0]
