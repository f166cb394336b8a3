"""Constants that follow from the buffers of a module: made once, and again when a buffer has changed or lies elsewhere.

A prediction would otherwise join, convert and square the same buffers each time, a kernel for every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Values = TypeVar("Values", bound=NamedTuple)
Versions = list[tuple[Tensor, int, int]]
"""Each source, how often it was written to, and where it lies: a parameter that is moved stays the same object."""


class Derived(Generic[Values]):
    """A tuple of tensors, and the buffers that it was made from.

    On CUDA the tensors stay where they lie and get other values: graphs read them there. A graph runs none of this, so whoever replays one asks
    for the values before. What is compiled or exported takes them as they are.
    """

    def __init__(self) -> None:
        self._held: tuple[Values, Versions] | None = None  # one assignment: other threads see both or neither

    def __reduce__(self) -> Any:  # a copy of the module has buffers of its own
        return Derived, ()

    def get(self, sources: Sequence[Tensor], make: Callable[[], Values]) -> Values:
        """Return what ``make`` returns for these buffers."""
        held = self._held
        if held is not None and (torch.compiler.is_compiling() or _are_current(held[1], sources)):
            return held[0]
        # Before they are read: what is written meanwhile has a later version. Inference tensors do not count how often they were written to.
        countable = not any(each.is_inference() for each in sources)
        versions = [(each, each._version, _place(each)) for each in sources] if countable else []
        with torch.inference_mode(False), torch.no_grad():
            made = _apart(make(), sources)
            if held is not None and _lie_alike(held[0], made):
                for old, new in zip(held[0], made):
                    old.copy_(new)
                made = held[0]
        self._held = made, versions
        return made


def _apart(made: Values, sources: Sequence[Tensor]) -> Values:
    """Return copies of values that share memory with a buffer: writing them would count as a change of it. Traces write none."""
    if torch.compiler.is_compiling():
        return made
    memory = {each.untyped_storage().data_ptr() for each in sources}
    return made._make(each.clone() if each.untyped_storage().data_ptr() in memory else each for each in made)


def _are_current(versions: Versions, sources: Sequence[Tensor]) -> bool:
    """Whether these are the buffers that values were made from, and none was written to since."""
    if len(sources) != len(versions):
        return False
    for each, (before, version, place) in zip(sources, versions):  # with every prediction: no generator
        if each is not before or each._version != version or each.data_ptr() != place:
            return False
    return True


def _place(source: Tensor) -> int:
    """Where a tensor lies in memory; those of a trace lie nowhere."""
    return 0 if torch.compiler.is_compiling() else source.data_ptr()


def _lie_alike(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """Whether all lie on one CUDA device in one form. Elsewhere other threads may read what is there."""
    return all(
        one.is_cuda and (one.device, one.dtype, one.shape) == (two.device, two.dtype, two.shape)
        for one, two in zip(old, new)
    )
