"""A cache of constants that follow from the buffers of a module.

They are computed once, and again when a buffer was written to or moved. Without the cache every prediction would
concatenate, convert and square the same buffers, one kernel for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Values = TypeVar("Values", bound=NamedTuple)
Versions = list[tuple[Tensor, int, int]]
"""Each source, its version (how often it was written to) and its address. A parameter that is moved stays the same
object, so the address is needed too."""


class Derived(Generic[Values]):
    """A cached tuple of tensors, with the buffers that it was computed from.

    On CUDA the tensors keep their addresses and get new values, because CUDA graphs read them there. A graph runs no
    Python, so call :meth:`get` before replaying one. What is compiled or exported takes the cached tensors as they are.
    """

    def __init__(self) -> None:
        self._cache: tuple[Values, Versions] | None = None  # one assignment: other threads see both or neither

    def __reduce__(self) -> Any:  # a copy of the module has buffers of its own
        return Derived, ()

    def get(self, sources: Sequence[Tensor], make: Callable[[], Values]) -> Values:
        """Return the cached tensors, or those of ``make`` if ``sources`` have changed since."""
        cache = self._cache
        if cache is not None and (torch.compiler.is_compiling() or _are_current(cache[1], sources)):
            return cache[0]
        # Versions are taken before the values are read: a write in the meantime then has a later version.
        # Inference tensors do not count writes, so nothing made from them is taken for current.
        countable = not any(each.is_inference() for each in sources)
        versions = [(each, each._version, _address(each)) for each in sources] if countable else []
        with torch.inference_mode(False), torch.no_grad():
            values = _without_aliases(make(), sources)
            if cache is not None and _lie_alike(cache[0], values):
                for old, new in zip(cache[0], values):
                    old.copy_(new)
                values = cache[0]
        self._cache = values, versions
        return values


def _without_aliases(values: Values, sources: Sequence[Tensor]) -> Values:
    """Return the values, with copies of those that share memory with a source.

    Writing to a shared one would count as a change of the source. A trace writes to none, so it needs no copies.
    """
    if torch.compiler.is_compiling():
        return values
    memory = {each.untyped_storage().data_ptr() for each in sources}
    return values._make(each.clone() if each.untyped_storage().data_ptr() in memory else each for each in values)


def _are_current(versions: Versions, sources: Sequence[Tensor]) -> bool:
    """Return whether these are the same buffers as before, and none was written to or moved since."""
    if len(sources) != len(versions):
        return False
    for each, (before, version, address) in zip(sources, versions):  # a loop: this runs with every prediction
        if each is not before or each._version != version or each.data_ptr() != address:
            return False
    return True


def _address(source: Tensor) -> int:
    """Return where a tensor lies in memory; 0 in a trace, whose tensors lie nowhere."""
    return 0 if torch.compiler.is_compiling() else source.data_ptr()


def _lie_alike(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """Return whether all lie on one CUDA device and have the same types and shapes.

    On other devices it is False: there other threads may be reading the old values.
    """
    return all(
        one.is_cuda and (one.device, one.dtype, one.shape) == (two.device, two.dtype, two.shape)
        for one, two in zip(old, new)
    )
