"""Real outliers from a user's own data set."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from abnn.errors import InputError, explain
from abnn.outliers.base import VALUES, Change
from abnn.outliers.random import Rng
from abnn.outliers.ranges import channels_back, channels_first
from abnn.tensors import rows_digest


class FromData(Change):
    """Samples of ``data``, drawn with replacement by the generator, with severity 1; their labels are not used.

    ``data`` is a map-style data set, a loader over one (its batches and order are not used, its items are), or a tensor
    ``[N, C, ...]``. Items are inputs or tuples that begin with one, prepared like the in-distribution inputs: nothing is
    resized or converted here. A caller's severity below 1 blends ``(1 - severity) x + severity v``; tokens cannot be
    blended: a sample with any severity is replaced as a whole, and has severity 1. Items are read
    again at every draw, except those of tensors and tensor data sets, which stay on the device of the inputs.
    """

    name = "dataset"
    forms = (*VALUES, "tokens")
    uses_range = False
    severity: tuple[float, float] = (1.0, 1.0)
    data: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        data: Any = self.data.dataset if isinstance(self.data, DataLoader) else self.data
        if isinstance(data, TensorDataset):
            data = data.tensors[0]
        indexed = isinstance(data, Dataset) and isinstance(data, Sized) and not isinstance(data, IterableDataset)
        if not indexed and not isinstance(data, Tensor):
            accepted = "a tensor, a data set with a length, or a loader over one"
            fix = "Collect an iterable data set into a tensor first; a config does not hold the data itself."
            raise InputError(explain("data", type(self.data).__name__, accepted, fix))
        if len(data) == 0:
            raise InputError(explain("data", "no items", "at least one outlier"))
        self.data = data

    @property
    def capturable(self) -> bool:
        """Only of tensors: other data sets are read by the host."""
        return isinstance(self.data, Tensor)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        items = self._items(rng.integers(len(self.data), len(x)), channels_back(x, rng.layout))
        items = channels_first(items, rng.layout)
        return torch.lerp(x, items, dial) if x.is_floating_point() else torch.where(dial > 0, items, x)

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        result, severity = super().generate(x, severity, rng)
        return result, severity if x.is_floating_point() else (severity > 0).to(severity.dtype)

    def to_config(self) -> dict[str, Any]:
        """Return which kind of data it is; the data itself has to be passed again."""
        kind = f"{type(self.data).__name__} of {len(self.data)}"
        return {"name": self.name, "severity": list(self.severity), "data": kind}

    def data_digests(self) -> list[str]:
        """Return a digest of tensors; items of other data sets may be different whenever they are read."""
        return [rows_digest([self.data])] if isinstance(self.data, Tensor) else []

    def _items(self, places: Tensor, x: Tensor) -> Tensor:
        if isinstance(self.data, Tensor):
            _check_item(self.data[0], x)
            self.data = self.data.to(x.device)
            return self.data.index_select(0, places).to(x.dtype)
        items = [self.data[place] for place in places.tolist()]
        items = [item[0] if isinstance(item, tuple | list) else item for item in items]
        for item in items:
            _check_item(item, x)
        return torch.stack(items).to(x.device, x.dtype)


def _check_item(item: Any, x: Tensor) -> None:
    if not isinstance(item, Tensor) or item.shape != x.shape[1:]:
        form = f"shape {tuple(item.shape)}" if isinstance(item, Tensor) else type(item).__name__
        accepted = f"tensors of shape {tuple(x.shape[1:])}, as the in-distribution inputs"
        fix = "Apply the transforms of the training set to the outliers as well."
        raise InputError(explain("data", f"items of {form}", accepted, fix))
    if item.is_floating_point() != x.is_floating_point():
        kind, fix = ("values", "Scale and convert them as in training.") if x.is_floating_point() else ("tokens", "")
        accepted = f"{kind} of {x.dtype}, as the in-distribution inputs"
        raise InputError(explain("data", f"items of {item.dtype}", accepted, fix))
