"""Whether a batch is one that a model can take, or an error that says how it differs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.model.blocks import summary
from abnn.model.inputs import TIED, Forms, Inputs, Name, check_tied, main_input, read


def check_inputs(model: Any, x: Any, values: bool = True) -> Any:
    """Return a batch as a tensor, or as :class:`Inputs` for a model of several; an error says how it differs from the example.

    A model has ``input_shape`` and ``input_dtype``, and ``input_forms`` where it takes several inputs.

    Without ``values``, only type and shape are looked at.
    """
    forms: Forms | None = getattr(model, "input_forms", None)
    if forms is None:
        return _check_tensor("x", x, model.input_shape, model.input_dtype, values)
    if isinstance(x, Tensor | np.ndarray) and len(forms) == 1:
        x = Inputs({next(iter(forms)): torch.as_tensor(x)})
    batch = x if isinstance(x, Inputs) else read(x)[0]
    given = {str(name): value for name, value in batch.values.items()} if isinstance(batch, Inputs) else {}
    if given.keys() != set(map(str, forms)):  # places are names as well: JSON and MLflow have no others
        actual = list(batch.values) if given else type(batch).__name__
        fix = "Attach with an example of these inputs, or leave out what is new."
        raise InputError(explain("x", f"inputs {actual}", f"inputs {list(forms)}, as in the example", fix))
    check_tied(batch)
    return Inputs({name: _check_tensor(name, given[str(name)], *form, values) for name, form in forms.items()})


def split_batch(model: Any, batch: Any) -> tuple[Any, Any]:
    """Return inputs and labels of what a loader yields; labels are None where there are none.

    A batch is inputs, a pair (inputs, labels), a dict with "labels" in it, or several inputs one after the other, and labels.
    """
    forms: Forms | None = getattr(model, "input_forms", None)
    if isinstance(batch, Mapping):
        return read(batch) if forms else (batch, None)
    if not isinstance(batch, tuple | list) or not batch:
        return batch, None
    apart = isinstance(batch[0], Mapping | tuple | list | Inputs)
    if not forms or apart or len(forms) == 1:
        return batch[0], batch[1] if len(batch) > 1 else None
    return (batch[:-1], batch[-1]) if len(batch) == len(forms) + 1 else (batch, None)


def _check_tensor(argument: Name, x: Any, expected: tuple[int, ...], dtype: torch.dtype, values: bool) -> Tensor:
    name = argument if argument == "x" else f"x[{argument!r}]"
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "biufc":
            fix = 'Convert it, with x.astype("float32") say; columns of texts have to become numbers first.'
            raise InputError(explain(name, f"an array of type {x.dtype}", "an array of numbers", fix))
        x = torch.from_numpy(np.require(x, requirements=["C", "W"]))  # no negative strides, and memory to write to
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
        check_values(x, name)  # as the network sees them: what is finite in float64 may be infinite here
    return x


def without_embedding(x: Any, error: IndexError) -> InputError:
    """Return the error about a batch of tokens on which the network failed with ``error``."""
    tokens = main_input(x)
    numbers = f"whole numbers from {int(tokens.min())} to {int(tokens.max())} in shape {tuple(tokens.shape)}"
    accepted = "tokens that the network has an embedding for, and no more of them than it takes"
    fix = "Make them with the tokenizer that the network was trained with."
    return InputError(explain("x", f"{numbers}, on which the network fails: {summary(error)}", accepted, fix))


def _how_to_convert(x: Any) -> str:
    """Return how to make a batch of what is none; "" where that cannot be said."""
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
    # Both are NaN if any value is. One look at all values where nothing is wrong.
    if not all(math.isfinite(each) for each in torch.stack(torch.aminmax(x)).tolist()):
        bad = (~torch.isfinite(x.flatten(1))).any(1).nonzero().flatten().tolist()
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        actual = f"NaN or infinite values in rows {rows} of the batch"
        raise InputError(explain(name, actual, "finite values", "Clean the input."))


class LateCheck:
    """A look at the values of a batch on CUDA, on a stream of its own, once the passes have been started.

    The host waits for the look alone, and is ready for the next batch while the device still computes this one.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.ready = torch.cuda.current_stream(x.device).record_event()

    def check(self) -> None:
        """Raise an error for NaN and infinite values."""
        with torch.cuda.stream(_beside(self.x.device)), torch.no_grad():
            self.ready.wait()
            check_values(self.x)


@functools.cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _compatible(shape: tuple[int, ...], expected: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Rows of a table must match, and token numbers may be of any length. Images may have another size than the example, but
    not other channels. Of two dimensions one is that of channels or features, which the network knows best, and the other may
    have another length."""
    if len(expected) == 1:
        return shape == expected or not dtype.is_floating_point
    if len(expected) == 2:
        return shape[0] == expected[0] or shape[1] == expected[1]
    return shape[0] == expected[0]
