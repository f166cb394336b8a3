"""What every source of data offers, and reading it in batches while the model is busy with the one before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from abnn.data.form import InputForm
from abnn.errors import InputError, explain


class Chunk(NamedTuple):
    """Consecutive inputs of a source.

    x           the inputs that could be read, in the form that the model takes
    rows        their places in the source, int64
    last        the place after this chunk
    unreadable  "where: why" for the inputs that could not be read
    """

    x: Tensor
    rows: np.ndarray
    last: int
    unreadable: tuple[str, ...] = ()


class Source(ABC):
    """Inputs in a fixed order, read a part at a time, so that memory does not grow with their number.

    name         what to call it, unless the user says otherwise
    kind         "images" or "features"
    fingerprint  changes when the data may have changed; cheap to compute, so not a hash of all the data
    labels       int64, one for each input, -1 where it belongs to no class
    class_names  what the labels mean, if it is known
    notes        what a reader of the results should know
    """

    name: str
    kind: str
    fingerprint: str
    labels: np.ndarray
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, first: int, last: int, form: InputForm) -> Chunk:
        """The inputs from place ``first`` up to ``last``, without it."""

    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        """The inputs at some places, at least one, in ascending order."""
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        chunks = [self.read(int(run[0]), int(run[-1]) + 1, form) for run in runs]
        return Chunk(
            torch.cat([chunk.x for chunk in chunks]),
            np.concatenate([chunk.rows for chunk in chunks]),
            int(rows[-1]) + 1,
            tuple(each for chunk in chunks for each in chunk.unreadable),
        )

    def check(self, form: InputForm) -> None:
        """An error if a model with inputs of this form cannot be shown this source."""
        if self.kind != form.kind:
            has = {"images": "pictures", "features": "rows of features"}
            given = f"{has[self.kind]}, for a model with inputs of shape {form.shape}"
            fix = "A table is an .npz with `features`, pictures are a folder or an .npz with `images`."
            raise InputError(explain(f"source {self.name!r}", given, has[form.kind], fix))

    def chunks(self, form: InputForm, size: int, first: int = 0) -> Iterator[Chunk]:
        """All inputs from place ``first`` on, the next chunk being read while the caller works on this one."""
        starts = range(first, len(self), size)
        with ThreadPoolExecutor(1, "abnn-read") as reader:
            following = None
            for start in starts:
                current = following or reader.submit(self.read, start, min(start + size, len(self)), form)
                after = start + size
                more = after < len(self)
                following = reader.submit(self.read, after, min(after + size, len(self)), form) if more else None
                yield current.result()
