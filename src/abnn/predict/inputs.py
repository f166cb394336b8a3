"""Checks that a model can take a batch; errors say how the batch differs from the example."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.model.calls import summary
from abnn.model.inputs import TIED, Batch, Forms, Inputs, Name, check_tied, main_input, measured_inputs, read


def check_inputs(model: Any, x: Any, values: bool = True) -> Any:
    """Return a batch as a tensor, or as :class:`Inputs` for a model of several inputs.

    It raises an error that says how the batch differs from the example.

    model   has ``input_shape`` and ``input_dtype``, and ``input_forms`` if it takes several inputs
    values  whether values are checked; else only types and shapes are
    """
    forms: Forms | None = getattr(model, "input_forms", None)
    if forms is None:
        return _check_tensor("x", x, model.input_shape, model.input_dtype, values)
    if isinstance(x, Tensor | np.ndarray) and len(forms) == 1:
        x = Inputs({next(iter(forms)): torch.as_tensor(x)})
    batch = x if isinstance(x, Inputs) else read(x)[0]
    tensors = {str(name): value for name, value in batch.values.items()} if isinstance(batch, Inputs) else {}
    if tensors.keys() != set(map(str, forms)):  # positions as texts: JSON and MLflow have no other names
        actual = list(batch.values) if tensors else type(batch).__name__
        fix = "Attach with an example of these inputs, or leave out what is new."
        raise InputError(explain("x", f"inputs {actual}", f"inputs {list(forms)}, as in the example", fix))
    check_tied(batch)
    return Inputs({name: _check_tensor(name, tensors[str(name)], *form, values) for name, form in forms.items()})


def check_channels(model: Any, x: Batch) -> None:
    """Raise an error for inputs with other channels than the example, for the learnt score reads each of them.

    Networks may take them: of sequences [B, T, D] the second dimension counts as the channels, and networks take any T.
    """
    if getattr(model, "closed_form", None) is None:
        return
    for (name, value, layout), (_, like, _) in zip(measured_inputs(x), measured_inputs(model.example)):
        axis, place = (-1, "last") if "tokens" in layout else (1, "second")
        if value.shape[axis] != like.shape[axis]:
            actual = f"shape {tuple(value.shape)}"
            accepted = f"{like.shape[axis]} in the {place} dimension, as in the example: the score reads each of them"
            fix = "Pad or cut to that. Time may vary where a network takes [batch, features, time]."
            raise InputError(explain("x" if name == "input" else name, actual, accepted, fix))


def split_batch(model: Any, batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a loader's batch; labels are None if there are none.

    batch  inputs; a pair (inputs, labels); a dict with "labels"; or several inputs in a row, then labels
    """
    forms: Forms | None = getattr(model, "input_forms", None)
    if isinstance(batch, Mapping):
        return read(batch) if forms else (batch, None)
    if not isinstance(batch, tuple | list) or not batch:
        return batch, None
    is_grouped = isinstance(batch[0], Mapping | tuple | list | Inputs)
    if not forms or is_grouped or len(forms) == 1:
        return batch[0], batch[1] if len(batch) > 1 else None
    return (batch[:-1], batch[-1]) if len(batch) == len(forms) + 1 else (batch, None)


def _check_tensor(argument: Name, x: Any, expected: tuple[int, ...], dtype: torch.dtype, values: bool) -> Tensor:
    """Return one input as a tensor of type ``dtype``, or raise an error."""
    name = argument if argument == "x" else f"x[{argument!r}]"
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "biufc":
            fix = 'Convert it, with x.astype("float32") say; columns of texts have to become numbers first.'
            raise InputError(explain(name, f"an array of type {x.dtype}", "an array of numbers", fix))
        x = torch.from_numpy(np.require(x, requirements=["C", "W"]))  # torch needs positive strides and writable memory
    if not isinstance(x, Tensor):
        accepted = "a tensor or array with one batch of inputs, or a loader"
        raise InputError(explain("x", type(x).__name__, accepted, _how_to_convert(x)))
    if x.layout != torch.strided:
        raise InputError(explain(name, f"a tensor of layout {x.layout}", "a dense tensor", "Pass x.to_dense()."))
    shape = tuple(x.shape)
    accepted = f"shape (batch, {', '.join(map(str, expected))})"
    if x.ndim != len(expected) + 1:
        fix = "Add a batch dimension with x[None]." if shape == expected else "Check the rank."
        raise InputError(explain(name, f"shape {shape}", accepted, fix))
    if len(expected) > 0 and argument not in TIED and not _compatible(shape[1:], expected, dtype):
        raise InputError(explain(name, f"shape {shape}", accepted, "Check channels and the order of dimensions."))
    if len(x) == 0:
        raise InputError(explain(name, "an empty batch", "at least one input"))
    if x.is_floating_point() != dtype.is_floating_point:
        raise InputError(explain(name, f"dtype {x.dtype}", f"dtype {dtype}", "Scale and convert it as in training."))
    if x.dtype != dtype and not x.is_floating_point() and dtype != torch.bool:
        limits = torch.iinfo(dtype)
        if not limits.min <= int(x.min()) <= int(x.max()) <= limits.max:
            numbers = f"numbers from {int(x.min())} to {int(x.max())}"
            raise InputError(explain(name, numbers, f"what {dtype} can hold", "Convert it as in training."))
    x = x.to(dtype)
    if values:
        check_values(x, name)  # after the conversion: a finite float64 may be infinite in float32
    return x


def without_embedding(x: Any, error: IndexError) -> InputError:
    """Return the error to raise for a batch of tokens on which the network failed with ``error``."""
    tokens = main_input(x)
    numbers = f"whole numbers from {int(tokens.min())} to {int(tokens.max())} in shape {tuple(tokens.shape)}"
    accepted = "tokens that the network has an embedding for, and no more of them than it takes"
    fix = "Make them with the tokenizer that the network was trained with."
    return InputError(explain("x", f"{numbers}, on which the network fails: {summary(error)}", accepted, fix))


def _how_to_convert(x: Any) -> str:
    """Return advice for converting a value to a batch; "" if there is none."""
    if isinstance(x, Mapping | Inputs):
        return "For a network of several inputs, attach with such an example."
    if hasattr(x, "to_numpy"):  # a table of pandas or polars
        return "Pass x.to_numpy()."
    if isinstance(x, str | bytes):
        return "Read a file, or turn a text into tokens, as in training."
    return "Pass torch.tensor(x), of the whole batch." if isinstance(x, int | float) else ""


def check_values(x: Tensor, name: str = "x") -> None:
    """Raise an error for NaN and infinite values."""
    if not x.is_floating_point() or x.numel() == 0:
        return
    # aminmax returns NaN if any value is NaN, so one look at all values is enough if all are finite.
    if not all(math.isfinite(each) for each in torch.stack(torch.aminmax(x)).tolist()):
        bad = (~torch.isfinite(x.flatten(1))).any(1).nonzero().flatten().tolist()
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        actual = f"NaN or infinite values in rows {rows} of the batch"
        raise InputError(explain(name, actual, "finite values", "Clean the input."))


class LateCheck:
    """Checks the values of a batch on CUDA, on a stream of its own, after the passes were started.

    The host waits for the check alone. It is ready for the next batch while the device still computes this one.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.ready = torch.cuda.current_stream(x.device).record_event()

    def check(self) -> None:
        """Raise an error for NaN and infinite values."""
        with torch.cuda.stream(_check_stream(self.x.device)), torch.no_grad():
            self.ready.wait()
            check_values(self.x)


@functools.cache
def _check_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _compatible(shape: tuple[int, ...], expected: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Return whether inputs of this shape can be expected to work.

    Rows of a table must have the same length; sentences of tokens may have any. Images may have another size than the
    example, but not other channels. Of two dimensions one is that of channels or features. Only the network knows
    which, so the other one may differ.
    """
    if len(expected) == 1:
        return shape == expected or not dtype.is_floating_point
    if len(expected) == 2:
        return shape[0] == expected[0] or shape[1] == expected[1]
    return shape[0] == expected[0]
