"""Batches of networks with one input tensor or several.

A batch is a tensor, or :class:`Inputs` for a network that takes several tensors: a tokenizer's output, a dict or a
tuple. Row n of each tensor belongs to input n. :class:`Inputs` has the length, shape, type and device of its main
tensor and can be sliced and moved like one, so that all other code can pass on ``x``, whatever it is. :func:`call`
calls a network with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from abnn.errors import InputError, explain

MAIN = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
"""Names of the main input, from which outliers are made: the first that occurs, else the first input."""
MASK = "attention_mask"
TIED = (MASK, "token_type_ids", "position_ids")
"""Names of inputs with a number for each position of the main input."""
LABELS = ("labels", "label")

Name = int | str


class Inputs:
    """A batch of several tensors, by their names or positions in the network's call.

    values  tensors with a row for each input. In a call of a model there may be other values, which are passed on
            unchanged
    """

    __slots__ = ("main", "values")

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values: dict[Name, Any] = dict(values)
        tensors = [name for name, value in self.values.items() if isinstance(value, Tensor)]
        self.main: Name = next((name for name in (*MAIN, *tensors) if name in tensors), 0)

    @property
    def first(self) -> Tensor:
        """The main input: the tokens, the image, or the first tensor."""
        return self.values[self.main]

    @property
    def mask(self) -> Tensor | None:
        """True where a position is no padding, [B, L]; None without a mask."""
        mask = self.values.get(MASK)
        return mask != 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None

    @property
    def shape(self) -> torch.Size:
        return self.first.shape

    @property
    def ndim(self) -> int:
        return self.first.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.first.dtype

    @property
    def device(self) -> torch.device:
        return self.first.device

    def is_floating_point(self) -> bool:
        return self.first.is_floating_point()

    def is_inference(self) -> bool:
        return any(each.is_inference() for each in self.tensors())

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:
        return self.first.new_zeros(*size, **options)

    def tensors(self) -> list[Tensor]:
        """Return the tensors with a row for each input."""
        return [value for value in self.values.values() if self._has_rows(value)]

    def _has_rows(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.shape[:1] == self.first.shape[:1]

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Return a copy in which ``change`` is applied to every tensor with a row for each input."""
        return Inputs({name: change(each) if self._has_rows(each) else each for name, each in self.values.items()})

    def replace(self, **values: Tensor | None) -> Inputs:
        """Return a copy with another main input (``first``) or mask (``mask``, in the type of the old one)."""
        result = dict(self.values)
        if values.get("first") is not None:
            result[self.main] = values["first"]
        if (mask := values.get("mask")) is not None:
            result[MASK] = mask.to(self.values[MASK].dtype)
        return Inputs(result)

    def to(self, *place: Any, **options: Any) -> Inputs:
        """Return a copy on another device. Do not pass a type: those of the tensors differ."""
        return self.map(lambda each: each.to(*place, **options))

    def clone(self) -> Inputs:
        return self.map(torch.clone)

    def split(self, size: int) -> list[Inputs]:
        return [self[start : start + size] for start in range(0, len(self), size)]

    def __getitem__(self, rows: Any) -> Inputs:
        return self.map(lambda each: each[rows])

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        return f"Inputs({', '.join(f'{name}: {_form(value)}' for name, value in self.values.items())})"


Batch = Tensor | Inputs
Forms = dict[Name, tuple[tuple[int, ...], torch.dtype]]
"""Shape without the batch, and type, of every input by its name or position."""


def forms_of(x: Batch) -> Forms | None:
    """Return the forms of several inputs; None for one tensor."""
    if not isinstance(x, Inputs):
        return None
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in x.values.items()}


def call(network: nn.Module | Callable[..., Any], x: Batch) -> Any:
    """Return the network's output for a batch."""
    if not isinstance(x, Inputs):
        return network(x)
    positional = [value for name, value in x.values.items() if isinstance(name, int)]
    return network(*positional, **{name: value for name, value in x.values.items() if isinstance(name, str)})


def main_input(x: Batch) -> Tensor:
    """Return the input from which outliers are made: of several, :attr:`Inputs.first`."""
    return x.first if isinstance(x, Inputs) else x


def mask_of(x: Batch, padding: int | None) -> Tensor | None:
    """Return true where a token is no padding, [B, L]: as the batch's mask says, else by the token ``padding``; None
    without both."""
    if isinstance(x, Inputs) and x.mask is not None:
        return x.mask
    return None if padding is None else main_input(x) != padding


def rows_of(x: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return a batch in which ``change`` is applied to all tensors with rows."""
    return x.map(change) if isinstance(x, Inputs) else change(x)


def join(batches: list[Any]) -> Any:
    """Return several batches of one form, concatenated."""
    if not isinstance(batches[0], Inputs):
        return torch.cat(batches)
    names = batches[0].values
    return Inputs({name: torch.cat([each.values[name] for each in batches]) for name in names})


def numbers_of(x: Batch) -> int:
    """Return how many numbers one input has."""
    return sum(each[0].numel() for each in (x.tensors() if isinstance(x, Inputs) else [x]))


def measured_inputs(x: Batch) -> Iterator[tuple[str, Tensor, str]]:
    """Yield the floating-point inputs (not masks): the name of its place, the tensor, its layout."""
    if not isinstance(x, Inputs):
        if x.is_floating_point():
            yield "input", x, "channels"
        return
    for name, value in x.values.items():
        if name != MASK and isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
            layout = "tokens" if value.ndim == 3 and x.mask is not None else "channels"
            yield ("input" if name == x.main else f"input {name}"), value, layout


def pack(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Batch, Any]:
    """Return the batch in the arguments of a call, and the labels, or None.

    A single dict counts as keyword arguments.
    """
    if len(args) == 1 and not kwargs and isinstance(args[0], Inputs | Tensor):
        return args[0], None
    if len(args) == 1 and isinstance(args[0], Mapping):
        kwargs, args = {**args[0], **kwargs}, ()
    if not any(isinstance(each, Tensor) for each in (*args, *kwargs.values())):
        actual = ", ".join(_form(each) for each in (*args, *kwargs.values())) or "nothing"
        raise InputError(explain("x", actual, "a batch of inputs as tensors, by place or by name"))
    labels = next((kwargs[name] for name in LABELS if kwargs.get(name) is not None), None)
    named = {name: value for name, value in kwargs.items() if name not in LABELS and value is not None}
    return Inputs({**dict(enumerate(args)), **named}), labels


def read(batch: Any, argument: str = "x") -> tuple[Any, Any]:
    """Return the inputs and the labels of a dict, tuple or list. Any other batch comes back unchanged, without labels.

    It raises an error for a batch whose values are not tensors of one length.
    """
    if isinstance(batch, Mapping):
        x, labels = pack((), {str(name): _tensor(argument, name, value) for name, value in batch.items()})
    elif isinstance(batch, tuple | list):
        x, labels = Inputs({index: _tensor(argument, index, value) for index, value in enumerate(batch)}), None
    else:
        return batch, None
    assert isinstance(x, Inputs)
    if not x.values:
        raise InputError(explain(argument, "no inputs", "one tensor or more"))
    for name, value in x.values.items():
        if value.ndim < 1 or len(value) != len(x):
            actual = f"{name!r} of shape {tuple(value.shape)} beside {x.main!r} of shape {tuple(x.shape)}"
            raise InputError(explain(argument, actual, f"a row in each for all {len(x)} inputs"))
    return x, labels


def check_tied(x: Inputs, argument: str = "x") -> None:
    """Raise an error for a mask, or the like, without exactly one number for each position of the main input."""
    for name in TIED:
        value = x.values.get(name)
        if (
            value is not None
            and name != x.main
            and value.ndim == 2
            and x.ndim in (2, 3)
            and value.shape[1] != x.shape[1]
        ):
            actual = f"{name!r} of shape {tuple(value.shape)} beside {x.main!r} of shape {tuple(x.shape)}"
            fix = "Pad both in the same way."
            raise InputError(explain(argument, actual, f"{name!r} of shape {tuple(x.shape[:2])}", fix))


def _tensor(argument: str, name: Name, value: Any) -> Any:
    """Return a tensor, None or an array as a tensor or None; raise an error for anything else."""
    if value is None or isinstance(value, Tensor):
        return value
    if hasattr(value, "__array__") and getattr(value, "dtype", None) is not None and value.dtype.kind in "biuf":
        return torch.from_numpy(np.array(value, order="C"))  # also a column of a table
    actual = f"{type(value).__name__} as {name!r}"
    fix = 'Tokenizers give tensors with return_tensors="pt" and padding=True; leave out what the network does not take.'
    raise InputError(explain(argument, actual, "tensors with a row for each input", fix))


def _form(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
