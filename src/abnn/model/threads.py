"""Values that each thread has for itself, in modules that several threads run at once."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

import torch

Value = TypeVar("Value")


class PerThread(Generic[Value]):
    """A value that each thread has for itself.

    Values are in a dict by thread, since compiled code cannot follow ``threading.local``. Copies hold none: what a pass
    that failed in the middle left behind cannot be copied.
    """

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}

    def __reduce__(self) -> Any:
        return PerThread, ()

    def __len__(self) -> int:
        """Return how many threads have a value."""
        return len(self._values)

    def get(self) -> Value | None:
        """Return the value of this thread; None: it has none."""
        return self._values.get(current_thread()) if self._values else None

    def put(self, value: Value) -> None:
        self._values[current_thread()] = value

    def take(self) -> Value:
        """Return the value of this thread, which then has none."""
        return self._values.pop(current_thread())

    def clear(self) -> None:
        """Forget the value of this thread, if it has one."""
        self._values.pop(current_thread(), None)


def current_thread() -> int:
    """Return the id of this thread; 0 in compiled code, which cannot ask for it."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()
