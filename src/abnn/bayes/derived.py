"""Constants that follow from the buffers of a module: made once, and again when a buffer has changed.

A prediction would otherwise join, convert and square the same buffers each time, a kernel for every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Values = TypeVar("Values", bound=NamedTuple)


class Derived(Generic[Values]):
    """A tuple of tensors, and the buffers that it was made from.

    On CUDA the tensors stay where they lie and get other values: graphs read them there. A graph runs none of this, so whoever replays one asks
    for the values before. What is compiled or exported takes them as they are.
    """

    def __init__(self) -> None:
        self._values: Values | None = None
        self._sources: list[tuple[Tensor, int]] = []

    def __reduce__(self) -> Any:  # a copy of the module has buffers of its own
        return Derived, ()

    def get(self, sources: Sequence[Tensor], make: Callable[[], Values]) -> Values:
        """Return what ``make`` returns for these buffers."""
        if self._values is None or not (torch.compiler.is_compiling() or self._is_new(sources)):
            with torch.inference_mode(False), torch.no_grad():
                made = make()
                if self._values is None or not _same_place(self._values, made):
                    self._values = made
                else:
                    for old, new in zip(self._values, made):
                        old.copy_(new)
            counted = not any(
                each.is_inference() for each in sources
            )  # these do not count how often they were written to
            self._sources = [(each, each._version) for each in sources] if counted else []
        return self._values

    def _is_new(self, sources: Sequence[Tensor]) -> bool:
        if len(sources) != len(self._sources):
            return False
        for each, (before, version) in zip(sources, self._sources):  # with every prediction: no generator
            if each is not before or each._version != version:
                return False
        return True


def _same_place(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """Whether all lie on one CUDA device in one form. Elsewhere other threads may read what is there."""
    return all(
        one.is_cuda and (one.device, one.dtype, one.shape) == (two.device, two.dtype, two.shape)
        for one, two in zip(old, new)
    )
