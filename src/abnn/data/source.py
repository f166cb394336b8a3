"""What every source of data offers, and reading it in batches while the model is busy with the one before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from abnn.data.form import InputForm
from abnn.errors import InputError, explain

Item = TypeVar("Item")


class Chunk(NamedTuple):
    """Some inputs of a source."""

    x: Any  # the inputs that could be read, in the form that the model takes
    rows: np.ndarray  # their places in the source, int64
    last: int  # the place after this chunk
    unreadable: tuple[str, ...] = ()  # "where: why" for the inputs that could not be read


class Source(ABC):
    """Inputs in a fixed order, read a part at a time, so that memory does not grow with their number."""

    name: str  # what to call it, unless the user says otherwise
    kind: str  # "images" or "features"
    fingerprint: str  # changes when the data may have changed; cheap to compute, so not a hash of all the data
    labels: np.ndarray  # int64, one for each input, -1 where it belongs to no class
    class_names: tuple[str, ...] | None = None  # what the labels mean, if it is known
    notes: tuple[str, ...] = ()  # what a reader of the results should know

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        """Return the inputs at some places, at least one, in ascending order."""

    def read(self, first: int, last: int, form: InputForm) -> Chunk:
        """Return the inputs from place ``first`` up to ``last``, without it."""
        return self.take(np.arange(first, last), form)

    def check(self, form: InputForm) -> None:
        """Raise an error if a model with inputs of this form cannot be shown this source."""
        if self.kind != form.kind:
            words = {"images": "pictures", "features": "rows of features"}
            actual = f"{words[self.kind]}, for a model with inputs of shape {form.shape}"
            fix = "A table is an .npz with `features`, pictures are a folder or an .npz with `images`."
            raise InputError(explain(f"source {self.name!r}", actual, words[form.kind], fix))

    def chunks(self, form: InputForm, size: int, first: int = 0) -> Iterator[Chunk]:
        """Return all inputs from place ``first`` on; the next chunk is read while the caller works on this one."""
        return ahead(self.read(start, min(start + size, len(self)), form) for start in range(first, len(self), size))


def ahead(items: Iterator[Item], reader: ThreadPoolExecutor | None = None) -> Iterator[Item]:
    """Yield all items; a thread makes the next one while the caller works on this one.

    reader  has the thread; None: one that ends with the items
    """
    if reader is None:
        with ThreadPoolExecutor(1, "abnn-read") as own:
            yield from ahead(items, own)
        return
    following = reader.submit(next, items, None)
    while (item := following.result()) is not None:
        following = reader.submit(next, items, None)
        yield item
