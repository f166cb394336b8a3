"""Small data sets live on the device: a batch is then one indexing instead of a loop over samples and a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, default_collate

LARGEST = 4 * 2**30  # bytes
_HELD: WeakKeyDictionary[TensorDataset, dict[torch.device, list[Tensor]]] = WeakKeyDictionary()


class Resident:
    """Gives the batches of a DataLoader over tensors, in the same order, from tensors on a device.

    They are copied there once for all runs that use the data set.
    """

    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        assert isinstance(loader.dataset, TensorDataset)
        self.loader, self.device = loader, device
        held = _HELD.setdefault(loader.dataset, {})
        if device not in held:
            held[device] = [tensor.to(device) for tensor in loader.dataset.tensors]
            if device.type == "cuda":  # runs on other streams may read them from now on
                torch.cuda.synchronize(device)
        self.tensors = held[device]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[Tensor]]:
        # A DataLoader draws a seed for its workers before its sampler draws one for the order.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        return self._batches()

    def _batches(self) -> Iterator[list[Tensor]]:
        batches = list(self.loader.batch_sampler)  # type: ignore[arg-type]
        order = torch.tensor([row for rows in batches for row in rows], dtype=torch.int64).to(self.device)
        for index in order.split([len(rows) for rows in batches]):
            yield [tensor.index_select(0, index) for tensor in self.tensors]


def resident(loader: Any, device: torch.device) -> Resident | None:
    """A loader's batches from the device, or None where that is not possible or would take too much memory."""
    if device.type != "cuda" or type(loader) is not DataLoader or type(loader.dataset) is not TensorDataset:
        return None
    size = sum(tensor.numel() * tensor.element_size() for tensor in loader.dataset.tensors)
    plain = loader.collate_fn is default_collate and isinstance(loader.batch_sampler, BatchSampler)
    return Resident(loader, device) if plain and size <= LARGEST else None
